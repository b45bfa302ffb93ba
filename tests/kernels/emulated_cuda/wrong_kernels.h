#pragma once
// Kernels that are wrong on purpose, each in one way, so that each check of the emulator is known
// to be able to fail.

#include <cstdint>

namespace moe::test {

// One thread loads a vector of four from `from` and stores it to `to`: right where both addresses
// are multiples of 16 bytes, or of 8 for bf16.
void copy_vector(const float* from, float* to);
void copy_vector_of_bf16(const uint16_t* from, uint16_t* to);

// Of `warps` warps each writes a number to shared memory and reads its neighbour's to `out`
// [warps]; the barrier between is left out unless `has_barrier`.
void read_neighbour(int warps, int32_t* out, bool has_barrier);
// Every warp of one block adds 1 to *sum; without an atomic unless `is_atomic`.
void add_one(int warps, int32_t* sum, bool is_atomic);
// Reads shared memory of a kernel template to *out, which nobody wrote unless `is_written`.
void read_shared(int32_t* out, bool is_written);
// Every one of `blocks` blocks writes its number to *out.
void write_block_number(int blocks, int32_t* out);

// to[i] = from[i] for all i < count; `is_narrow`: by an index of 32 bits.
void copy_bytes(const uint8_t* from, uint8_t* to, int64_t count, bool is_narrow);

}  // namespace moe::test
