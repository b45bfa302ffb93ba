// The scheduler of cuda_runtime_api.h: fibers that yield at every barrier and every exchange
// between lanes. Also defines the functions of libmoe_cuda.so for the tests that link it.

#include "emulator.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "kernels/ops/cuda_functions.h"
#include "memory.h"

// Ends of the linker section of shared variables. Those of kernel templates are in .bss instead,
// because GCC ignores their section attribute.
extern "C" {
extern char __start_emulated_shared[] __attribute__((weak));
extern char __stop_emulated_shared[] __attribute__((weak));
extern char __bss_start[], _end[];
}

// Saves the callee-saved registers, stores the stack pointer in *from and switches to the stack
// `to`. swapcontext() would take a system call for the signal mask each time.
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
  bool is_late = false;  // does not run in this round, so that other threads run first
};

struct Emulator {
  void* scheduler = nullptr;  // its stack
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::mt19937 random{1};
  unsigned seed = 1;
  unsigned last_blocks = 0;  // 0: all
  bool allows_races = false, is_watched = false;
  const std::function<void()>* body = nullptr;
  size_t current = 0;
  bool is_running = false;  // a thread of a kernel, not the scheduler
  std::string failure;      // why a thread was stopped

  void start_block(unsigned threads);
  void run_block(unsigned threads);
  bool release_warps(unsigned threads);
  bool release_block(unsigned threads);
  void resume(unsigned thread);
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

// Functions of the address sanitizer, null in other builds: they clear the marks that a stopped
// thread left on its stack.
extern "C" [[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* memory,
                                                            size_t bytes);

// A stack that emulated_switch enters at run_fiber, aligned as after a call.
void* new_stack(char* memory) {
  if (__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(memory, kStackBytes);
  }
  auto end = reinterpret_cast<uintptr_t>(memory) + kStackBytes;
  auto* top = reinterpret_cast<void**>(end / 16 * 16);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&run_fiber);
  for (int saved = 0; saved < 6; ++saved) {
    *--top = nullptr;
  }
  return top;
}

void pass(Moment moment) {
  if (emulator().is_watched) {
    pass_moment(moment);
  }
}

void Emulator::start_block(unsigned threads) {
  pass(Moment::kBlock);
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

// Resumes the lanes whose mask is complete.
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
  pass(Moment::kBarrier);
  return waits;
}

void Emulator::resume(unsigned thread) {
  current = thread;
  here.thread = {thread, 0, 0};
  is_running = true;
  running_stack = {reinterpret_cast<uintptr_t>(fibers[thread].stack.get()), kStackBytes};
  is_watching = is_watched;
  emulated_switch(&scheduler, fibers[thread].top);
  is_running = false;
  if (!failure.empty()) {
    throw std::logic_error(std::exchange(failure, {}));
  }
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
        resume(i);
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
  is_watching = false;
  fibers[current].state = state;
  emulated_switch(&fibers[current].top, scheduler);
}

}  // namespace

Place here;

unsigned lane() { return here.thread.x % kLanes; }

void wait_for_block() { emulator().wait(State::kAtBlock); }

// Objects on the stack of a stopped thread are never destroyed: here, a string that was moved from.
void stop(const std::string& why) {
  is_watching = false;
  Emulator& all = emulator();
  all.failure = "block " + std::to_string(here.block.x) + " of " + std::to_string(here.blocks.x) +
                ", warp " + std::to_string(here.thread.x / kLanes) + ", lane " +
                std::to_string(lane()) + ": " + why + " (threads in the order of seed " +
                std::to_string(all.seed) + ")";
  all.wait(State::kDone);
  std::abort();
}

Range running_stack;
thread_local bool is_watching = false;

bool is_shared(const void* address) {
  return (address >= __start_emulated_shared && address < __stop_emulated_shared) ||
         (address >= __bss_start && address < _end);
}

bool finds_races() { return pass_moment != nullptr; }

void set_order(unsigned seed) {
  Emulator& all = emulator();
  all.seed = seed;
  all.random.seed(seed);
}

