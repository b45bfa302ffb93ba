#pragma once
// What the ranks of a run say to each other: the few collectives that expert parallelism needs, and
// no more. Three forms: one rank alone (solo_comm below), ranks as threads of one process
// (threads.h), processes through c10d (process_group.h). Every rank of a Comm makes the same calls
// in the same order; tensors are contiguous and on device().

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe::distributed {

// Where the run stands, for the sentence of an operation that fails. -1: outside of any.
struct Position {
  int64_t step = -1, layer = -1;
};

// A transfer under way: its tensors are neither written nor freed before wait() returns.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

// Lasts as long as something that may take a rank longer than ranks wait for each other.
class LongOperation {
 public:
  virtual ~LongOperation() = default;
  LongOperation(const LongOperation&) = delete;
  LongOperation& operator=(const LongOperation&) = delete;

 protected:
  LongOperation() = default;
};

// The other ranks are gone, hang, or called something else: std::runtime_error, whose sentence
// names rank, step, layer and operation. The Comm is of no use afterwards.
//
// On CPU an operation is over when its call returns. On GPUs it may be under way: what comes next
// on the current stream waits for it there, the host does not, and what it throws may be thrown by
// a later operation or by synchronize().
class Comm {
 public:
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  virtual at::Device device() const = 0;  // of the tensors that it takes

  // Rows (of dimension 0) of `input` in rank order, input_rows[r] of them to rank r; `output` gets
  // output_rows[r] rows from rank r in rank order. Both may be 0 for any rank.
  virtual std::unique_ptr<Transfer> all_to_all(const at::Tensor& input,
                                               const std::vector<int64_t>& input_rows,
                                               const at::Tensor& output,
                                               const std::vector<int64_t>& output_rows) = 0;
  // Sums over ranks, in place. The order of terms follows from size() alone.
  virtual void all_reduce(const at::Tensor& tensor) = 0;
  // input [size * n], output [n]: rank r gets the sum over ranks of their r-th n elements.
  virtual void reduce_scatter(const at::Tensor& input, const at::Tensor& output) = 0;
  // input [n], output [size * n]: in rank order. `input` may be this rank's part of `output`.
  virtual void all_gather(const at::Tensor& input, const at::Tensor& output) = 0;
  // The same under way while this rank computes, where there is more than one process: operations
  // that follow may begin before it is over. NCCL and Gloo move it meanwhile, shared memory moves
  // it whenever this rank waits for anything.
  virtual std::unique_ptr<Transfer> start_all_gather(const at::Tensor& input,
                                                     const at::Tensor& output);
  virtual void broadcast(const at::Tensor& tensor, int64_t root) = 0;
  virtual void barrier() = 0;  // on the host too
  // Until this rank's operations are over: then the host may read what they wrote, and knows that
  // none of them failed. Who copies their results to the host calls it before.
  virtual void synchronize() {}

  // The ranks `members` (ascending, of this Comm) among themselves. Every rank of this Comm calls
  // it, with the list that it belongs to; lists of different ranks are equal or disjoint. Ranks
  // count from 0 in the order of the list. `name` says which division this is.
  virtual std::unique_ptr<Comm> part(const std::string& name,
                                     const std::vector<int64_t>& members) = 0;

  // Announces that this rank, until the result ends, does what may take longer than the others'
  // time limit (--comm-timeout) while they may already wait for it: saves a checkpoint, reads a
  // model. They wait for as long as its process lives. `name` says what it does, in the words of
  // "rank 1 is saving a checkpoint". Null where ranks wait without a limit.
  [[nodiscard]] virtual std::unique_ptr<LongOperation> long_operation(const std::string& /*name*/) {
    return nullptr;
  }

  Position position;  // whoever runs steps and layers sets it

 protected:
  Comm() = default;
};

// One rank alone: every collective is a copy or nothing.
std::unique_ptr<Comm> solo_comm(at::Device device = at::kCPU);

// A transfer that is over before its wait().
std::unique_ptr<Transfer> finished_transfer();

// The `values` of every rank, in rank order; all have the same length.
std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& values);
// The `text` of every rank, in rank order; lengths may differ.
std::vector<std::string> gather_texts(Comm& comm, const std::string& text);
// Sums over ranks; all have the same length.
std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values);

}  // namespace moe::distributed
