#include "core/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/data/shuffle.h"

namespace moe::data {

namespace {

// The examples of one file, pass after pass, from any place on.
class Passes {
 public:
  Passes(const MixedFile& file, size_t index, bool shuffle, uint64_t seed, int64_t first)
      : file_(file), shuffle_(shuffle), next_(first) {
    // A seed of its own for each file: files of one length must not be shuffled alike.
    seed_ = SplitMix64(seed).next() + index;
  }

  int64_t next() {
    const int64_t pass = next_ / file_.count, place = next_ % file_.count;
    ++next_;
    if (!shuffle_) {
      return file_.begin + place;
    }
    if (pass != pass_) {
      order_ = shuffled_order(file_.count, seed_, pass);
      pass_ = pass;
    }
    return file_.begin + order_[static_cast<size_t>(place)];
  }

 private:
  MixedFile file_;
  bool shuffle_;
  uint64_t seed_;
  int64_t next_;
  int64_t pass_ = -1;
  std::vector<int64_t> order_;  // of pass_
};

// The file of draw number `draw` (from 1), `drawn` being what each has had before: of those that
// may draw without getting a whole example ahead, the one that would be the first to fall behind.
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
    turns_.push_back(file);
    ++draws_[file];
  }
  for (size_t index = 0; index < files_.size(); ++index) {
    if (draws_[index] == 0) {
      throw UserError(
          "--data {}: a weight of {} among {} draws none of its examples in an epoch of {}; raise "
          "it or leave the file out",
          names[index], files_[index].weight, weights, total);
    }
  }
}

std::vector<int64_t> Mixture::order(bool shuffle, uint64_t seed, int64_t epoch) const {
  std::vector<Passes> passes;
  for (size_t index = 0; index < files_.size(); ++index) {
    passes.emplace_back(files_[index], index, shuffle, seed, epoch * draws_[index]);
  }
  std::vector<int64_t> order;
  order.reserve(turns_.size());
  for (const size_t file : turns_) {
    order.push_back(passes[file].next());
  }
  return order;
}

}  // namespace moe::data
