// top_k_plan.h on CUDA, in five kernels.
//
//   range    one thread per token: finds the first and last token of each rank. In training the
//            tokens of a rank are contiguous, so that a group reads only the tokens of its rank
//   order    one block per part of a group's tokens: collects the requests, segment by segment (one
//            choice, all choices, or the fill-ins), and sorts each segment by score
//   place    one block per part: finds the positions of its requests in the group, by bisection in
//            the sorted lists of the other parts. Counts the rows of each token. Runs within
//            `order` if a group has a single part
//   missing  one thread per token: counts the tokens to rectify of each part
//   write    one block per part: writes its rows. Their positions follow from the counts of earlier
//            groups
//
// The number of accepted requests of each segment follows from `requested` and the capacity. Each
// block computes from it where its rows start. Atomics add integers only, so that their order does
// not affect the result. The lists of the parts are allocated in order of arrival; their order does
// not affect the result either.

#include <cstddef>

#include "kernels/cuda/radix_sort.cuh"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

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

__device__ int requests_in(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group,
                           const Segment& segment) {
  int count = 0;
  for (int c = segment.first; c < segment.last; ++c) {
    count += in.requested[c * shape.experts * shape.ranks + group];
  }
  return count;
}

struct Totals {
  int requests, accepted, refused;  // refused: of the first k choices
};

__device__ Totals group_totals(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group) {
  const int capacity = in.capacity[group % shape.ranks];
  Totals all = {0, 0, 0};
  for (int index = 0; index < num_segments(shape); ++index) {
    const Segment segment = segment_at(shape, index);
    const int requests = requests_in(shape, in, group, segment);
    const int free = capacity - all.accepted;
    const int accepted = requests < free ? requests : free;
    all.requests += requests;
    all.accepted += accepted;
    all.refused += segment.first < shape.k ? requests - accepted : 0;
  }
  return all;
}

// Part `index` of `count` of the tokens of a group's rank, in token order. The index of its block
// is group * count + index.
struct Part {
  int64_t group;
  int index, count;
};

__device__ Part block_part(int parts) {
  return {blockIdx.x / parts, static_cast<int>(blockIdx.x % parts), parts};
}

struct Scratch {
  uint32_t *key, *value;              // [T * (k + 1)], requests of the parts, sorted
  uint32_t *other_key, *other_value;  // [T * (k + 1)], scratch of the sort
  uint32_t* group_values;             // [T * (k + 1)], values of the groups' requests, sorted
  int32_t* served;                    // [T], rows of each token
  int32_t *before_end, *end;  // [W], T - first token of a rank; end of its tokens; 0: no token
  int32_t* listed;            // number of requests in the lists
  int32_t* missing;           // [E * W * parts], tokens to rectify
  int32_t *list_start, *list_count;  // [E * W * parts, k + 1], requests of each segment
};

struct Range {
  int64_t begin, end;
};

__device__ int64_t first_of_rank(const TopKPlanShape& shape, const Scratch& scratch, int64_t rank) {
  return shape.tokens - scratch.before_end[rank];
}

// Returns the maximum number of tokens in a part of a rank.
__device__ int64_t part_tokens(const TopKPlanShape& shape, const Scratch& scratch, int64_t rank,
                               int parts) {
  const int64_t tokens = scratch.end[rank] - first_of_rank(shape, scratch, rank);
  return tokens > 0 ? ceil_div(tokens, parts) : 1;
}

__device__ Range part_tokens_range(const TopKPlanShape& shape, const Scratch& scratch,
                                   const Part& part) {
  const int64_t rank = part.group % shape.ranks, end = scratch.end[rank];
  const int64_t each = part_tokens(shape, scratch, rank, part.count);
  const int64_t begin = first_of_rank(shape, scratch, rank) + part.index * each;
  return {begin, begin + each < end ? begin + each : end};
}

__global__ void __launch_bounds__(kThreads)
    range_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t >= shape.tokens || in.source_rank[t] >= shape.ranks) {
    return;
  }
  const int rank = in.source_rank[t];  // few atomics: tokens of a rank are mostly contiguous
  if (t == 0 || in.source_rank[t - 1] != rank) {
    atomicMax(scratch.before_end + rank, static_cast<int32_t>(shape.tokens - t));
  }
  if (t + 1 == shape.tokens || in.source_rank[t + 1] != rank) {
    atomicMax(scratch.end + rank, static_cast<int32_t>(t + 1));
  }
}

