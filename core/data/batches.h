#pragma once
// Examples -> batches of packed token rows, without end: one epoch's order follows the other's, and
// a cursor of three numbers says where the stream stands, so that training can go on from there bit
// for bit.
//
//   stream  the examples in order, joined into one stream and cut every seq_len tokens
//           (core/train/README.md); no padding, plain causal
//           mask. What is left of an epoch's last row goes on with the next epoch's first example.
//   none    one example a row, rows of unequal length.
//
// Files that came with weights are mixed by them (core/data/mixture.h); else they are joined.
//
// Targets are shifted inside the row (with PackMask::kDoc inside the piece): position t predicts
// the label at t+1, the last position predicts nothing.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/examples.h"
#include "core/data/mixture.h"

namespace moe::data {

enum class Pack { kStream, kNone };
// What a token of a stream row may see: all before it in the row, or only its own example.
enum class PackMask { kCausal, kDoc };

struct BatchSettings {
  Pack pack = Pack::kStream;
  bool shuffle = true;
  int64_t seq_len = 2048;  // S: tokens a row, with Pack::kNone at most
  int64_t rows = 1;        // rows a batch
  uint64_t seed = 0;
  PackMask mask = PackMask::kCausal;
};

struct Cursor {
  int64_t epoch = 0;
  int64_t example = 0;  // place in the epoch's order, not in the file
  int64_t offset = 0;   // tokens of that example already given out; 0 with Pack::kNone
  bool operator==(const Cursor&) const = default;
};

struct Batch {
  std::vector<int64_t> ids;      // [T]
  std::vector<int64_t> targets;  // [T], kNoLoss = none
  // Tokens that see each other and count their positions together, their sum is T: one a row, with
  // PackMask::kDoc one a piece of an example. So attention never touches a pair that is masked.
  std::vector<int64_t> lengths;
  std::vector<int64_t> rows;  // tokens of each row, a whole number of lengths; their sum is T
  int64_t target_count = 0;
};

// The rows begin..end-1 of a batch; there may be none.
Batch rows_of(const Batch& batch, int64_t begin, int64_t end);

class BatchStream {
 public:
  // Keeps a reference to `examples`. UserError with Pack::kNone when an example is longer than
  // seq_len, or when a weight is so small that its file would never be drawn.
  BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor = {});

  Batch next();
  const Cursor& cursor() const { return cursor_; }
  // stream: a fraction of the last row counts as such. Of mixed files the mean over many epochs: a
  // file that is not used up in one epoch brings other examples in the next.
  double rows_per_epoch() const;

 private:
  void add_stream_row(Batch& batch);
  void add_example_row(Batch& batch);
  int64_t current() const;  // the example at the cursor
  void advance_example();
  void set_order();

  const Examples& examples_;
  BatchSettings settings_;
  Cursor cursor_;
  std::optional<Mixture> mixture_;  // of files with weights
  std::vector<int64_t> order_;      // of cursor_.epoch
};

}  // namespace moe::data
