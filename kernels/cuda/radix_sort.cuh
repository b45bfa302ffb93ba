#pragma once
// Stable radix sort of a list of (key, value) in global memory by one block: ascending 32-bit keys,
// eight bits per pass. A pass counts the digits, converts counts to start offsets, and moves
// kSortThreads entries at a time. Passes in which all digits are equal are skipped.

#include "kernels/cuda/launch.cuh"

namespace moe::kernels {

inline constexpr int kSortThreads = 512, kSortWarps = kSortThreads / kLanes, kDigits = 256;

struct SortSpace {  // shared memory
  int start[kDigits];
  int warp_start[kSortWarps][kDigits];
};

struct KeyList {
  uint32_t *key, *value;
};

__device__ inline int extract_digit(uint32_t key, int shift) {
  return static_cast<int>(key >> shift & (kDigits - 1));
}

// Sets space.start[d] to the number of entries with a digit below d. Returns false if all entries
// have one digit.
__device__ inline bool count_digits(const KeyList& list, int count, int shift, SortSpace& space) {
  for (int d = threadIdx.x; d < kDigits; d += kSortThreads) {
    space.start[d] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    atomicAdd(&space.start[extract_digit(list.key[i], shift)], 1);
  }
  __syncthreads();
  const bool all_equal = space.start[extract_digit(list.key[0], shift)] == count;
  __syncthreads();
  if (threadIdx.x < kLanes) {  // the first warp, eight digits per lane
    constexpr int kEach = kDigits / kLanes;
    const int lane = threadIdx.x;
    int offset[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      offset[i] = sum;
      sum += space.start[lane * kEach + i];
    }
    int before = sum;
    for (int step = 1; step < kLanes; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      before += lane >= step ? other : 0;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      space.start[lane * kEach + i] = before + offset[i];
    }
  }
  __syncthreads();
  return !all_equal;
}

// Moves the entries of `from` to `to`, ordered by digit. REQUIRES: the results of count_digits().
__device__ inline void move_by_digit(const KeyList& from, const KeyList& to, int count, int shift,
                                     SortSpace& space) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  for (int first = 0; first < count; first += kSortThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool is_entry = i < count;
    const uint32_t key = is_entry ? from.key[i] : 0;
    const int digit = is_entry ? extract_digit(key, shift) : kDigits;  // no entry has kDigits
    __syncwarp();  // the starts of the previous step have been read
    for (int d = lane; d < kDigits; d += kLanes) {
      space.warp_start[warp][d] = 0;
    }
    const unsigned peers = __match_any_sync(kAllLanes, static_cast<unsigned>(digit));
    const int before = __popc(peers & ((1U << lane) - 1));
    __syncwarp();
    if (is_entry && before == 0) {
      space.warp_start[warp][digit] = __popc(peers);
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
      int next = space.start[threadIdx.x];
      for (int each = 0; each < kSortWarps; ++each) {
        const int count_in_warp = space.warp_start[each][threadIdx.x];
        space.warp_start[each][threadIdx.x] = next;
        next += count_in_warp;
      }
      space.start[threadIdx.x] = next;
    }
    __syncthreads();
    if (is_entry) {
      const int slot = space.warp_start[warp][digit] + before;
      to.key[slot] = key;
      to.value[slot] = from.value[i];
    }
  }
  __syncthreads();
}

// Sorts `list`; `other` is scratch of the same size. All threads of a block of kSortThreads must
// call, after a barrier that follows the writes to `list`. Ends with a barrier.
__device__ inline void sort_list(KeyList list, KeyList other, int count, SortSpace& space) {
  const KeyList result = list;
  for (int shift = 0; shift < 32 && count > 1; shift += 8) {
    if (count_digits(list, count, shift, space)) {
      move_by_digit(list, other, count, shift, space);
      const KeyList previous = list;
      list = other;
      other = previous;
    }
  }
  for (int i = threadIdx.x; list.key != result.key && i < count; i += kSortThreads) {
    result.key[i] = list.key[i];
    result.value[i] = list.value[i];
  }
  __syncthreads();
}

}  // namespace moe::kernels
