#pragma once
// Kernels that are wrong on purpose, each in one way, for the checks of the emulator.

#include <cstdint>

namespace moe::test {

// One thread loads a vector of four from `from` and stores it to `to`: right if both addresses are
// multiples of 16 bytes.
void copy_vector(const float* from, float* to);

// Each of `warps` warps writes a number to shared memory and reads its neighbour's to `out`
// [warps], with a barrier between only if `has_barrier`.
void read_neighbour(int warps, int32_t* out, bool has_barrier);
// Every warp of one block adds 1 to *sum; without an atomic unless `is_atomic`.
void add_one(int warps, int32_t* sum, bool is_atomic);
// Reads shared memory to *out, which no thread wrote unless `is_written`.
void read_shared(int32_t* out, bool is_written);
// Every one of `blocks` blocks writes its number to *out.
void write_block_number(int blocks, int32_t* out);

// to[i] = from[i] for all i < count; `is_narrow`: by an index of 32 bits.
void copy_bytes(const uint8_t* from, uint8_t* to, int64_t count, bool is_narrow);

}  // namespace moe::test
