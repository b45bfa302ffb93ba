// top_k_plan.h on CUDA, in five kernels.
//
//   range    one thread per token: finds the first and last token of each rank. In training the
//            tokens of a rank are contiguous, so that a group reads only the tokens of its rank
//   order    one block per part of a group's tokens: collects the requests of each segment (one
//            choice, all choices, or the fill-ins) and sorts them by score
//   place    one block per part: finds the positions of its requests in the group by binary search
//            in the sorted lists of the other parts. Counts the rows of each token. Runs within
//            `order` if a group has a single part
//   missing  one thread per token: counts the tokens to rectify of each part
//   write    one block per part: writes its rows
//
// The number of accepted requests of each segment follows from `requested` and the capacity; each
// block computes from it where its rows start. Atomics add integers only: plans are deterministic.

#include <cstddef>

#include "kernels/cuda/radix_sort.cuh"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

struct Scratch {
  uint32_t *key, *value;              // [T * (k + 1)], requests of the parts, sorted
  uint32_t *other_key, *other_value;  // [T * (k + 1)], scratch of the sort
  uint32_t* group_values;             // [T * (k + 1)], values of the groups' requests, sorted
  int32_t* num_rows;                  // [T], rows of each token
  int32_t *begin_from_end, *end;      // [W], T - begin, and end, of a rank's tokens; 0: none
  int32_t* list_size;                 // number of requests in the lists
  int32_t* missing;                   // [E * W * parts], tokens to rectify
  int32_t *list_start, *list_count;   // [E * W * parts, k + 1], requests of each segment
};

// Argument of all kernels.
struct Problem {
  TopKPlanShape shape;
  TopKPlanInput in;
  Scratch scratch;
  int parts;  // into which each group's tokens are divided
};

// Requests that are sorted together: choices first .. last - 1.
struct Segment {
  int first, last;
};

__device__ int num_segments(const TopKPlanShape& shape) {
  return (shape.by_score ? 1 : static_cast<int>(shape.k)) + (shape.fill ? 1 : 0);
}

__device__ Segment segment_at(const TopKPlanShape& shape, int index) {
  const int k = static_cast<int>(shape.k);
  if (!shape.by_score) {
    return {index, index + 1};
  }
  return index == 0 ? Segment{0, k} : Segment{k, k + 1};
}

// Calls each(index, number of requests, number of accepted requests, is_overflow) for the segments
// of a group in order. is_overflow: refused requests are overflow, unlike refused fill-ins.
template <typename Each>
__device__ void for_each_segment(const Problem& p, int64_t group, Each each) {
  int free = p.in.capacity[group % p.shape.ranks];
  for (int index = 0; index < num_segments(p.shape); ++index) {
    const Segment segment = segment_at(p.shape, index);
    int requests = 0;
    for (int c = segment.first; c < segment.last; ++c) {
      requests += p.in.requested[c * p.shape.experts * p.shape.ranks + group];
    }
    const int accepted = requests < free ? requests : free;
    free -= accepted;
    each(index, requests, accepted, segment.first < p.shape.k);
  }
}

struct Totals {
  int requests, accepted, overflow;
};

__device__ Totals group_totals(const Problem& p, int64_t group) {
  Totals all = {0, 0, 0};
  for_each_segment(p, group, [&](int, int requests, int accepted, bool is_overflow) {
    all.requests += requests;
    all.accepted += accepted;
    all.overflow += is_overflow ? requests - accepted : 0;
  });
  return all;
}

// Part `index` of the tokens of a group's rank, in token order.
struct Part {
  int64_t group;
  int index;
};

__device__ Part block_part(const Problem& p) {
  return {blockIdx.x / p.parts, static_cast<int>(blockIdx.x % p.parts)};
}

struct Range {
  int64_t begin, end;
};

__device__ int64_t first_token(const Problem& p, int64_t rank) {
  return p.shape.tokens - p.scratch.begin_from_end[rank];
}

// Returns the maximum number of tokens in a part of a rank.
__device__ int64_t part_tokens(const Problem& p, int64_t rank) {
  const int64_t tokens = p.scratch.end[rank] - first_token(p, rank);
  return tokens > 0 ? ceil_div(tokens, p.parts) : 1;
}

