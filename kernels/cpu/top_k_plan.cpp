// top_k_plan.h on the CPU. The requests of a group are stored in one list per segment: one choice
// (all choices with by_score), or the fill-ins. Threads process blocks of tokens (collect, rectify)
// and lists (sort, write). The output position of a block or list follows from the counts of all
// earlier ones, so that the plan does not depend on the number of threads.

#include "kernels/ops/top_k_plan.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

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
        block_tokens_(block_tokens(shape_.tokens, groups_ * segments_)),
        blocks_((shape_.tokens + block_tokens_ - 1) / block_tokens_),
        start_(static_cast<size_t>(lists() + 1)),
        fits_(static_cast<size_t>(lists())),
        served_(static_cast<size_t>(shape_.rectify ? shape_.tokens : 0)) {}

  void run() {
    collect();
    share_capacity();
    for_each_list([&](int64_t list) { sort(list); });
    if (shape_.rectify) {
      count_missing();
    }
    place_lists();
    for_each_list([&](int64_t list) { write(list); });
    if (shape_.rectify) {
      write_rectified();
    }
    write_unused();
  }

 private:
  // Returns the tokens per block: at least 512 (some microseconds), and enough that all blocks
  // together have at most 2^18 counters.
  static int64_t block_tokens(int64_t tokens, int64_t lists) {
    constexpr int64_t kTokens = 512, kCounts = int64_t{1} << 18;
    const int64_t max_blocks = std::max<int64_t>(1, kCounts / std::max<int64_t>(1, lists));
    return std::max(kTokens, (tokens + max_blocks - 1) / max_blocks);
  }

  int64_t lists() const { return groups_ * segments_; }
  int64_t length(int64_t list) const {
    return start_[static_cast<size_t>(list + 1)] - start_[static_cast<size_t>(list)];
  }
  // Returns true if refused requests of the list are overflow: not for fill-ins.
  bool overflows(int64_t list) const { return !shape_.fill || list % segments_ + 1 < segments_; }

  // Calls each(block, first token, end token) in parallel, unless there are few blocks.
  template <typename Each>
  void for_each_block(Each each) const {
    constexpr int64_t kBlocks = 8;
    at::parallel_for(0, blocks_, kBlocks, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        each(block, block * block_tokens_, std::min(shape_.tokens, (block + 1) * block_tokens_));
      }
    });
  }

  // Calls each(list) in parallel, unless there are few requests.
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

  // Calls each(token, choice, list) for the requests of tokens begin .. end - 1, in order.
  template <typename Each>
  void for_each_request(int64_t begin, int64_t end, Each each) const {
    const int64_t choices = shape_.k + (shape_.fill ? 1 : 0);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t rank = in_.source_rank[t];
      for (int64_t c = 0; c < choices && rank < shape_.ranks; ++c) {
        const int64_t group = in_.choice[t * shape_.choices + c] * shape_.ranks + rank;
        const int64_t segment = !shape_.by_score ? c : c < shape_.k ? 0 : 1;
        each(t, c, group * segments_ + segment);
      }
    }
  }

  // Returns a key that sorts by descending score, then by token. The lower half is token * C +
  // choice.
  uint64_t request_key(int64_t t, int64_t c) const {
    const int32_t expert = in_.choice[t * shape_.choices + c];
    const float score = in_.scores[t * shape_.experts + expert];
    const uint32_t key = ~order_key(std::bit_cast<uint32_t>(score));
    return uint64_t{key} << 32 | static_cast<uint64_t>(t * shape_.choices + c);
  }
  int64_t key_token(uint64_t key) const {
    return static_cast<int64_t>(key & 0xffffffffU) / shape_.choices;
  }

  // Collects the requests of each list in token order.
  void collect() {
    std::vector<int64_t> next(static_cast<size_t>(blocks_ * lists()));  // counts, then positions
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* count = next.data() + block * lists();
      for_each_request(begin, end, [&](int64_t, int64_t, int64_t list) { ++count[list]; });
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
      int64_t* position = next.data() + block * lists();
      for_each_request(begin, end, [&](int64_t t, int64_t c, int64_t list) {
        keys_[static_cast<size_t>(position[list]++)] = request_key(t, c);
      });
    });
  }

  // Sets fits_: the segments of a group use its capacity in order.
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

  // Sorts a list and counts the rows of each token.
  void sort(int64_t list) {
    uint64_t* keys = keys_.get() + start_[static_cast<size_t>(list)];
    std::sort(keys, keys + length(list));
    for (int64_t i = 0; shape_.rectify && i < fits_[static_cast<size_t>(list)]; ++i) {
      const auto token = static_cast<size_t>(key_token(keys[i]));
      std::atomic_ref(served_[token]).fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Calls each(token, group) for the tokens to rectify of begin .. end - 1, in order.
  template <typename Each>
  void for_each_missing(int64_t begin, int64_t end, Each each) const {
    for (int64_t t = begin; t < end; ++t) {
      if (in_.source_rank[t] < shape_.ranks && served_[static_cast<size_t>(t)] < shape_.k) {
        each(t, in_.local_choice[t] * shape_.ranks + in_.source_rank[t]);
      }
    }
  }

  // Counts the tokens to rectify of each block and group.
  void count_missing() {
    missing_.resize(static_cast<size_t>(blocks_ * groups_));
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* count = missing_.data() + block * groups_;
      for_each_missing(begin, end, [&](int64_t, int64_t group) { ++count[group]; });
    });
  }

  // Converts the counts of lists and rectified tokens to output positions.
  void place_lists() {
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

  // Writes the rows and the overflow of a list.
  void write(int64_t list) const {
    const auto at = static_cast<size_t>(list);
    const uint64_t* keys = keys_.get() + start_[at];
    const int64_t expert = list / segments_ / shape_.ranks, fits = fits_[at];
    const int64_t last = overflows(list) ? length(list) : fits;
    for (int64_t i = 0; i < last; ++i) {
      const int64_t token = key_token(keys[i]);
      const auto choice = static_cast<int64_t>(keys[i] & 0xffffffffU) % shape_.choices;
      if (i < fits) {
        write_row(out_, row_[at] + i, token, expert, choice, 1);
      } else {
        write_overflow(out_, overflow_[at] + i - fits, token, expert, choice);
      }
    }
  }

  void write_rectified() {
    for_each_block([&](int64_t block, int64_t begin, int64_t end) {
      int64_t* next = missing_.data() + block * groups_;
      for_each_missing(begin, end, [&](int64_t t, int64_t group) {
        write_row(out_, next[group]++, t, group / shape_.ranks, shape_.k + 1,
                  shape_.k - served_[static_cast<size_t>(t)]);
      });
    });
  }

  void write_unused() const {
    constexpr int64_t kGrainRows = 4096;
    const int64_t max = std::max(out_.rows_max - used_, out_.overflow_max - refused_);
    at::parallel_for(0, std::max<int64_t>(0, max), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < std::min(end, out_.rows_max - used_); ++i) {
        write_row(out_, used_ + i, 0, shape_.experts, 0, 0);
      }
      for (int64_t i = begin; i < std::min(end, out_.overflow_max - refused_); ++i) {
        write_overflow(out_, refused_ + i, 0, shape_.experts, 0);
      }
    });
  }

  const TopKPlanShape& shape_;
  const TopKPlanInput& in_;
  const TopKPlanRows& out_;
  int64_t groups_, segments_;            // E * W; lists per group
  int64_t block_tokens_, blocks_;        // of T
  std::vector<int64_t> start_;           // [lists + 1], start of each list in keys_
  std::unique_ptr<uint64_t[]> keys_;     // requests of all lists
  std::vector<int64_t> fits_;            // [lists], accepted requests
  std::vector<int32_t> served_;          // [T], rows of each token, with rectify
  std::vector<int64_t> missing_;         // [blocks, groups], tokens to rectify, then row positions
  std::vector<int64_t> row_, overflow_;  // [lists], positions of accepted and refused requests
  int64_t used_ = 0, refused_ = 0;
};

}  // namespace

void top_k_plan_cpu(const TopKPlanArgs& args) { TopKPlanner(args).run(); }

}  // namespace moe::kernels
