#pragma once
// Collective communication between the ranks of a run, agreement on errors and settings, and the
// layout of experts. Implementations of Comm: one rank (below), c10d (process_group.h), tests.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/resources.h"

namespace moe::distributed {

// Training step and layer, included in error messages. -1: outside of a step or layer.
struct TraceContext {
  int64_t step = -1, layer = -1;
};

// Handle of an asynchronous collective. Its tensors must not be modified or freed before wait().
class Transfer {
 public:
  explicit Transfer(std::function<void()> finish = [] {}) : finish_(std::move(finish)) {}
  void wait() const { finish_(); }

 private:
  std::function<void()> finish_;
};

// Base class of communicators, and communicator of a single rank, for which collectives are copies.
//
// All ranks must call the same collectives in the same order, with contiguous tensors on device().
// CPU collectives block until they are complete. GPU collectives are enqueued on the current
// stream; call synchronize() before the host reads results. If a rank has exited, does not answer
// within --comm-timeout, or called a different collective, a collective (on a GPU, this or a later
// one) throws std::runtime_error that names rank, step, layer and collective. The communicator
// cannot be used afterwards.
class Comm {
 public:
  explicit Comm(at::Device device, int64_t rank = 0, int64_t size = 1)
      : device_(device), rank_(rank), size_(size) {}
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  at::Device device() const { return device_; }
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // Exchanges rows (dimension 0): sends the next input_rows[r] rows of `input` to rank r and
  // receives output_rows[r] rows from rank r into `output`, in rank order. Counts may be 0.
  virtual Transfer all_to_all(const at::Tensor& input, at::IntArrayRef input_rows,
                              const at::Tensor& output, at::IntArrayRef output_rows);
  // Sums `tensor` over all ranks in place. The order of the terms depends on size() only.
  virtual void all_reduce(const at::Tensor& /*tensor*/) {}
  // input [size * n], output [n]: rank r receives the sum over ranks of block r.
  virtual void reduce_scatter(const at::Tensor& input, const at::Tensor& output);
  // input [n], output [size * n]: concatenates the inputs in rank order. `input` may alias this
  // rank's block of `output`. Later collectives may start before it is complete.
  virtual Transfer start_all_gather(const at::Tensor& input, const at::Tensor& output);
  void all_gather(const at::Tensor& input, const at::Tensor& output) {
    start_all_gather(input, output).wait();
  }
  virtual void barrier() {}  // also blocks the host
  // Blocks the host until all collectives of this rank are complete and known to have succeeded.
  virtual void synchronize() {}

  // Creates a communicator for the ranks `members`, in ascending order. Collective: every rank
  // calls it with the subset that it belongs to; subsets are equal or disjoint.
  virtual std::unique_ptr<Comm> split(at::IntArrayRef members);

  // Begins a long operation, such as saving a checkpoint; destroying the result ends it. Until then
  // other ranks may wait longer than the timeout, as long as this process answers
  // (process_group.h).
  [[nodiscard]] virtual std::shared_ptr<void> long_operation() { return nullptr; }

  TraceContext trace;  // set by the code that runs steps and layers

 private:
  at::Device device_;
  int64_t rank_, size_;
};

// Returns a communicator with a single rank.
inline std::unique_ptr<Comm> solo_comm(at::Device device = at::kCPU) {
  return std::make_unique<Comm>(device);
}

// The functions up to check_memory() are collectives. A null `ranks` means a single process.

// Gathers the `values` of every rank, in rank order. Lengths must be equal.
std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, at::IntArrayRef values);
// Gathers the `text` of every rank, in rank order.
std::vector<std::string> gather_texts(Comm& comm, const std::string& text);
// Sums `values` over all ranks. Lengths must be equal.
std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values);

// Runs `body`, which must not use a Comm, on every rank as a long operation. If it throws on any
// rank, all ranks throw UserError, else Interrupted, else std::runtime_error of the lowest rank.
void on_all_ranks(Comm* ranks, const std::function<void()>& body);

// Returns true if `statement` is true on any rank.
bool any_rank(Comm* ranks, bool statement);

// Throws UserError on all ranks if `text`, which describes `what` ("the settings"), differs between
// ranks. The message has the first rank and line that differ from rank 0's.
void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text);

// Returns the ranks on the host of this rank, including it, ascending.
std::vector<int64_t> same_host_ranks(Comm& ranks);

// Calls moe::check_memory() for all ranks of a host. Throws UserError on all ranks if memory is
// short on one. With `force` returns the message of this rank instead.
std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force);

// Layout of a run: P processes = R replicas x G processes of an expert-parallel group, which hold
// each expert once, share the W logical ranks, and divide the rows of a micro-batch into contiguous
// blocks. Process p is rank p % G of the group of replica p / G. Replica r computes micro-batches
// r, r + R, ... of a step. For equal tokens, results depend only on W (core/route/README.md).
struct Layout {
  int64_t processes = 1, rank = 0, replicas = 1;
  int64_t logical_ranks = 1, experts = 1;  // W, E; 1 and 1 for a dense model

  int64_t group() const { return processes / replicas; }  // G
  int64_t replica() const { return rank / group(); }
  int64_t ep_rank() const { return rank % group(); }
  int64_t local_experts() const { return experts / group(); }
  int64_t first_expert() const { return ep_rank() * local_experts(); }
  int64_t local_logical_ranks() const { return logical_ranks / group(); }
  // Returns the first row of a micro-batch of `count` rows that rank `index` of the group takes.
  int64_t first_row(int64_t count, int64_t index) const { return count * index / group(); }
  bool is_rank_zero() const { return rank == 0; }
};

// Returns the layout of process `rank`. Without `replicas`, G = gcd(P, W). A dense model
// (experts = 0) has G = 1. Throws UserError that names the flags if R does not divide P, G does not
// divide W, or W does not divide E.
Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts);

// Returns "4 processes = 2 replicas x 2 in an expert-parallel group; 8 logical ranks, ...".
std::string describe(const Layout& layout);

// Range of the `count` elements that a rank of `comm` holds. The last ones may be shorter or empty.
struct Part {
  Part(int64_t count, const Comm& comm);
  int64_t size() const { return end - begin; }
  int64_t length;  // of a full range
  int64_t begin, end;
};

// Communicators of one rank. The constructor is a collective.
struct World {
  World(Comm& all_ranks, const Layout& layout);
  void set_trace(const TraceContext& trace) {  // of all communicators
    all.trace = group->trace = replicas->trace = trace;
  }

  Layout layout;
  Comm& all;                       // P ranks
  std::unique_ptr<Comm> group;     // G ranks of this replica, which exchange tokens
  std::unique_ptr<Comm> replicas;  // R processes that hold the same experts
};

}  // namespace moe::distributed