LastBlocks::LastBlocks(unsigned count) { emulator().last_blocks = count; }
LastBlocks::~LastBlocks() { emulator().last_blocks = 0; }
RacesAllowed::RacesAllowed() { emulator().allows_races = true; }
RacesAllowed::~RacesAllowed() { emulator().allows_races = false; }

const uint64_t* meet(unsigned mask, uint64_t value) {
  Emulator& all = emulator();
  if ((mask >> lane() & 1) == 0) {
    stop("meets others by a mask that leaves itself out");
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

// Only small launches are watched for races.
bool is_small(const cudaLaunchConfig_t& config) {
  constexpr uint64_t kMostThreads = 1 << 17;
  return uint64_t{config.gridDim.x} * config.gridDim.y * config.blockDim.x <= kMostThreads;
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
  const unsigned first =
      all.last_blocks > 0 ? config.gridDim.x - std::min(all.last_blocks, config.gridDim.x) : 0;
  all.is_watched = finds_races() && !all.allows_races && is_small(config);
  pass(Moment::kLaunch);
  // Blocks run in a random order, which changes the results of atomics between them.
  std::vector<unsigned> order(config.gridDim.x - first);
  std::iota(order.begin(), order.end(), first);
  for (unsigned y = 0; y < config.gridDim.y; ++y) {
    std::shuffle(order.begin(), order.end(), all.random);
    for (const unsigned x : order) {
      here.block = {x, y, 0};
      all.run_block(config.blockDim.x);
    }
  }
}

namespace {

struct Calls {
  std::mutex mutex;
  HostCalls calls;
};

Calls& all_calls() {
  static Calls one;
  return one;
}

}  // namespace

int64_t HostCalls::sum(const std::map<std::string, int64_t>& calls) {
  return std::accumulate(calls.begin(), calls.end(), int64_t{0},
                         [](int64_t sum, const auto& call) { return sum + call.second; });
}

std::atomic<bool>& has_grouped_mm() {
  static std::atomic<bool> one = true;
  return one;
}
void set_grouped_mm(bool has_it) { has_grouped_mm() = has_it; }
bool grouped_mm() { return has_grouped_mm(); }

void count_read(const std::string& name) {
  const std::lock_guard lock(all_calls().mutex);
  ++all_calls().calls.reads[name];
}

HostCalls take_host_calls() {
  const std::lock_guard lock(all_calls().mutex);
  return std::exchange(all_calls().calls, {});
}

}  // namespace emulated

// kernels/cuda/*.cu are compiled with -fsanitize=alignment, by which the compiler calls this before
// an access that is not aligned as its type asks; the undefined-behaviour sanitizer's own is not
// called. The first argument is laid out by the compiler.
struct MisalignedAccess {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;  // kind 1: a store
};
extern "C" void __ubsan_handle_type_mismatch_v1(MisalignedAccess* access, uintptr_t address) {
  const std::string why = std::string(access->kind == 1 ? "writes to" : "reads from") +
                          " an address that is no multiple of " +
                          std::to_string(1U << access->log_alignment) + " (" +
                          std::to_string(address % 16) + " past one of 16) at " + access->file +
                          ":" + std::to_string(access->line);
  if (emulated::emulator().is_running) {
    emulated::stop(why);
  }
  throw std::logic_error("host code " + why);
}

namespace moe::kernels {

int64_t gpu_count_cuda() { return 1; }
std::string gpu_name_cuda(int64_t /*gpu*/) { return "emulated GPU"; }  // tests/support/gpu.h
bool gpu_has_grouped_mm_cuda(int64_t /*gpu*/) { return emulated::grouped_mm(); }
uint64_t gpu_peak_bytes_cuda(int64_t /*gpu*/) { return emulated::peak_memory(); }
void* current_stream_cuda(c10::Device /*device*/) { return nullptr; }
c10::intrusive_ptr<c10d::Backend> make_nccl_cuda(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                 int /*rank*/, int /*size*/,
                                                 std::chrono::milliseconds /*timeout*/,
                                                 c10::Device /*device*/) {
  throw std::logic_error("no NCCL among emulated GPUs");
}

}  // namespace moe::kernels