__device__ Range part_range(const Problem& p, const Part& own) {
  const int64_t rank = own.group % p.shape.ranks, end = p.scratch.end[rank];
  const int64_t size = part_tokens(p, rank), begin = first_token(p, rank) + own.index * size;
  return {begin, begin + size < end ? begin + size : end};
}

__global__ void __launch_bounds__(kThreads) range_kernel(Problem p) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t >= p.shape.tokens || p.in.source_rank[t] >= p.shape.ranks) {
    return;
  }
  const int rank = p.in.source_rank[t];  // few atomics: tokens of a rank are mostly contiguous
  if (t == 0 || p.in.source_rank[t - 1] != rank) {
    atomicMax(p.scratch.begin_from_end + rank, static_cast<int32_t>(p.shape.tokens - t));
  }
  if (t + 1 == p.shape.tokens || p.in.source_rank[t + 1] != rank) {
    atomicMax(p.scratch.end + rank, static_cast<int32_t>(t + 1));
  }
}

// Returns the totals of all groups before `own.group` to all threads of the block. With
// `missing`, `accepted` includes the tokens to rectify.
__device__ Totals totals_before(const Problem& p, const int32_t* missing, const Part& own,
                                int* part) {
  Totals sum = {0, 0, 0};
  for (int64_t group = threadIdx.x; group < own.group; group += blockDim.x) {
    const Totals other = group_totals(p, group);
    sum.requests += other.requests;
    sum.accepted += other.accepted;
    sum.overflow += other.overflow;
  }
  for (int64_t i = threadIdx.x; missing != nullptr && i < own.group * p.parts; i += blockDim.x) {
    sum.accepted += missing[i];
  }
  return {block_sum(sum.requests, part), block_sum(sum.accepted, part),
          block_sum(sum.overflow, part)};
}

// Returns the choice of the segment by which token t requests the expert of the group, or -1.
__device__ int find_choice(const Problem& p, int64_t t, int64_t group, const Segment& segment) {
  const TopKPlanShape& shape = p.shape;
  if (t >= shape.tokens || p.in.source_rank[t] != group % shape.ranks) {
    return -1;
  }
  for (int c = segment.first; c < segment.last; ++c) {
    if (p.in.choice[t * shape.choices + c] == group / shape.ranks) {
      return c;
    }
  }
  return -1;
}

// Returns the number of requests of the segment by `tokens`, to all threads of the block.
__device__ int count_requests(const Problem& p, int64_t group, const Segment& segment,
                              const Range& tokens, int* part) {
  int count = 0;
  for (int64_t t = tokens.begin + threadIdx.x; t < tokens.end; t += kSortThreads) {
    count += find_choice(p, t, group, segment) >= 0 ? 1 : 0;
  }
  return block_sum(count, part);
}

// Writes the requests of the segment by `tokens` to `list`, in token order. Keys ascend with
// descending score; values are token * C + choice.
__device__ void collect(const Problem& p, int64_t group, const Segment& segment,
                        const Range& tokens, const KeyList& list, int* part) {
  int start = 0;
  for (int64_t first = tokens.begin; first < tokens.end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const int choice = t < tokens.end ? find_choice(p, t, group, segment) : -1;
    int total = 0;
    const int slot = start + count_before(choice >= 0, part, &total);
    if (choice >= 0) {
      const float score = p.in.scores[t * p.shape.experts + group / p.shape.ranks];
      list.key[slot] = ~order_key(__float_as_uint(score));
      list.value[slot] = static_cast<uint32_t>(t * p.shape.choices + choice);
    }
    start += total;
  }
  __syncthreads();
}

// Returns the number of keys < `key` (<= `key` with `or_equal`) in an ascending list.
__device__ int keys_before(const uint32_t* keys, int count, uint32_t key, bool or_equal) {
  int begin = 0, end = count;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    const bool is_before = or_equal ? keys[middle] <= key : keys[middle] < key;
    begin = is_before ? middle + 1 : begin;
    end = is_before ? end : middle;
  }
  return begin;
}

// Returns the number of requests in other parts of the group that are ordered before a key of this
// part. Equal keys are ordered by token.
__device__ int before_in_others(const Problem& p, const Part& own, int index, uint32_t key) {
  const Scratch& scratch = p.scratch;
  int before = 0;
  for (int other = 0; other < p.parts; ++other) {
    const int64_t at = (own.group * p.parts + other) * (p.shape.k + 1) + index;
    if (other != own.index) {
      before += keys_before(scratch.key + scratch.list_start[at], scratch.list_count[at], key,
                            other < own.index);
    }
  }
  return before;
}

