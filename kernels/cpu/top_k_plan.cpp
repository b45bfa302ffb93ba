// top_k_plan.h on the CPU. The requests of a group stand in lists, one a segment: a choice, all
// choices, or the fill-ins. Threads take blocks of tokens to collect and to rectify, and lists to
// sort and to write; where a block or a list writes follows from the counts of those before it. So
// a plan is the same whatever their number, as no thread asks in which order the others came.

#include "kernels/ops/top_k_plan.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/ops/order_key.h"

namespace moe::kernels {

namespace {

class TopKPlanner {
 public:
  explicit TopKPlanner(const TopKPlanArgs& args)
      : shape_(args.shape),
        in_(args.in),
        out_(args.out),
        groups_(shape_.experts * shape_.ranks),
        segments_((shape_.by_score ? 1 : shape_.k) + (shape_.fill ? 1 : 0)),
        block_tokens_(tokens_of_block(shape_.tokens, groups_ * segments_)),
        blocks_((shape_.tokens + block_tokens_ - 1) / block_tokens_),
        start_(static_cast<size_t>(lists() + 1)),
        fits_(static_cast<size_t>(lists())),
        served_(static_cast<size_t>(shape_.rectify ? shape_.tokens : 0)) {}

  void run() {
    collect();
    share_capacity();
    for_each_list([&](int64_t list) { sort(list); });
    count_missing();
    place_rows();
    for_each_list([&](int64_t list) { write(list); });
    write_rectified();
    write_unused();
  }

 private:
  // Blocks take some microseconds, and their counts no more memory than the requests do.
  static int64_t tokens_of_block(int64_t tokens, int64_t lists) {
    constexpr int64_t kTokens = 512, kCounts = int64_t{1} << 18;
    const int64_t most_blocks = std::max<int64_t>(1, kCounts / std::max<int64_t>(1, lists));
    return std::max(kTokens, (tokens + most_blocks - 1) / most_blocks);
  }

  int64_t lists() const { return groups_ * segments_; }
  int64_t length(int64_t list) const {
    return start_[static_cast<size_t>(list + 1)] - start_[static_cast<size_t>(list)];
  }
  // A refused fill-in is no drop.
  bool overflows(int64_t list) const { return !shape_.fill || list % segments_ + 1 < segments_; }

  // Calls each(block, its first token, behind its last). A few blocks are not worth waking threads
  // for.
  template <typename Each>
  void for_each_block(Each each) const {
    constexpr int64_t kBlocks = 8;
    at::parallel_for(0, blocks_, kBlocks, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        each(block, block * block_tokens_, std::min(shape_.tokens, (block + 1) * block_tokens_));
      }
    });
  }

  // A few requests are not worth waking threads for.
  template <typename Each>
  void for_each_list(Each each) const {
    constexpr int64_t kFew = 1024;
    const int64_t grain = start_.back() < kFew ? std::max<int64_t>(1, lists()) : 1;
    at::parallel_for(0, lists(), grain, [&](int64_t first, int64_t last) {
      for (int64_t list = first; list < last; ++list) {
        each(list);
      }
    });
  }

