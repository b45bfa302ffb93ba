#pragma once
// Examples -> an endless stream of batches of packed token rows.
//
//   stream  joins the examples in order and cuts the stream every seq_len tokens
//           (core/train/README.md); no padding. The last row of an epoch is filled from the next
//           epoch.
//   none    one example per row, rows of unequal length.
//
// Targets are shifted within a sequence (a row, or with PackMask::kDoc a part of an example):
// position t predicts label t+1; the last position has no target.

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "core/data/example_set.h"

namespace moe::data {

// Returns a permutation of 0..count-1 that depends on (seed, epoch) only: a Fisher-Yates shuffle
// with SplitMix64. Unlike std::shuffle it is equal for all standard libraries.
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch);

struct MixedFile {
  int64_t begin = 0;  // the first of its examples
  int64_t count = 0;  // at least one
  double weight = 0;  // > 0
};

// The order of examples in an epoch of files that are mixed by weight. An epoch draws as many
// examples as all files hold. Tijdeman's rule ("The chairman assignment problem", Discrete
// Mathematics 32, 1980) chooses the file of each draw: after any n draws the number of examples of
// a file differs from its share of n by less than one. The examples of a file are repeated pass
// after pass, each in a new random order; a pass may span epochs. The order depends on (seed,
// epoch) only.
class Mixture {
 public:
  // `names` are the files in errors. Throws UserError if a weight is too small for an epoch to draw
  // an example of its file.
  Mixture(std::vector<MixedFile> files, const std::vector<std::string>& names);

  // Returns the examples of an epoch in order.
  std::vector<int64_t> order(bool shuffle, uint64_t seed, int64_t epoch) const;
  int64_t draws(size_t file) const { return draws_[file]; }  // per epoch

 private:
  std::vector<MixedFile> files_;
  std::vector<size_t> sequence_;  // file of each draw of an epoch
  std::vector<int64_t> draws_;    // per epoch, of each file
};

enum class Pack { kStream, kNone };
// A token of a stream row attends to all earlier tokens of the row, or to those of its example.
enum class PackMask { kCausal, kDoc };

struct BatchSettings {
  Pack pack = Pack::kStream;
  bool shuffle = true;
  int64_t seq_len = 2048;  // S: tokens per row; the maximum with Pack::kNone
  int64_t rows = 1;        // rows per batch
  uint64_t seed = 0;
  PackMask mask = PackMask::kCausal;
};

// Position in the stream of examples.
struct Cursor {
  int64_t epoch = 0;
  int64_t example = 0;  // index in the order of the epoch
  int64_t offset = 0;   // tokens of that example already used; 0 with Pack::kNone
  bool operator==(const Cursor&) const = default;
};

struct Batch {
  std::vector<int64_t> ids;      // [T]
  std::vector<int64_t> targets;  // [T], kNoLoss: none
  // Lengths of the sequences, to which attention and positions are limited; their sum is T. A row
  // is one sequence, with PackMask::kDoc one for each part of an example.
  std::vector<int64_t> lengths;
  std::vector<int64_t> rows;  // tokens of each row; their sum is T
  int64_t target_count = 0;
};

// Returns the rows begin..end-1 of a batch, possibly none.
Batch rows_of(const Batch& batch, int64_t begin, int64_t end);

class BatchStream {
 public:
  // Keeps a reference to `examples`. Throws UserError if Mixture does, if `cursor` does not fit the
  // examples, and with Pack::kNone if an example is longer than seq_len.
  BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor = {});

  Batch next();
  const Cursor& cursor() const { return cursor_; }
  // Returns the mean over many epochs, which may be a fraction.
  double rows_per_epoch() const;

 private:
  void add_stream_row(Batch& batch);
  void add_example_row(Batch& batch);
  int64_t current_example() const { return order_[static_cast<size_t>(cursor_.example)]; }
  void advance_example();
  void set_order();

  const Examples& examples_;
  BatchSettings settings_;
  Cursor cursor_;
  std::optional<Mixture> mixture_;  // of files with weights
  std::vector<int64_t> order_;      // of cursor_.epoch
};

// The batches of a step and the cursor after them, which a checkpoint of that step stores.
struct StepBatches {
  std::vector<Batch> batches;
  Cursor cursor;
};

// Prefetches the batches of the next step in a thread. Its destructor waits for the thread.
class StepLoader {
 public:
  // The examples of `stream` must outlive the loader.
  StepLoader(BatchStream stream, int64_t batches_per_step);
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  // Returns the next step; blocks until it is ready. Rethrows an exception of the stream, in every
  // further call too.
  StepBatches next();

 private:
  void prefetch();

  BatchStream stream_;  // used by the thread only
  int64_t batches_per_step_;
  std::shared_future<StepBatches> next_;  // declared last: its destructor ends the thread
};

}  // namespace moe::data
