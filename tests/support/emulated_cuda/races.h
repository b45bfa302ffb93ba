#pragma once
// Interface of races.cpp, which is not linked if the kernels are compiled for a sanitizer: then
// every function here is null.

#include <cstddef>
#include <cstdint>

namespace emulated {

enum class Moment { kLaunch, kBlock, kBarrier };

// Accesses before `moment` do not race with later ones, except between the blocks of one launch.
[[gnu::weak]] void pass_moment(Moment moment);
[[gnu::weak]] void see_atomic(const void* address, size_t bytes);

// By the emulator.
struct Range {
  uintptr_t begin = 0, bytes = 0;
};
extern Range running_stack;
// Returns true while a watched kernel thread runs: not in host code of the same files, nor in the
// scheduler, which may be linked to their copies of standard library functions.
extern thread_local bool is_watching;
bool is_shared(const void* address);

}  // namespace emulated