// Writes the requests of the part to their positions in the group and counts the rows of each
// token.
__device__ void place_requests(const Problem& p, const Part& own, int* part) {
  const Scratch& scratch = p.scratch;
  int64_t start = totals_before(p, nullptr, own, part).requests;  // start of the segment
  for_each_segment(p, own.group, [&](int index, int requests, int accepted, bool) {
    const int64_t at = blockIdx.x * (p.shape.k + 1) + index;
    const int first = scratch.list_start[at], count = scratch.list_count[at];
    for (int i = threadIdx.x; i < count; i += kSortThreads) {
      const int slot = i + before_in_others(p, own, index, scratch.key[first + i]);
      const uint32_t value = scratch.value[first + i];
      scratch.group_values[start + slot] = value;
      if (slot < accepted) {
        atomicAdd(scratch.num_rows + value / p.shape.choices, 1);
      }
    }
    start += requests;
  });
}

__global__ void __launch_bounds__(kSortThreads) order_kernel(Problem p) {
  __shared__ SortSpace space;
  __shared__ int part[kSortWarps];
  __shared__ int start;
  const Scratch& scratch = p.scratch;
  const Part own = block_part(p);
  for (int index = 0; index < num_segments(p.shape); ++index) {
    const Segment segment = segment_at(p.shape, index);
    const Range tokens = part_range(p, own);
    const int count = count_requests(p, own.group, segment, tokens, part);
    if (threadIdx.x == 0) {
      const int64_t at = blockIdx.x * (p.shape.k + 1) + index;
      start = atomicAdd(scratch.list_size, count);
      scratch.list_start[at] = start;
      scratch.list_count[at] = count;
    }
    __syncthreads();
    const KeyList list{scratch.key + start, scratch.value + start};
    const KeyList other{scratch.other_key + start, scratch.other_value + start};
    collect(p, own.group, segment, tokens, list, part);
    sort_list(list, other, count, space);
  }
  if (p.parts == 1) {
    place_requests(p, own, part);
  }
}

__global__ void __launch_bounds__(kSortThreads) place_kernel(Problem p) {
  __shared__ int part[kSortWarps];
  place_requests(p, block_part(p), part);
}

__global__ void __launch_bounds__(kThreads) missing_kernel(Problem p) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < p.shape.tokens && p.in.source_rank[t] < p.shape.ranks &&
      p.scratch.num_rows[t] < p.shape.k) {
    const int64_t rank = p.in.source_rank[t], group = p.in.local_choice[t] * p.shape.ranks + rank;
    const int64_t part = (t - first_token(p, rank)) / part_tokens(p, rank);
    atomicAdd(p.scratch.missing + group * p.parts + part, 1);
  }
}

// Writes unused rows and the number of rows of each expert. Runs in the blocks after the last
// group.
__device__ void write_rest(const Problem& p, const TopKPlanRows& to, const Totals& used,
                           const Part& own) {
  const TopKPlanShape& shape = p.shape;
  const int64_t first = own.index * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = p.parts * int64_t{blockDim.x}, expert_parts = shape.ranks * p.parts;
  for (int64_t row = used.accepted + first; row < to.rows_max; row += step) {
    write_row(to, row, 0, shape.experts, 0, 0);
  }
  for (int64_t row = used.overflow + first; row < to.overflow_max; row += step) {
    write_overflow(to, row, 0, shape.experts, 0);
  }
  for (int64_t expert = first; expert < shape.experts; expert += step) {
    int64_t rows = 0;
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      rows += group_totals(p, expert * shape.ranks + rank).accepted;
    }
    for (int64_t part = expert * expert_parts; part < (expert + 1) * expert_parts; ++part) {
      rows += p.scratch.missing[part];
    }
    to.rows[expert] = rows;
  }
}

