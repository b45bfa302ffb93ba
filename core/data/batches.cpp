#include "core/data/batches.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/data/shuffle.h"

namespace moe::data {

namespace {

// Ends the row, or the piece of one, that holds the last `length` ids of the batch; `labels` are
// the row's, not yet shifted.
void finish_row(Batch& batch, const std::vector<int32_t>& labels) {
  for (size_t t = 1; t < labels.size(); ++t) {
    batch.targets.push_back(labels[t]);
    batch.target_count += labels[t] == kNoLoss ? 0 : 1;
  }
  batch.targets.push_back(kNoLoss);
  batch.lengths.push_back(static_cast<int64_t>(labels.size()));
}

std::vector<MixedFile> mixed_files(const Examples& examples) {
  std::vector<MixedFile> files;
  for (size_t index = 0; index < examples.ranges.size(); ++index) {
    const FileRange& range = examples.ranges[index];
    files.push_back({range.begin, range.count, examples.weights.at(index)});
  }
  return files;
}

// UserError where an example does not fit into a row of its own.
void check_lengths(const Examples& examples, int64_t seq_len) {
  for (int64_t index = 0; index < examples.size(); ++index) {
    if (examples.length(index) > seq_len) {
      throw UserError(
          "{}: the example has {} tokens, --seq-len is {}; raise it, shorten the example or use "
          "--pack stream",
          examples.where(index), examples.length(index), seq_len);
    }
  }
}

}  // namespace

Batch rows_of(const Batch& batch, int64_t begin, int64_t end) {
  const auto row = batch.rows.begin();
  const int64_t first = std::accumulate(row, row + begin, int64_t{0});
  const int64_t last = std::accumulate(row + begin, row + end, first);
  Batch part;
  part.ids.assign(batch.ids.begin() + first, batch.ids.begin() + last);
  part.targets.assign(batch.targets.begin() + first, batch.targets.begin() + last);
  part.rows.assign(row + begin, row + end);
  int64_t seen = 0;
  for (const int64_t length : batch.lengths) {
    if (seen >= first && seen < last) {
      part.lengths.push_back(length);
    }
    seen += length;
  }
  part.target_count = last - first - std::count(part.targets.begin(), part.targets.end(), kNoLoss);
  return part;
}

BatchStream::BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor)
    : examples_(examples), settings_(settings), cursor_(cursor) {
  MOE_CHECK(examples.size() > 0 && settings.rows > 0 && settings.seq_len > 1);
  if (settings.pack == Pack::kNone) {
    check_lengths(examples, settings.seq_len);
  }
  if (!examples.weights.empty()) {
    mixture_.emplace(mixed_files(examples), examples.files);
  }
  constexpr int64_t kMaxEpoch = int64_t{1} << 31;  // times the draws of a file it must not overflow
  const auto check = [](const char* name, int64_t value, int64_t end) {
    if (value < 0 || value >= end) {
      throw UserError("cursor.{} is {}, 0 to {} are possible with these data", name, value,
                      end - 1);
    }
  };
  check("epoch", cursor.epoch, kMaxEpoch);
  check("example", cursor.example, examples.size());
  set_order();
  check("offset", cursor.offset, examples_.length(current()));
}

Batch BatchStream::next() {
  Batch batch;
  for (int64_t row = 0; row < settings_.rows; ++row) {
    const auto before = static_cast<int64_t>(batch.ids.size());
    if (settings_.pack == Pack::kStream) {
      add_stream_row(batch);
    } else {
      add_example_row(batch);
    }
    batch.rows.push_back(static_cast<int64_t>(batch.ids.size()) - before);
  }
  return batch;
}

double BatchStream::rows_per_epoch() const {
  if (settings_.pack == Pack::kNone) {
    return static_cast<double>(examples_.size());
  }
  auto tokens = static_cast<double>(examples_.tokens());
  if (mixture_) {
    tokens = 0;
    for (size_t file = 0; file < examples_.ranges.size(); ++file) {
      const FileRange& range = examples_.ranges[file];
      tokens += static_cast<double>(range.tokens) * static_cast<double>(mixture_->draws(file)) /
                static_cast<double>(range.count);
    }
  }
  return tokens / static_cast<double>(settings_.seq_len);
}

void BatchStream::add_stream_row(Batch& batch) {
  std::vector<int32_t> labels;
  for (int64_t missing = settings_.seq_len; missing > 0;) {
    const int64_t example = current();
    const int64_t rest = examples_.length(example) - cursor_.offset;
    const int64_t taken = std::min(missing, rest);
    const auto from = cursor_.offset, to = cursor_.offset + taken;
    examples_.store->add_ids(example, from, to, batch.ids);
    examples_.store->add_labels(example, from, to, labels);
    missing -= taken;
    cursor_.offset = to;
    if (settings_.mask == PackMask::kDoc) {
      finish_row(batch, labels);
      labels.clear();
    }
    if (taken == rest) {
      advance_example();
    }
  }
  if (settings_.mask == PackMask::kCausal) {
    finish_row(batch, labels);
  }
}

void BatchStream::add_example_row(Batch& batch) {
  const int64_t example = current(), length = examples_.length(example);
  std::vector<int32_t> labels;
  examples_.store->add_ids(example, 0, length, batch.ids);
  examples_.store->add_labels(example, 0, length, labels);
  finish_row(batch, labels);
  advance_example();
}

int64_t BatchStream::current() const { return order_[static_cast<size_t>(cursor_.example)]; }

void BatchStream::advance_example() {
  cursor_.offset = 0;
  if (++cursor_.example == static_cast<int64_t>(order_.size())) {
    cursor_.example = 0;
    ++cursor_.epoch;
    set_order();
  }
}

void BatchStream::set_order() {
  const int64_t count = examples_.size();
  if (mixture_) {
    order_ = mixture_->order(settings_.shuffle, settings_.seed, cursor_.epoch);
  } else if (settings_.shuffle) {
    order_ = shuffled_order(count, settings_.seed, cursor_.epoch);
  } else if (order_.empty()) {
    order_.resize(static_cast<size_t>(count));
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }
}

}  // namespace moe::data