// Returns the totals of all groups before that of the block, to all threads of the block. With
// `missing`, `accepted` includes the tokens to rectify.
__device__ Totals totals_before(const TopKPlanShape& shape, const TopKPlanInput& in,
                                const int32_t* missing, const Part& own, int* part) {
  Totals sum = {0, 0, 0};
  for (int64_t other = threadIdx.x; other < own.group; other += blockDim.x) {
    const Totals its = group_totals(shape, in, other);
    sum.requests += its.requests;
    sum.accepted += its.accepted;
    sum.refused += its.refused;
  }
  for (int64_t other = threadIdx.x; missing != nullptr && other < own.group * own.count;
       other += blockDim.x) {
    sum.accepted += missing[other];
  }
  return {block_sum(sum.requests, part), block_sum(sum.accepted, part),
          block_sum(sum.refused, part)};
}

// Returns the choice of the segment by which token t requests the expert of the group, or -1.
__device__ int choice_for(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t t,
                          int64_t group, const Segment& segment) {
  if (t >= shape.tokens || in.source_rank[t] != group % shape.ranks) {
    return -1;
  }
  for (int c = segment.first; c < segment.last; ++c) {
    if (in.choice[t * shape.choices + c] == group / shape.ranks) {
      return c;
    }
  }
  return -1;
}

// Returns the number of requests of the segment by tokens of the part, to all threads of the block.
__device__ int count_requests(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group,
                              const Segment& segment, const Range& tokens, int* part) {
  int count = 0;
  for (int64_t t = tokens.begin + threadIdx.x; t < tokens.end; t += kSortThreads) {
    count += choice_for(shape, in, t, group, segment) >= 0 ? 1 : 0;
  }
  return block_sum(count, part);
}

// Writes the requests of count_requests() to `list`, in token order. Keys ascend with descending
// score; values are token * C + choice.
__device__ void collect(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group,
                        const Segment& segment, const Range& tokens, const KeyList& list,
                        int* part) {
  int found = 0;
  for (int64_t first = tokens.begin; first < tokens.end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const int choice = t < tokens.end ? choice_for(shape, in, t, group, segment) : -1;
    int total = 0;
    const int slot = found + count_before(choice >= 0, part, &total);
    if (choice >= 0) {
      const float score = in.scores[t * shape.experts + group / shape.ranks];
      list.key[slot] = ~order_key(__float_as_uint(score));
      list.value[slot] = static_cast<uint32_t>(t * shape.choices + choice);
    }
    found += total;
  }
  __syncthreads();
}

// Returns the number of keys < `key` (<= `key` with `equal`) in an ascending list.
__device__ int keys_before(const uint32_t* keys, int count, uint32_t key, bool equal) {
  int begin = 0, end = count;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    const bool is_before = equal ? keys[middle] <= key : keys[middle] < key;
    begin = is_before ? middle + 1 : begin;
    end = is_before ? end : middle;
  }
  return begin;
}

// Returns the number of requests in other parts of the group that are ordered before a key of this
// part. Equal keys are ordered by token.
__device__ int before_in_others(const TopKPlanShape& shape, const Scratch& scratch, const Part& own,
                                int index, uint32_t key) {
  int before = 0;
  for (int other = 0; other < own.count; ++other) {
    const int64_t at = (own.group * own.count + other) * (shape.k + 1) + index;
    if (other != own.index) {
      before += keys_before(scratch.key + scratch.list_start[at], scratch.list_count[at], key,
                            other < own.index);
    }
  }
  return before;
}

