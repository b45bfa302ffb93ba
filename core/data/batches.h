#pragma once
// Examples -> an endless stream of batches of packed token rows.
//
//   stream  the examples in order, joined into one stream and cut every seq_len tokens
//           (core/train/README.md); no padding, plain causal mask. The last row of an epoch is
//           filled with the first example of the next.
//   none    one example a row, rows of unequal length.
//
// Targets are shifted inside the row (with PackMask::kDoc inside the piece): position t predicts
// the label at t+1, the last position predicts nothing.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/data/example_set.h"

namespace moe::data {

// Returns a permutation of 0..count-1 that depends on (seed, epoch) alone: a Fisher-Yates shuffle
// by SplitMix64, which is the same everywhere, unlike the distributions of the standard library.
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch);

struct MixedFile {
  int64_t begin = 0;  // its examples are begin..begin+count-1
  int64_t count = 0;  // at least one
  double weight = 0;  // > 0
};

// The order of examples in an epoch of files that are mixed by weight. An epoch draws as many
// examples as the files hold together. Tijdeman's rule ("The chairman assignment problem", Discrete
// Mathematics 32, 1980) chooses the file of each draw: after any n draws every file has had its
// share of n to within one. Within a file the examples come in that file's own order, pass after
// pass, each pass with a new shuffle; a pass may span epochs. The order depends on (seed, epoch)
// alone.
class Mixture {
 public:
  // `names` are the files in errors. Throws UserError if a weight is so small that an epoch would
  // draw no example of its file.
  Mixture(std::vector<MixedFile> files, const std::vector<std::string>& names);

  // Returns the examples of an epoch in their order.
  std::vector<int64_t> order(bool shuffle, uint64_t seed, int64_t epoch) const;
  int64_t draws(size_t file) const { return draws_[file]; }  // an epoch

 private:
  std::vector<MixedFile> files_;
  std::vector<size_t> turns_;   // the file of each draw of an epoch
  std::vector<int64_t> draws_;  // an epoch, one a file
};

enum class Pack { kStream, kNone };
// The tokens that a token of a stream row attends to: all before it in the row, or those of its own
// example.
enum class PackMask { kCausal, kDoc };

struct BatchSettings {
  Pack pack = Pack::kStream;
  bool shuffle = true;
  int64_t seq_len = 2048;  // S: tokens a row; the maximum with Pack::kNone
  int64_t rows = 1;        // rows a batch
  uint64_t seed = 0;
  PackMask mask = PackMask::kCausal;
};

struct Cursor {
  int64_t epoch = 0;
  int64_t example = 0;  // position in the epoch's order, not in the file
  int64_t offset = 0;   // tokens of that example already consumed; 0 with Pack::kNone
  bool operator==(const Cursor&) const = default;
};

struct Batch {
  std::vector<int64_t> ids;      // [T]
  std::vector<int64_t> targets;  // [T], kNoLoss = none
  // Lengths of the sequences within which tokens attend and positions count; their sum is T. One a
  // row; with PackMask::kDoc one a piece of an example.
  std::vector<int64_t> lengths;
  std::vector<int64_t> rows;  // tokens of each row, a whole number of lengths; their sum is T
  int64_t target_count = 0;
};

// Returns the rows begin..end-1 of a batch; there may be none.
Batch rows_of(const Batch& batch, int64_t begin, int64_t end);

class BatchStream {
 public:
  // Keeps a reference to `examples`. Throws UserError if an example is longer than seq_len with
  // Pack::kNone, if Mixture does, or if `cursor` does not fit the examples.
  BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor = {});

  Batch next();
  const Cursor& cursor() const { return cursor_; }
  // With Pack::kStream the last row may count as a fraction. With mixed files the mean over many
  // epochs.
  double rows_per_epoch() const;

 private:
  void add_stream_row(Batch& batch);
  void add_example_row(Batch& batch);
  // Returns the example at the cursor.
  int64_t current() const { return order_[static_cast<size_t>(cursor_.example)]; }
  void advance_example();
  void set_order();

  const Examples& examples_;
  BatchSettings settings_;
  Cursor cursor_;
  std::optional<Mixture> mixture_;  // of files with weights
  std::vector<int64_t> order_;      // of cursor_.epoch
};

// The batches of a step, and the cursor after them. A checkpoint stores the cursor of the last step
// that was trained, not of the steps made ahead.
struct StepBatches {
  std::vector<Batch> batches;
  Cursor cursor;
};

// Makes the batches of the next steps in its own thread.
class StepLoader {
 public:
  // `batches` a step. Keeps the stream's reference to its examples.
  StepLoader(BatchStream stream, int64_t batches);
  ~StepLoader();  // ends the thread after the current batch
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  // Blocks until the next step is ready. Once the stream has thrown, throws that exception after
  // the steps before it, in every further call.
  StepBatches next();

 private:
  void work();

  BatchStream stream_;  // used by the thread only
  int64_t batches_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<StepBatches> ready_;
  std::exception_ptr error_;  // thrown after the ready steps
  bool stops_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe::data
