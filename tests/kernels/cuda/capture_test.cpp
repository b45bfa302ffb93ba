// Captures that fail, of a graph that behaves as LibTorch's: which filters and pools are left.

#include "kernels/cuda/capture.h"

#include <set>
#include <stdexcept>
#include <string>

#include "tests/support/catch.h"

using namespace moe;

namespace {

[[noreturn]] void fail(const std::string& words) { throw std::runtime_error(words); }

// LibTorch's allocators: pools that exist, and those that a filter sends allocations to.
struct FakeAllocators {
  void end_pool(int pool) {
    if (filters.erase(pool) == 0) {
      fail("not currently recording to mempool_id");
    }
  }
  void release_pool(int pool) {
    if (pools.erase(pool) == 0) {
      fail("no such pool");
    }
  }
  std::set<int> filters, pools;
};

// at::cuda::CUDAGraph of LibTorch 2.11, step by step.
struct FakeGraph {
  explicit FakeGraph(FakeAllocators& its_allocators) : allocators(its_allocators) {}
  FakeGraph(const FakeGraph&) = delete;
  FakeGraph& operator=(const FakeGraph&) = delete;
  ~FakeGraph() {
    if (capture_ended) {
      allocators.release_pool(its_pool);
    }
  }

  void capture_begin(int pool) {
    fail_at("default stream");
    its_pool = pool;
    allocators.filters.insert(pool);
    allocators.pools.insert(pool);
    fail_at("begin");
    records = true;
  }
  void capture_end() {
    const bool recorded = records;
    records = false;
    if (!recorded) {
      fail("illegal state");  // of the stream
    }
    fail_at("broken off");
    allocators.end_pool(its_pool);
    fail_at("no nodes");
    capture_ended = true;
    fail_at("instantiate");
  }
  int pool() const { return capture_ended ? its_pool : (fail("no capture"), 0); }

  void fail_at(const std::string& step) const {
    if (fails_at == step) {
      fail(step);
    }
  }

  FakeAllocators& allocators;
  std::string fails_at;
  int its_pool = 0;
  bool records = false, capture_ended = false;
};

// What a capture that fails at `step` throws, once the graph is gone too.
std::string thrown_at(const std::string& step, FakeAllocators& allocators) {
  FakeGraph graph(allocators);
  graph.fails_at = step;
  try {
    kernels::capture(graph, allocators, 5, [&] { graph.fail_at("work"); });
  } catch (const std::exception& error) {
    CHECK(allocators.filters.empty());  // while the graph is there
    CHECK(!graph.records);
    return error.what();
  }
  CHECK(allocators.pools.size() == 1);
  return "";
}

}  // namespace

TEST_CASE("a capture that fails leaves no filter, no pool and no stream that records") {
  for (const std::string step :
       {"", "default stream", "begin", "work", "broken off", "no nodes", "instantiate"}) {
    CAPTURE(step);
    FakeAllocators allocators;
    CHECK(thrown_at(step, allocators) == step);
    CHECK(allocators.filters.empty());
    CHECK(allocators.pools.empty());
  }
}
