// top_k_plan.h on CUDA, in four kernels.
//
//   ranges   a block a rank finds the first and the last of its tokens: where tokens of a rank
//   stand
//            together, as they do in training, a group looks at these and not at all T
//   order    a block a group collects its requests, segment by segment (a choice, all choices, or
//            the fill-ins), sorts each by score, and counts the rows of the tokens it accepts
//   missing  a thread a token counts, a group, the tokens that are to be rectified
//   write    a block a group writes its rows where the counts of the groups before say
//
// How many a group accepts of each segment follows from `requested` and the capacity, so that every
// block knows where the others write without asking. What atomics add up are integers, and no order
// shows.

#include <cstddef>

#include "kernels/cuda/radix_sort.cuh"
#include "kernels/ops/order_key.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

// Requests that are sorted together: choices first .. last - 1.
struct Segment {
  int first, last;
};

__device__ int segments_of(const TopKPlanShape& shape) {
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

__device__ Totals totals_of(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group) {
  const int capacity = in.capacity[group % shape.ranks];
  Totals all = {0, 0, 0};
  for (int index = 0; index < segments_of(shape); ++index) {
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

struct Scratch {
  uint32_t *key, *value, *other_key, *other_value;  // [T * (k + 1)] each
  int32_t* served;                                  // [T] rows of each token
  int32_t* missing;                                 // [E * W] tokens that are rectified there
  int32_t *begin, *end;                             // [W] no token before and behind is of the rank
};

__device__ int block_max(int value, int* part) {  // as block_sum
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % kLanes == 0) {
    part[threadIdx.x / kLanes] = value;
  }
  __syncthreads();
  int most = part[0];
  for (unsigned warp = 1; warp < blockDim.x / kLanes; ++warp) {
    most = part[warp] > most ? part[warp] : most;
  }
  return most;
}

__global__ void __launch_bounds__(kSortThreads)
    range_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch) {
  __shared__ int part[kSortWarps];
  const int rank = static_cast<int>(blockIdx.x), tokens = static_cast<int>(shape.tokens);
  int begin = tokens, end = 0;
  for (int t = threadIdx.x; t < tokens; t += kSortThreads) {
    if (in.home[t] == rank) {
      begin = t < begin ? t : begin;
      end = t + 1;
    }
  }
  begin = -block_max(-begin, part);
  end = block_max(end, part);
  if (threadIdx.x == 0) {
    scratch.begin[rank] = begin;
    scratch.end[rank] = end;
  }
}

// Totals of all groups before this block's, known to all of its threads.
__device__ Totals totals_before(const TopKPlanShape& shape, const TopKPlanInput& in,
                                const int32_t* missing, int64_t group, int* part) {
  Totals sum = {0, 0, 0};
  for (int64_t other = threadIdx.x; other < group; other += blockDim.x) {
    const Totals its = totals_of(shape, in, other);
    sum.requests += its.requests;
    sum.accepted += its.accepted + (missing != nullptr ? missing[other] : 0);
    sum.refused += its.refused;
  }
  return {block_sum(sum.requests, part), block_sum(sum.accepted, part),
          block_sum(sum.refused, part)};
}

// The choice among the segment's by which token t asks for the expert; -1: none.
__device__ int choice_for(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t t,
                          int64_t group, const Segment& segment) {
  if (t >= shape.tokens || in.home[t] != group % shape.ranks) {
    return -1;
  }
  for (int c = segment.first; c < segment.last; ++c) {
    if (in.choice[t * shape.choices + c] == group / shape.ranks) {
      return c;
    }
  }
  return -1;
}

// The segment's requests, in token order, to `list`: keys ascend where scores descend, values are
// token * C + choice.
__device__ void collect(const TopKPlanShape& shape, const TopKPlanInput& in, int64_t group,
                        const Segment& segment, const Scratch& scratch, const KeyList& list,
                        int* part) {
  int found = 0;
  const int64_t rank = group % shape.ranks, end = scratch.end[rank];
  for (int64_t first = scratch.begin[rank]; first < end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const int choice = choice_for(shape, in, t, group, segment);
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

__global__ void __launch_bounds__(kSortThreads)
    order_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch) {
  __shared__ SortSpace space;
  __shared__ int part[kSortWarps];
  const int64_t group = blockIdx.x;
  int64_t start = totals_before(shape, in, nullptr, group, part).requests;
  int accepted = 0;
  const int capacity = in.capacity[group % shape.ranks];
  for (int index = 0; index < segments_of(shape); ++index) {
    const Segment segment = segment_at(shape, index);
    const int requests = requests_in(shape, in, group, segment);
    const KeyList list{scratch.key + start, scratch.value + start};
    collect(shape, in, group, segment, scratch, list, part);
    sort_list(list, {scratch.other_key + start, scratch.other_value + start}, requests, space);
    const int free = capacity - accepted;
    const int fits = requests < free ? requests : free;
    for (int i = threadIdx.x; i < fits; i += kSortThreads) {
      atomicAdd(scratch.served + list.value[i] / shape.choices, 1);
    }
    accepted += fits;
    start += requests;
  }
}

__global__ void missing_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t < shape.tokens && in.home[t] < shape.ranks && scratch.served[t] < shape.k) {
    atomicAdd(scratch.missing + in.at_home[t] * shape.ranks + in.home[t], 1);
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

// The block after the last group: unused rows, and the rows of each expert.
__device__ void write_rest(const TopKPlanShape& shape, const TopKPlanInput& in,
                           const Scratch& scratch, const TopKPlanRows& to, const Totals& used) {
  for (int64_t row = used.accepted + int64_t{threadIdx.x}; row < to.rows_max; row += blockDim.x) {
    write_row(to, row, 0, shape.experts, 0, 0);
  }
  for (int64_t row = used.refused + int64_t{threadIdx.x}; row < to.overflow_max;
       row += blockDim.x) {
    write_overflow(to, row, 0, shape.experts, 0);
  }
  for (int64_t expert = threadIdx.x; expert < shape.experts; expert += blockDim.x) {
    int64_t rows = 0;
    for (int64_t home = 0; home < shape.ranks; ++home) {
      const int64_t group = expert * shape.ranks + home;
      rows += totals_of(shape, in, group).accepted + scratch.missing[group];
    }
    to.rows[expert] = rows;
  }
}

// The tokens that are rectified in the group, in their order, from `row` on.
__device__ void write_rectified(const TopKPlanShape& shape, const TopKPlanInput& in,
                                const Scratch& scratch, const TopKPlanRows& to, int64_t group,
                                int64_t row, int* part) {
  const int64_t expert = group / shape.ranks, rank = group % shape.ranks;
  const int64_t end = scratch.end[rank];
  for (int64_t first = scratch.begin[rank]; first < end; first += kSortThreads) {
    const int64_t t = first + threadIdx.x;
    const bool is_here = t < shape.tokens && in.home[t] == rank && in.at_home[t] == expert &&
                         scratch.served[t] < shape.k;
    int total = 0;
    const int before = count_before(is_here, part, &total);
    if (is_here) {
      write_row(to, row + before, t, expert, shape.k + 1, shape.k - scratch.served[t]);
    }
    row += total;
  }
}

__global__ void __launch_bounds__(kSortThreads)
    write_kernel(TopKPlanShape shape, TopKPlanInput in, Scratch scratch, TopKPlanRows to) {
  __shared__ int part[kSortWarps];
  const int64_t group = blockIdx.x;
  const Totals before = totals_before(shape, in, scratch.missing, group, part);
  if (group == shape.experts * shape.ranks) {
    write_rest(shape, in, scratch, to, before);
    return;
  }
  const int64_t expert = group / shape.ranks;
  const int capacity = in.capacity[group % shape.ranks];
  int64_t start = before.requests, row = before.accepted, overflow = before.refused;
  int accepted = 0;
  for (int index = 0; index < segments_of(shape); ++index) {
    const Segment segment = segment_at(shape, index);
    const int requests = requests_in(shape, in, group, segment);
    const int free = capacity - accepted;
    const int fits = requests < free ? requests : free;
    const bool overflows = segment.first < shape.k;  // a refused fill-in is no drop
    for (int i = threadIdx.x; i < requests; i += kSortThreads) {
      const int64_t token = scratch.value[start + i] / shape.choices;
      const int64_t choice = scratch.value[start + i] % shape.choices;
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
    write_rectified(shape, in, scratch, to, group, row, part);
  }
}

int64_t requests_max(const TopKPlanShape& shape) { return shape.tokens * (shape.k + 1); }

}  // namespace

void top_k_plan_cuda(const TopKPlanArgs& args, void* stream) {
  const TopKPlanShape& shape = args.shape;
  const int64_t groups = shape.experts * shape.ranks, most = requests_max(shape);
  int32_t* scratch = args.scratch;
  auto* lists = reinterpret_cast<uint32_t*>(scratch);
  const Scratch room{lists,
                     lists + most,
                     lists + 2 * most,
                     lists + 3 * most,
                     scratch + 4 * most,
                     scratch + 4 * most + shape.tokens,
                     scratch + 4 * most + shape.tokens + groups,
                     scratch + 4 * most + shape.tokens + groups + shape.ranks};
  CUDA_CHECK(cudaMemsetAsync(room.served, 0,
                             sizeof(int32_t) * static_cast<size_t>(shape.tokens + groups),
                             static_cast<cudaStream_t>(stream)));
  launch(range_kernel, shape.ranks, kSortThreads, stream, shape, args.in, room);
  launch(order_kernel, groups, kSortThreads, stream, shape, args.in, room);
  if (shape.rectify) {
    launch(missing_kernel, ceil_div(shape.tokens, kThreads), kThreads, stream, shape, args.in,
           room);
  }
  launch(write_kernel, groups + 1, kSortThreads, stream, shape, args.in, room, args.out);
}

}  // namespace moe::kernels
