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

// Where each file's examples stand; they are in file order.
std::vector<MixedFile> mixed_files(const Examples& examples) {
  std::vector<MixedFile> files(examples.files.size());
  for (size_t index = 0; index < files.size(); ++index) {
    files[index].weight = examples.weights.at(index);
  }
  for (size_t index = 0; index < examples.items.size(); ++index) {
    MixedFile& file = files.at(static_cast<size_t>(examples.items[index].file));
    if (file.count++ == 0) {
      file.begin = static_cast<int64_t>(index);
    }
  }
  return files;
}

}  // namespace

BatchStream::BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor)
    : examples_(examples), settings_(settings), cursor_(cursor) {
  MOE_CHECK(!examples.items.empty() && settings.rows > 0 && settings.seq_len > 1);
  for (const auto& example : examples.items) {
    const auto length = static_cast<int64_t>(example.ids.size());
    if (settings.pack == Pack::kNone && length > settings.seq_len) {
      throw UserError(
          "{}: the example has {} tokens, --seq-len is {}; raise it, shorten the example or use "
          "--pack stream",
          examples.where(example),
          length,
          settings.seq_len);
    }
  }
  if (!examples.weights.empty()) {
    mixture_.emplace(mixed_files(examples), examples.files);
  }
  set_order();
  const auto count = static_cast<int64_t>(examples.items.size());
  MOE_CHECK(cursor.epoch >= 0 && cursor.example >= 0 && cursor.example < count &&
            cursor.offset >= 0);
  MOE_CHECK(cursor.offset < static_cast<int64_t>(current().ids.size()));
}

Batch BatchStream::next() {
  Batch batch;
  for (int64_t row = 0; row < settings_.rows; ++row) {
    if (settings_.pack == Pack::kStream) {
      add_stream_row(batch);
    } else {
      add_example_row(batch);
    }
  }
  return batch;
}

double BatchStream::rows_per_epoch() const {
  if (settings_.pack == Pack::kNone) {
    return static_cast<double>(examples_.items.size());
  }
  auto tokens = static_cast<double>(examples_.tokens());
  if (mixture_) {
    tokens = 0;
    const std::vector<MixedFile> files = mixed_files(examples_);
    for (const auto& example : examples_.items) {
      const auto file = static_cast<size_t>(example.file);
      tokens += static_cast<double>(example.ids.size()) *
                static_cast<double>(mixture_->draws(file)) / static_cast<double>(files[file].count);
    }
  }
  return tokens / static_cast<double>(settings_.seq_len);
}

void BatchStream::add_stream_row(Batch& batch) {
  std::vector<int32_t> labels;
  for (int64_t missing = settings_.seq_len; missing > 0;) {
    const Example& example = current();
    const int64_t rest = static_cast<int64_t>(example.ids.size()) - cursor_.offset;
    const int64_t taken = std::min(missing, rest);
    const auto from = cursor_.offset, to = cursor_.offset + taken;
    batch.ids.insert(batch.ids.end(), example.ids.begin() + from, example.ids.begin() + to);
    labels.insert(labels.end(), example.labels.begin() + from, example.labels.begin() + to);
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
  const Example& example = current();
  batch.ids.insert(batch.ids.end(), example.ids.begin(), example.ids.end());
  finish_row(batch, example.labels);
  advance_example();
}

const Example& BatchStream::current() const {
  return examples_.items[static_cast<size_t>(order_[static_cast<size_t>(cursor_.example)])];
}

void BatchStream::advance_example() {
  cursor_.offset = 0;
  if (++cursor_.example == static_cast<int64_t>(order_.size())) {
    cursor_.example = 0;
    ++cursor_.epoch;
    set_order();
  }
}

void BatchStream::set_order() {
  const auto count = static_cast<int64_t>(examples_.items.size());
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
