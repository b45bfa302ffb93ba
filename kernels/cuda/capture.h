#pragma once
// The recording of a CUDA graph, whatever fails meanwhile. LibTorch serves a capture from a pool of
// its own by filters that hold the address of the graph, in its allocators of GPU memory and of
// pinned memory. capture_end() takes them off, but not where it throws, as it does of every capture
// that a launch or a copy broke off: later allocations would ask a graph that is gone.

#include <exception>
#include <functional>

namespace moe::kernels {

// Whether `work` throws, which goes no further.
template <typename Work>
bool throws(const Work& work) {
  try {
    work();
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

// Runs `work` between graph.capture_begin(pool) and graph.capture_end(), of an at::cuda::CUDAGraph
// or what a test takes for one. `allocators`: end_pool(pool) takes its filters off, release_pool
// (pool) gives its memory back; both throw where there is nothing to do. What any of these throws
// goes on to the caller, once no filter is left.
template <typename Graph, typename Allocators, typename Pool>
void capture(Graph& graph, Allocators& allocators, const Pool& pool,
             const std::function<void()>& work) {
  try {
    graph.capture_begin(pool);
    work();
    graph.capture_end();
  } catch (...) {
    throws([&] { graph.capture_end(); });  // the stream records no longer; throws where it did not
    throws([&] { allocators.end_pool(pool); });
    // A graph whose capture ended gives its pool back itself.
    if (throws([&] { graph.pool(); })) {
      throws([&] { allocators.release_pool(pool); });
    }
    throw;
  }
}

}  // namespace moe::kernels