// Writes the requests of the part to their positions in the group and counts the rows of each
// token.
__device__ void place_requests(const TopKPlanShape& shape, const TopKPlanInput& in,
                               const Scratch& scratch, const Part& own, int* part) {
  int64_t start = totals_before(shape, in, nullptr, own, part).requests;  // start of the segment
  int accepted = 0;
  const int capacity = in.capacity[own.group % shape.ranks];
  for (int index = 0; index < num_segments(shape); ++index) {
    const int requests = requests_in(shape, in, own.group, segment_at(shape, index));
    const int free = capacity - accepted;
    const int fits = requests < free ? requests : free;
    const int64_t at = blockIdx.x * (shape.k + 1) + index;
    const int first = scratch.list_start[at], count = scratch.list_count[at];
    for (int i = threadIdx.x; i < count; i += kSortThreads) {
      const int slot = i + before_in_others(shape, scratch, own, index, scratch.key[first + i]);
      const uint32_t value = scratch.value[first + i];
      scratch.group_values[start + slot] = value;
      if (slot < fits) {
        atomicAdd(scratch.served + value / shape.choices, 1);
      }
    }
    accepted += fits;
    start += requests;
  }
}

__global__ void __launch_bounds__(kSortThreads)
    order_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch, int parts) {
  __shared__ SortSpace space;
  __shared__ int part[kSortWarps];
  __shared__ int start;
  const Part own = block_part(parts);
  for (int index = 0; index < num_segments(shape); ++index) {
    const Segment segment = segment_at(shape, index);
    const Range tokens = part_tokens_range(shape, scratch, own);
    const int count = count_requests(shape, in, own.group, segment, tokens, part);
    if (threadIdx.x == 0) {
      const int64_t at = blockIdx.x * (shape.k + 1) + index;
      start = atomicAdd(scratch.listed, count);
      scratch.list_start[at] = start;
      scratch.list_count[at] = count;
    }
    __syncthreads();
    const KeyList list{scratch.key + start, scratch.value + start};
    const KeyList other{scratch.other_key + start, scratch.other_value + start};
    collect(shape, in, own.group, segment, tokens, list, part);
    sort_list(list, other, count, space);
  }
  if (parts == 1) {
    place_requests(shape, in, scratch, own, part);
  }
}

__global__ void __launch_bounds__(kSortThreads)
    place_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch, int parts) {
  __shared__ int part[kSortWarps];
  place_requests(shape, in, scratch, block_part(parts), part);
}

__global__ void __launch_bounds__(kThreads)
    missing_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch, int parts) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < shape.tokens && in.source_rank[t] < shape.ranks && scratch.served[t] < shape.k) {
    const int64_t rank = in.source_rank[t], group = in.local_choice[t] * shape.ranks + rank;
    const int64_t part =
        (t - first_of_rank(shape, scratch, rank)) / part_tokens(shape, scratch, rank, parts);
    atomicAdd(scratch.missing + group * parts + part, 1);
  }
}

__device__ void write_row(const TopKPlanRows& to, int64_t row, int64_t token, int64_t expert,
                          int64_t choice, int64_t count) {
  to.token[row] = token;
  to.expert[row] = expert;
  to.choice[row] = choice;
  to.count[row] = count;
}

__device__ void write_overflow(const TopKPlanRows& to, int64_t row, int64_t token, int64_t expert,
                               int64_t choice) {
  if (row < to.overflow_max) {
    to.overflow_token[row] = token;
    to.overflow_expert[row] = expert;
    to.overflow_choice[row] = choice;
  }
}

// Writes unused rows and the number of rows of each expert. Runs in the blocks after the last
// group.
__device__ void write_rest(const TopKPlanShape& shape, const TopKPlanInput& in,
                           const Scratch& scratch, const TopKPlanRows& to, const Totals& used,
                           const Part& own) {
  const int64_t first = own.index * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = own.count * int64_t{blockDim.x};
  for (int64_t row = used.accepted + first; row < to.rows_max; row += step) {
    write_row(to, row, 0, shape.experts, 0, 0);
  }
  for (int64_t row = used.refused + first; row < to.overflow_max; row += step) {
    write_overflow(to, row, 0, shape.experts, 0);
  }
  for (int64_t expert = first; expert < shape.experts; expert += step) {
    int64_t rows = 0;
    for (int64_t source_rank = 0; source_rank < shape.ranks; ++source_rank) {
      rows += group_totals(shape, in, expert * shape.ranks + source_rank).accepted;
    }
    for (int64_t part = expert * shape.ranks * own.count;
         part < (expert + 1) * shape.ranks * own.count; ++part) {
      rows += scratch.missing[part];
    }
    to.rows[expert] = rows;
  }
}

