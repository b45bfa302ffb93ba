#pragma once
// Ranks of a run: collective communication, agreement on errors and settings, and the layout of
// experts over processes. Implementations of Comm: solo (one rank, below), c10d (processes,
// process_group.h), threads of one process for tests (tests/support/rank_threads.h).

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
  virtual ~Transfer() = default;
  virtual void wait() {}  // returns at once in this class, a transfer that is complete
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

// Gathers the `values` of every rank, in rank order. All must have the same length.
std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& values);
// Gathers the `text` of every rank, in rank order. Lengths may differ.
std::vector<std::string> gather_texts(Comm& comm, const std::string& text);
// Sums `values` over all ranks. All must have the same length.
std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values);

// The following functions are collectives. `ranks` may be null: a single process.

// Runs `body`, which must not use a Comm, on every rank, as a long operation. If it throws on one
// rank, throws on all: UserError, else Interrupted, else std::runtime_error that names the rank; of
// several ranks, the exception of the lowest one.
void on_all_ranks(Comm* ranks, const std::function<void()>& body);

// Returns true if `statement` is true on any rank.
bool any_rank(Comm* ranks, bool statement);

// Throws UserError on all ranks if `text`, a description of `what` ("the settings"), differs
// between ranks. The message names the first rank and line that differ from rank 0's.
void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text);

// Returns the ranks on the host of this rank, including it, ascending.
std::vector<int64_t> ranks_of_this_host(Comm& ranks);

// Calls check_memory() on every rank, with need.processes set to the number of ranks on its host,
// before any rank allocates. Throws UserError on all ranks if memory is short on one. With `force`
// returns the shortage of this rank instead.
std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force);

// Layout of a run: P processes = R replicas x G processes of an expert-parallel group. The G
// processes of a group hold each expert once and share the W logical ranks; process p is rank p % G
// of the group of replica p / G. Rows of a micro-batch are divided among the ranks of a group in
// contiguous blocks; replica r computes micro-batches r, r + R, ... of a step, so that R replicas
// equal one process that accumulates R micro-batches. Results depend on W alone if all processes
// have equally many tokens (core/route/README.md).
struct Layout {
  int64_t processes = 1, rank = 0, replicas = 1;
  int64_t logical_ranks = 1, experts = 1;  // W, E; 1 and 1 for a dense model

  int64_t group() const { return processes / replicas; }  // G
  int64_t replica() const { return rank / group(); }
  int64_t ep_rank() const { return rank % group(); }
  int64_t local_experts() const { return experts / group(); }
  int64_t first_expert() const { return ep_rank() * local_experts(); }
  int64_t local_logical_ranks() const { return logical_ranks / group(); }
  // Returns the first of `count` rows of a micro-batch that rank `index` of the group takes;
  // `count` for index G.
  int64_t first_of(int64_t count, int64_t index) const { return count * index / group(); }
  bool is_rank_zero() const { return rank == 0; }
};

// Returns the layout of `processes`. Without `replicas`: G = gcd(P, W). A dense model (experts = 0)
// has G = 1. Throws UserError, naming the flags, if R does not divide P, G does not divide W, or W
// does not divide E.
Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts);

// Returns "4 processes = 2 replicas x 2 in an expert-parallel group; 8 logical ranks, 4 a process;
// 8 experts, 4 a process".
std::string describe(const Layout& layout);

// Range of `count` elements that one rank of `comm` holds. All ranges have equal length except the
// last ones, which may be shorter or empty.
struct Part {
  Part(int64_t count, const Comm& comm);
  int64_t size() const { return end - begin; }
  int64_t length;  // of a full range
  int64_t begin, end;
};

// Communicators of one rank. The constructor is a collective.
struct World {
  World(Comm& all_ranks, const Layout& layout);
  void set_trace(const TraceContext& trace);  // of all communicators

  Layout layout;
  Comm& all;                       // P ranks
  std::unique_ptr<Comm> group;     // G ranks of this replica, which exchange tokens
  std::unique_ptr<Comm> replicas;  // R processes that hold the same experts
};

}  // namespace moe::distributed