  // Calls each(token, choice, list) for the requests of some tokens, in their order.
  template <typename Each>
  void for_each_request(int64_t begin, int64_t end, Each each) const {
    const int64_t asked = shape_.k + (shape_.fill ? 1 : 0);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t c = 0; c < asked && in_.home[t] < shape_.ranks; ++c) {
        const int64_t group = in_.choice[t * shape_.choices + c] * shape_.ranks + in_.home[t];
        const int64_t segment = !shape_.by_score ? c : c < shape_.k ? 0 : 1;
        each(t, c, group * segments_ + segment);
      }
    }
  }

  // Keys ascend where scores descend; of equal scores the earlier token's is lower. The lower half
  // is token * C + choice.
  uint64_t key_of(int64_t t, int64_t c) const {
    const int32_t expert = in_.choice[t * shape_.choices + c];
    const float score = in_.scores[t * shape_.experts + expert];
    const uint32_t key = ~order_key(std::bit_cast<uint32_t>(score));
    return uint64_t{key} << 32 | static_cast<uint64_t>(t * shape_.choices + c);
  }
  int64_t token_of(uint64_t key) const {
    return static_cast<int64_t>(key & 0xffffffffU) / shape_.choices;
  }

  // Every list's requests in token order.
  void collect() {
    std::vector<int64_t> next(static_cast<size_t>(blocks_ * lists()));  // counts, then places
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* own = next.data() + block * lists();
      for_each_request(begin, end, [&](int64_t, int64_t, int64_t list) { ++own[list]; });
    });
    int64_t total = 0;
    for (int64_t list = 0; list < lists(); ++list) {
      start_[static_cast<size_t>(list)] = total;
      for (int64_t block = 0; block < blocks_; ++block) {
        int64_t& count = next[static_cast<size_t>(block * lists() + list)];
        total += std::exchange(count, total);
      }
    }
    start_.back() = total;
    keys_ = std::make_unique_for_overwrite<uint64_t[]>(static_cast<size_t>(total));
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* own = next.data() + block * lists();
      for_each_request(begin, end, [&](int64_t t, int64_t c, int64_t list) {
        keys_[static_cast<size_t>(own[list]++)] = key_of(t, c);
      });
    });
  }

  // How many of each list its group accepts.
  void share_capacity() {
    for (int64_t group = 0; group < groups_; ++group) {
      int64_t free = in_.capacity[group % shape_.ranks];
      for (int64_t list = group * segments_; list < (group + 1) * segments_; ++list) {
        const int64_t fits = std::min(length(list), free);
        fits_[static_cast<size_t>(list)] = fits;
        free -= fits;
      }
    }
  }

  void sort(int64_t list) {
    uint64_t* keys = keys_.get() + start_[static_cast<size_t>(list)];
    std::sort(keys, keys + length(list));
    for (int64_t i = 0; shape_.rectify && i < fits_[static_cast<size_t>(list)]; ++i) {
      const auto token = static_cast<size_t>(token_of(keys[i]));
      std::atomic_ref(served_[token]).fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Calls each(token, group) for the tokens to rectify, in their order.
  template <typename Each>
  void for_each_missing(int64_t begin, int64_t end, Each each) const {
    for (int64_t t = begin; t < end; ++t) {
      if (in_.home[t] < shape_.ranks && served_[static_cast<size_t>(t)] < shape_.k) {
        each(t, in_.at_home[t] * shape_.ranks + in_.home[t]);
      }
    }
  }

  void count_missing() {
    missing_.resize(static_cast<size_t>(shape_.rectify ? blocks_ * groups_ : 0));
    if (shape_.rectify) {
      for_each_block([&](int64_t block, int64_t begin, int64_t end) {
        int64_t* own = missing_.data() + block * groups_;
        for_each_missing(begin, end, [&](int64_t, int64_t group) { ++own[group]; });
      });
    }
  }

  // Where each list and each block's rectified tokens go: counts become places.
  void place_rows() {
    std::fill_n(out_.rows, shape_.experts, 0);
    row_.resize(fits_.size());
    overflow_.resize(fits_.size());
    for (int64_t group = 0; group < groups_; ++group) {
      const int64_t first = used_;
      for (int64_t list = group * segments_; list < (group + 1) * segments_; ++list) {
        const auto at = static_cast<size_t>(list);
        row_[at] = used_;
        overflow_[at] = refused_;
        used_ += fits_[at];
        refused_ += overflows(list) ? length(list) - fits_[at] : 0;
      }
      for (int64_t block = 0; shape_.rectify && block < blocks_; ++block) {
        int64_t& count = missing_[static_cast<size_t>(block * groups_ + group)];
        used_ += std::exchange(count, used_);
      }
      out_.rows[group / shape_.ranks] += used_ - first;
    }
  }

  void write_row(int64_t row, int64_t token, int64_t expert, int64_t choice, int64_t count) const {
    out_.token[row] = token;
    out_.expert[row] = expert;
    out_.choice[row] = choice;
    out_.count[row] = count;
  }
  void write_overflow(int64_t row, int64_t token, int64_t expert, int64_t choice) const {
    if (row < out_.overflow_max) {
      out_.overflow_token[row] = token;
      out_.overflow_expert[row] = expert;
      out_.overflow_choice[row] = choice;
    }
  }

  void write(int64_t list) const {
    const auto at = static_cast<size_t>(list);
    const uint64_t* keys = keys_.get() + start_[at];
    const int64_t expert = list / segments_ / shape_.ranks, fits = fits_[at];
    const int64_t last = overflows(list) ? length(list) : fits;
    for (int64_t i = 0; i < last; ++i) {
      const int64_t token = token_of(keys[i]);
      const auto choice = static_cast<int64_t>(keys[i] & 0xffffffffU) % shape_.choices;
      if (i < fits) {
        write_row(row_[at] + i, token, expert, choice, 1);
      } else {
        write_overflow(overflow_[at] + i - fits, token, expert, choice);
      }
    }
  }

  void write_rectified() {
    if (!shape_.rectify) {
      return;
    }
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* next = missing_.data() + block * groups_;
      for_each_missing(begin, end, [&](int64_t t, int64_t group) {
        write_row(next[group]++, t, group / shape_.ranks, shape_.k + 1,
                  shape_.k - served_[static_cast<size_t>(t)]);
      });
    });
  }

  void write_unused() const {
    constexpr int64_t kGrainRows = 4096;
    const int64_t most = std::max(out_.rows_max - used_, out_.overflow_max - refused_);
    at::parallel_for(0, std::max<int64_t>(0, most), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < std::min(end, out_.rows_max - used_); ++i) {
        write_row(used_ + i, 0, shape_.experts, 0, 0);
      }
      for (int64_t i = begin; i < std::min(end, out_.overflow_max - refused_); ++i) {
        write_overflow(refused_ + i, 0, shape_.experts, 0);
      }
    });
  }

  const TopKPlanShape& shape_;
  const TopKPlanInput& in_;
  const TopKPlanRows& out_;
  int64_t groups_, segments_;         // E * W; lists of a group
  int64_t block_tokens_, blocks_;     // of T
  std::vector<int64_t> start_;        // [lists + 1] of each list in keys_
  std::unique_ptr<uint64_t[]> keys_;  // every list's requests
  std::vector<int64_t> fits_;         // [lists] requests that are accepted
  std::vector<int32_t> served_;       // [T] rows of each token, if any is to be rectified
  std::vector<int64_t> missing_;      // [blocks, groups] tokens to rectify, then their rows' places
  std::vector<int64_t> row_, overflow_;  // [lists] where its rows and its refused requests go
  int64_t used_ = 0, refused_ = 0;
};

}  // namespace

void top_k_plan_cpu(const TopKPlanArgs& args) { TopKPlanner(args).run(); }

}  // namespace moe::kernels