// Writes the rows of the tokens of the part that are rectified in its group, in token order. `row`
// is the first such row of the group.
__device__ void write_rectified(const Problem& p, const TopKPlanRows& to, const Part& own,
                                int64_t row, int* part) {
  const TopKPlanShape& shape = p.shape;
  const int64_t expert = own.group / shape.ranks, rank = own.group % shape.ranks;
  const Range tokens = part_range(p, own);
  for (int other = 0; other < own.index; ++other) {
    row += p.scratch.missing[own.group * p.parts + other];
  }
  for (int64_t first = tokens.begin; first < tokens.end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const bool is_rectified = t < tokens.end && p.in.source_rank[t] == rank &&
                              p.in.local_choice[t] == expert && p.scratch.num_rows[t] < shape.k;
    int total = 0;
    const int before = count_before(is_rectified, part, &total);
    if (is_rectified) {
      write_row(to, row + before, t, expert, shape.k + 1, shape.k - p.scratch.num_rows[t]);
    }
    row += total;
  }
}

__global__ void __launch_bounds__(kSortThreads) write_kernel(Problem p, TopKPlanRows to) {
  __shared__ int part[kSortWarps];
  const TopKPlanShape& shape = p.shape;
  const Part own = block_part(p);
  const Totals before = totals_before(p, p.scratch.missing, own, part);
  if (own.group == shape.experts * shape.ranks) {
    write_rest(p, to, before, own);
    return;
  }
  const int64_t expert = own.group / shape.ranks;
  int64_t start = before.requests, row = before.accepted, overflow = before.overflow;
  for_each_segment(p, own.group, [&](int, int requests, int accepted, bool is_overflow) {
    for (int i = own.index * kSortThreads + static_cast<int>(threadIdx.x); i < requests;
         i += p.parts * kSortThreads) {
      const int64_t token = p.scratch.group_values[start + i] / shape.choices;
      const int64_t choice = p.scratch.group_values[start + i] % shape.choices;
      if (i < accepted) {
        write_row(to, row + i, token, expert, choice, 1);
      } else if (is_overflow) {
        write_overflow(to, overflow + i - accepted, token, expert, choice);
      }
    }
    row += accepted;
    overflow += is_overflow ? requests - accepted : 0;
    start += requests;
  });
  if (shape.rectify) {
    write_rectified(p, to, own, row, part);
  }
}

// Divides the scratch into arrays. num_rows .. missing must be zero before the kernels run.
Scratch partition_scratch(int32_t* scratch, const TopKPlanShape& shape) {
  const int64_t max_requests = shape.tokens * (shape.k + 1), ranks = shape.ranks;
  const int64_t blocks = shape.experts * ranks * top_k_plan_parts(shape);
  const auto take = [&](int64_t count) {
    scratch += count;
    return scratch - count;
  };
  const auto take_list = [&] { return reinterpret_cast<uint32_t*>(take(max_requests)); };
  Scratch pieces = {};
  pieces.key = take_list();
  pieces.value = take_list();
  pieces.other_key = take_list();
  pieces.other_value = take_list();
  pieces.group_values = take_list();
  pieces.num_rows = take(shape.tokens);
  pieces.begin_from_end = take(ranks);
  pieces.end = take(ranks);
  pieces.list_size = take(1);
  pieces.missing = take(blocks);
  pieces.list_start = take(blocks * (shape.k + 1));
  pieces.list_count = take(blocks * (shape.k + 1));
  return pieces;
}

}  // namespace

void top_k_plan_cuda(const TopKPlanArgs& args, void* stream) {
  const TopKPlanShape& shape = args.shape;
  const int64_t groups = shape.experts * shape.ranks, per_token = ceil_div(shape.tokens, kThreads);
  const int parts = static_cast<int>(top_k_plan_parts(shape));
  const Problem problem{shape, args.in, partition_scratch(args.scratch, shape), parts};
  const Scratch& scratch = problem.scratch;
  const int64_t zeros = scratch.list_start - scratch.num_rows;
  set_bytes(scratch.num_rows, 0, zeros, stream);
  launch(range_kernel, per_token, kThreads, stream, problem);
  launch(order_kernel, groups * parts, kSortThreads, stream, problem);
  if (parts > 1) {
    launch(place_kernel, groups * parts, kSortThreads, stream, problem);
  }
  if (shape.rectify) {
    launch(missing_kernel, per_token, kThreads, stream, problem);
  }
  launch(write_kernel, (groups + 1) * parts, kSortThreads, stream, problem, args.out);
}

}  // namespace moe::kernels