// Writes the rows of the tokens of the part that are rectified in its group, in token order. `row`
// is the first such row of the group.
__device__ void write_rectified(const TopKPlanShape& shape, const TopKPlanInput& in,
                                const Scratch& scratch, const TopKPlanRows& to, const Part& own,
                                int64_t row, int* part) {
  const int64_t expert = own.group / shape.ranks, rank = own.group % shape.ranks;
  const Range tokens = part_tokens_range(shape, scratch, own);
  for (int other = 0; other < own.index; ++other) {
    row += scratch.missing[own.group * own.count + other];
  }
  for (int64_t first = tokens.begin; first < tokens.end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const bool is_here = t < tokens.end && in.source_rank[t] == rank &&
                         in.local_choice[t] == expert && scratch.served[t] < shape.k;
    int total = 0;
    const int before = count_before(is_here, part, &total);
    if (is_here) {
      write_row(to, row + before, t, expert, shape.k + 1, shape.k - scratch.served[t]);
    }
    row += total;
  }
}

__global__ void __launch_bounds__(kSortThreads)
    write_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch, TopKPlanRows to,
                 int parts) {
  __shared__ int part[kSortWarps];
  const Part own = block_part(parts);
  const Totals before = totals_before(shape, in, scratch.missing, own, part);
  if (own.group == shape.experts * shape.ranks) {
    write_rest(shape, in, scratch, to, before, own);
    return;
  }
  const int64_t expert = own.group / shape.ranks;
  const int capacity = in.capacity[own.group % shape.ranks];
  int64_t start = before.requests, row = before.accepted, overflow = before.refused;
  int accepted = 0;
  for (int index = 0; index < num_segments(shape); ++index) {
    const Segment segment = segment_at(shape, index);
    const int requests = requests_in(shape, in, own.group, segment);
    const int free = capacity - accepted;
    const int fits = requests < free ? requests : free;
    const bool overflows = segment.first < shape.k;  // a refused fill-in is not a dropped token
    for (int i = own.index * kSortThreads + static_cast<int>(threadIdx.x); i < requests;
         i += own.count * kSortThreads) {
      const int64_t token = scratch.group_values[start + i] / shape.choices;
      const int64_t choice = scratch.group_values[start + i] % shape.choices;
      if (i < fits) {
        write_row(to, row + i, token, expert, choice, 1);
      } else if (overflows) {
        write_overflow(to, overflow + i - fits, token, expert, choice);
      }
    }
    accepted += fits;
    row += fits;
    overflow += overflows ? requests - fits : 0;
    start += requests;
  }
  if (shape.rectify) {
    write_rectified(shape, in, scratch, to, own, row, part);
  }
}

// Divides the scratch into arrays. served .. missing must be zero before the kernels run.
Scratch partition_scratch(int32_t* scratch, const TopKPlanShape& shape) {
  const int64_t most = shape.tokens * (shape.k + 1), ranks = shape.ranks;
  const int64_t blocks = shape.experts * ranks * top_k_plan_parts(shape);
  const auto take = [&](int64_t count) {
    int32_t* piece = scratch;
    scratch += count;
    return piece;
  };
  const auto take_list = [&] { return reinterpret_cast<uint32_t*>(take(most)); };
  Scratch pieces = {};
  pieces.key = take_list();
  pieces.value = take_list();
  pieces.other_key = take_list();
  pieces.other_value = take_list();
  pieces.group_values = take_list();
  pieces.served = take(shape.tokens);
  pieces.before_end = take(ranks);
  pieces.end = take(ranks);
  pieces.listed = take(1);
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
  const Scratch room = partition_scratch(args.scratch, shape);
  const int64_t zeros = room.list_start - room.served;
  set_bytes(room.served, 0, static_cast<int64_t>(sizeof(int32_t)) * zeros, stream);
  launch(range_kernel, per_token, kThreads, stream, shape, args.in, room);
  launch(order_kernel, groups * parts, kSortThreads, stream, shape, args.in, room, parts);
  if (parts > 1) {
    launch(place_kernel, groups * parts, kSortThreads, stream, shape, args.in, room, parts);
  }
  if (shape.rectify) {
    launch(missing_kernel, per_token, kThreads, stream, shape, args.in, room, parts);
  }
  launch(write_kernel, (groups + 1) * parts, kSortThreads, stream, shape, args.in, room, args.out,
         parts);
}

}  // namespace moe::kernels
