#pragma once
// Collective communication between the ranks of a run. Implementations: solo (one rank, below),
// c10d (processes, process_group.h), threads of one process for tests
// (tests/support/rank_threads.h).

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe::distributed {

// Training step and layer, included in error messages. -1: outside of a step or layer.
struct TraceContext {
  int64_t step = -1, layer = -1;
};

// Handle of an asynchronous collective. Its tensors must not be modified or freed before wait().
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

// All ranks must call the same collectives in the same order. Tensors must be contiguous and on
// device(). CPU collectives block until they are complete. GPU collectives are enqueued on the
// current stream and do not block the host; call synchronize() before the host reads results.
//
// All methods throw std::runtime_error if a rank has exited, does not answer within the timeout
// (--comm-timeout), or called a different collective. The message names rank, step, layer and
// collective. On GPUs a later method may throw it. The communicator cannot be used afterwards.
class Comm {
 public:
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual at::Device device() const = 0;

  // Exchanges rows (dimension 0): sends the next input_rows[r] rows of `input` to rank r and
  // receives output_rows[r] rows from rank r into `output`, in rank order. Counts may be 0.
  virtual std::unique_ptr<Transfer> all_to_all(const at::Tensor& input,
                                               const std::vector<int64_t>& input_rows,
                                               const at::Tensor& output,
                                               const std::vector<int64_t>& output_rows) = 0;
  // Sums `tensor` over all ranks in place. The order of the terms depends on size() only.
  virtual void all_reduce(const at::Tensor& tensor) = 0;
  // input [size * n], output [n]: rank r receives the sum over ranks of block r.
  virtual void reduce_scatter(const at::Tensor& input, const at::Tensor& output) = 0;
  // input [n], output [size * n]: concatenates the inputs in rank order. `input` may alias this
  // rank's block of `output`.
  virtual void all_gather(const at::Tensor& input, const at::Tensor& output) = 0;
  // Asynchronous all_gather. Collectives that follow may start before it is complete. With threads
  // and with one rank it is complete when the call returns.
  virtual std::unique_ptr<Transfer> start_all_gather(const at::Tensor& input,
                                                     const at::Tensor& output);
  virtual void broadcast(const at::Tensor& tensor, int64_t root) = 0;
  virtual void barrier() = 0;  // also blocks the host
  // Blocks the host until all collectives of this rank are complete and known to have succeeded.
  virtual void synchronize() {}

  // Creates a communicator of a subset of the ranks. Collective: every rank calls it with the
  // subset it belongs to; subsets are ascending, and equal or disjoint. `name` must differ between
  // two kinds of subsets.
  virtual std::unique_ptr<Comm> part(const std::string& name,
                                     const std::vector<int64_t>& members) = 0;

  // Begins an operation for which the other ranks may wait longer than the timeout, for example
  // saving a checkpoint. Until the result is destroyed they wait as long as this rank's process
  // runs.
  [[nodiscard]] virtual std::shared_ptr<void> long_operation() { return nullptr; }

  TraceContext trace;  // set by the code that runs steps and layers

 protected:
  Comm() = default;
};

// Returns a communicator with a single rank. Collectives copy or do nothing.
std::unique_ptr<Comm> solo_comm(at::Device device = at::kCPU);

// Returns a transfer that is complete.
std::unique_ptr<Transfer> finished_transfer();

// Gathers the `values` of every rank, in rank order. All must have the same length.
std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& values);
// Gathers the `text` of every rank, in rank order. Lengths may differ.
std::vector<std::string> gather_texts(Comm& comm, const std::string& text);
// Sums `values` over all ranks. All must have the same length.
std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values);

}  // namespace moe::distributed
