// The scheduler of cuda_runtime_api.h: fibers that hand control back at every barrier and every
// exchange between lanes. It also takes the place of kernels/ops/no_cuda.cpp in the tests it is
// linked into.

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "kernels/ops/cuda_functions.h"
#include "memory.h"

// The linker's names for the ends of the section that holds all shared variables.
extern "C" {
extern char __start_emulated_shared[] __attribute__((weak));
extern char __stop_emulated_shared[] __attribute__((weak));
}

// Keeps the registers that a call keeps, stores the stack in *from, and goes on with the stack
// `to`. (swapcontext would ask the kernel about signals each time, which is all that a test then
// does.)
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
  .text
  .globl emulated_switch
  .type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulated_switch, . - emulated_switch
)");

namespace emulated {

namespace {

constexpr size_t kStackBytes = 96 * 1024;
constexpr unsigned kLanes = 32;

enum class State { kReady, kAtBlock, kAtWarp, kDone };

struct Fiber {
  void* top = nullptr;  // of its stack, where it waits
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state = State::kReady;
  unsigned mask = 0;
  uint64_t brought = 0;
};

struct Warp {
  uint64_t values[kLanes] = {};
  bool is_late = false;  // does not run in this round, so that others get ahead of it
};

struct Emulator {
  void* scheduler = nullptr;  // its stack
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::mt19937 random{1};
  const std::function<void()>* body = nullptr;
  size_t current = 0;

  void start_block(unsigned threads);
  void run_block(unsigned threads);
  bool release_warps(unsigned threads);
  bool release_block(unsigned threads);
  void wait(State state);
};

Emulator& emulator() {
  static Emulator one;
  return one;
}

void run_fiber() {
  Emulator& all = emulator();
  (*all.body)();
  all.wait(State::kDone);
}

// A stack that emulated_switch enters at run_fiber, aligned as after a call.
void* new_stack(char* memory) {
  auto end = reinterpret_cast<uintptr_t>(memory) + kStackBytes;
  auto* top = reinterpret_cast<void**>(end / 16 * 16);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&run_fiber);
  for (int saved = 0; saved < 6; ++saved) {
    *--top = nullptr;
  }
  return top;
}

void Emulator::start_block(unsigned threads) {
  if (__start_emulated_shared != nullptr) {
    std::fill(__start_emulated_shared, __stop_emulated_shared, static_cast<char>(0xFF));
  }
  while (fibers.size() < threads) {
    fibers.emplace_back();
  }
  warps.assign((threads + kLanes - 1) / kLanes, {});
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.state = State::kReady;
    fiber.top = new_stack(fiber.stack.get());
  }
}

// Lanes whose whole mask has come go on.
bool Emulator::release_warps(unsigned threads) {
  bool any = false;
  for (unsigned first = 0; first < threads; first += kLanes) {
    for (unsigned lane = 0; lane < std::min(kLanes, threads - first); ++lane) {
      const unsigned mask = fibers[first + lane].mask;
      if (fibers[first + lane].state != State::kAtWarp) {
        continue;
      }
      bool all = true;
      for (unsigned other = 0; other < kLanes; ++other) {
        const bool named = (mask >> other & 1) != 0;
        all = all && (!named ||
                      (first + other < threads && fibers[first + other].state == State::kAtWarp &&
                       fibers[first + other].mask == mask));
      }
      for (unsigned other = 0; all && other < kLanes; ++other) {
        const bool named = (mask >> other & 1) != 0;
        warps[first / kLanes].values[other] = named ? fibers[first + other].brought : 0;
        if (named) {
          fibers[first + other].state = State::kReady;
        }
      }
      any = any || all;
    }
  }
  return any;
}

bool Emulator::release_block(unsigned threads) {
  bool waits = false;
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == State::kReady || fibers[i].state == State::kAtWarp) {
      return false;
    }
    waits = waits || fibers[i].state == State::kAtBlock;
  }
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == State::kAtBlock) {
      fibers[i].state = State::kReady;
    }
  }
  return waits;
}

void Emulator::run_block(unsigned threads) {
  start_block(threads);
  std::vector<unsigned> order(threads);
  for (unsigned i = 0; i < threads; ++i) {
    order[i] = i;
  }
  while (true) {
    std::shuffle(order.begin(), order.end(), random);
    for (Warp& warp : warps) {
      warp.is_late = random() % 2 == 0;
    }
    bool any_ready = false;
    for (const unsigned i : order) {
      const bool is_ready = fibers[i].state == State::kReady;
      any_ready = any_ready || is_ready;
      if (is_ready && !warps[i / kLanes].is_late) {
        current = i;
        here.thread = {i, 0, 0};
        emulated_switch(&scheduler, fibers[i].top);
      }
    }
    const bool done = std::all_of(fibers.begin(), fibers.begin() + threads,
                                  [](const Fiber& each) { return each.state == State::kDone; });
    if (done) {
      return;
    }
    if (!release_warps(threads) && !release_block(threads) && !any_ready) {
      throw std::logic_error("block " + std::to_string(here.block.x) +
                             ": some threads wait where others never come");
    }
  }
}

void Emulator::wait(State state) {
  fibers[current].state = state;
  emulated_switch(&fibers[current].top, scheduler);
}

}  // namespace

Place here;

unsigned lane() { return here.thread.x % kLanes; }

void wait_for_block() { emulator().wait(State::kAtBlock); }

const uint64_t* meet(unsigned mask, uint64_t value) {
  Emulator& all = emulator();
  if ((mask >> lane() & 1) == 0) {
    throw std::logic_error("a lane meets others by a mask that leaves itself out");
  }
  Fiber& fiber = all.fibers[all.current];
  fiber.mask = mask;
  fiber.brought = value;
  const size_t warp = all.current / kLanes;
  all.wait(State::kAtWarp);
  return all.warps[warp].values;
}

uint64_t exchange(unsigned mask, uint64_t value, unsigned source) {
  return meet(mask, value)[source];
}

void run(const cudaLaunchConfig_t& config, const std::function<void()>& body) {
  static std::mutex one_at_a_time;  // ranks may be threads; shared variables are one block's
  const std::lock_guard lock(one_at_a_time);
  const Awake awake;
  Emulator& all = emulator();
  all.body = &body;
  here.threads = config.blockDim;
  here.blocks = config.gridDim;
  if (config.blockDim.x > 1024 || config.blockDim.x == 0 || config.gridDim.x == 0 ||
      config.gridDim.y > 65535) {
    throw std::logic_error("no GPU takes such a launch");
  }
  for (unsigned y = 0; y < config.gridDim.y; ++y) {
    for (unsigned x = 0; x < config.gridDim.x; ++x) {
      here.block = {x, y, 0};
      all.run_block(config.blockDim.x);
    }
  }
}

}  // namespace emulated

namespace moe::kernels {

int64_t gpu_count_cuda() { return 1; }
std::string gpu_name_cuda(int64_t /*gpu*/) { return "emulated GPU"; }  // tests/support/gpu.h
uint64_t gpu_peak_bytes_cuda(int64_t /*gpu*/) { return emulated::peak_memory(); }
void* current_stream_cuda(c10::Device /*device*/) { return nullptr; }
c10::intrusive_ptr<c10d::Backend> make_nccl_cuda(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                 int /*rank*/, int /*size*/,
                                                 std::chrono::milliseconds /*timeout*/,
                                                 c10::Device /*device*/) {
  throw std::logic_error("no NCCL among emulated GPUs");
}

}  // namespace moe::kernels
