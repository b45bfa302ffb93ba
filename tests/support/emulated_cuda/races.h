#pragma once
// Between the emulator and races.cpp, which is not linked where the kernels are compiled for a
// sanitizer: then every function here is null.

#include <cstddef>
#include <cstdint>

namespace emulated {

enum class Moment { kLaunch, kBlock, kBarrier };

// What came before `moment` can race with nothing that comes after it, but for the blocks of one
// launch among themselves.
[[gnu::weak]] void pass_moment(Moment moment);
[[gnu::weak]] void see_atomic(const void* address, size_t bytes);

// By the emulator.
struct Range {
  uintptr_t begin = 0, bytes = 0;
};
extern Range running_stack;
// While a thread of a kernel runs that is watched: not in host code of the same files, nor in the
// scheduler, for which the linker may have taken their copies of the standard library's functions.
extern thread_local bool is_watching;
bool is_shared(const void* address);

}  // namespace emulated
