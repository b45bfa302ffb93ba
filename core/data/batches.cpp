#include "core/data/batches.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"

namespace moe::data {

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Hashes the seed before the epoch is added, so that (1, 2) and (2, 1) are unrelated.
  SplitMix64 seeds(seed);
  SplitMix64 random(seeds.next() + static_cast<uint64_t>(epoch));
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

namespace {

// Returns the file of draw number `draw` (from 1), given the number of draws of each file so far.
// Of the files that would not get a whole example ahead it is the one with the earliest deadline.
size_t next_file(const std::vector<double>& shares, const std::vector<int64_t>& drawn,
                 int64_t draw) {
  const double margin = 1.0 / std::max(1.0, 2.0 * static_cast<double>(shares.size()) - 2.0);
  constexpr double kRounding = 1e-9;
  size_t chosen = 0;
  double earliest = std::numeric_limits<double>::infinity();
  for (size_t index = 0; index < shares.size(); ++index) {
    const double lack =
        shares[index] * static_cast<double>(draw) - static_cast<double>(drawn[index]);
    const double deadline = (1 - margin - lack) / shares[index];
    if (lack >= margin - kRounding && deadline < earliest) {
      earliest = deadline;
      chosen = index;
    }
  }
  MOE_CHECK(std::isfinite(earliest), "draw {}", draw);
  return chosen;
}

// Ends a sequence: appends its length and the shifted `labels` to the batch.
void finish_row(Batch& batch, const std::vector<int32_t>& labels) {
  for (size_t t = 1; t < labels.size(); ++t) {
    batch.targets.push_back(labels[t]);
    batch.target_count += labels[t] == kNoLoss ? 0 : 1;
  }
  batch.targets.push_back(kNoLoss);
  batch.lengths.push_back(static_cast<int64_t>(labels.size()));
}

}  // namespace

Mixture::Mixture(std::vector<MixedFile> files, const std::vector<std::string>& names)
    : files_(std::move(files)), draws_(files_.size(), 0) {
  MOE_CHECK(!files_.empty() && names.size() == files_.size());
  int64_t total = 0;
  double weights = 0;
  for (const auto& file : files_) {
    MOE_CHECK(file.count > 0 && file.weight > 0);
    total += file.count;
    weights += file.weight;
  }
  std::vector<double> shares;
  for (const auto& file : files_) {
    shares.push_back(file.weight / weights);
  }
  for (int64_t draw = 1; draw <= total; ++draw) {
    const size_t file = next_file(shares, draws_, draw);
    sequence_.push_back(file);
    ++draws_[file];
  }
  for (size_t index = 0; index < files_.size(); ++index) {
    USER_ERROR_IF(draws_[index] == 0,
                  "--data {}: a weight of {} among {} draws none of its examples in an epoch of "
                  "{}; raise it or leave the file out",
                  names[index], files_[index].weight, weights, total);
  }
}

std::vector<int64_t> Mixture::order(bool shuffle, uint64_t seed, int64_t epoch) const {
  struct Pass {
    int64_t next;  // draw of the file, counted from the first epoch
    int64_t shuffled = -1;
    std::vector<int64_t> order = {};  // of the pass `shuffled`
  };
  std::vector<Pass> passes;
  for (const int64_t draws : draws_) {
    passes.push_back({epoch * draws});
  }
  const uint64_t first_seed = SplitMix64(seed).next();
  std::vector<int64_t> order;
  order.reserve(sequence_.size());
  for (const size_t index : sequence_) {
    const MixedFile& file = files_[index];
    Pass& pass = passes[index];
    const int64_t number = pass.next / file.count, place = pass.next % file.count;
    ++pass.next;
    if (shuffle && number != pass.shuffled) {
      pass.order = shuffled_order(file.count, first_seed + index, number);
      pass.shuffled = number;
    }
    order.push_back(file.begin + (shuffle ? pass.order[static_cast<size_t>(place)] : place));
  }
  return order;
}

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
  part.target_count = last - first - std::ranges::count(part.targets, kNoLoss);
  return part;
}

BatchStream::BatchStream(const Examples& examples, const BatchSettings& settings, Cursor cursor)
    : examples_(examples), settings_(settings), cursor_(cursor) {
  MOE_CHECK(examples.size() > 0 && settings.rows > 0 && settings.seq_len > 1);
  FirstMessages overlong;
  for (int64_t index = 0; settings.pack == Pack::kNone && index < examples.size(); ++index) {
    if (examples.length(index) > settings.seq_len) {
      overlong.add(fmt::format("{}: the example has {} tokens", examples.where(index),
                               examples.length(index)));
    }
  }
  USER_ERROR_IF(overlong.count > 0,
                "{}, --seq-len is {} (examples above it: {}); raise it, use --overlong drop or "
                "truncate, or --pack stream",
                overlong.text(), settings.seq_len, overlong.count);
  if (!examples.weights.empty()) {
    std::vector<MixedFile> files;
    for (size_t index = 0; index < examples.ranges.size(); ++index) {
      const FileRange& range = examples.ranges[index];
      files.push_back({range.begin, range.count, examples.weights.at(index)});
    }
    mixture_.emplace(std::move(files), examples.files);
  }
  constexpr int64_t kMaxEpoch = int64_t{1} << 31;  // times the draws of a file: no overflow
  const auto check = [](const char* name, int64_t value, int64_t end) {
    USER_ERROR_IF(value < 0 || value >= end,
                  "cursor.{} is {}, 0 to {} are possible with these data", name, value, end - 1);
  };
  check("epoch", cursor.epoch, kMaxEpoch);
  check("example", cursor.example, examples.size());
  set_order();
  check("offset", cursor.offset, examples_.length(current_example()));
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
    const int64_t example = current_example();
    const int64_t rest = examples_.length(example) - cursor_.offset;
    const int64_t taken = std::min(missing, rest);
    examples_.store->append(example, cursor_.offset, cursor_.offset + taken, batch.ids, labels);
    missing -= taken;
    cursor_.offset += taken;
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
  const int64_t example = current_example(), length = examples_.length(example);
  std::vector<int32_t> labels;
  examples_.store->append(example, 0, length, batch.ids, labels);
  finish_row(batch, labels);
  advance_example();
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

StepLoader::StepLoader(BatchStream stream, int64_t batches_per_step)
    : stream_(std::move(stream)), batches_per_step_(batches_per_step) {
  MOE_CHECK(batches_per_step > 0);
  prefetch();
}

StepBatches StepLoader::next() {
  StepBatches step = next_.get();
  prefetch();
  return step;
}

void StepLoader::prefetch() {
  const auto make_step = [this] {
    StepBatches step;
    for (int64_t batch = 0; batch < batches_per_step_; ++batch) {
      step.batches.push_back(stream_.next());
    }
    step.cursor = stream_.cursor();
    return step;
  };
  next_ = std::async(std::launch::async, make_step);
}

}  // namespace moe::data
