#include "core/distributed/session.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Flags.h>
#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/distributed/environment.h"
#include "core/distributed/launch.h"
#include "core/distributed/process_group.h"

C10_DECLARE_int(caffe2_log_level);

namespace moe::distributed {
namespace {

constexpr int kFailed = 1, kUserError = 2;  // exit codes of main()
constexpr Seconds kUntilOthersEnd{3}, kUntilOthersRead{0.3};
constexpr Seconds kUntilExit{5};  // from the decision to exit to _Exit, whatever blocks
constexpr std::chrono::milliseconds kStorePoll{20};
constexpr const char* kDone = "done";  // counts ranks that need the store no longer

// Returns true if the store ends with this process.
bool serves_store(const Environment& environment) {
  return environment.rank == 0 && !environment.store_is_served && environment.launcher != "moe";
}

at::Device pick_device(const RankSettings& settings, int64_t local_rank) {
  if (!settings.on_cuda) {
    return at::kCPU;
  }
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const int64_t gpu = gpu_of_rank(local_rank, guard.deviceCount());
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  guard.setDevice(device);
  return device;
}

Store open_store(const Environment& environment, const Descriptor& inherited, Seconds timeout) {
  if (inherited.is_open()) {
    return open_inherited_store(inherited, timeout);
  }
  const auto open = serves_store(environment) ? serve_store : connect_store;
  return open(environment.store_host, environment.store_port, environment.run_name, timeout);
}

// How this rank ends, and the verdict that it proposes to the others (none: it was interrupted).
struct End {
  Ending own;
  std::optional<Ending> verdict;
};

End end_by(const std::exception_ptr& failure, int64_t rank) {
  std::string text = "unknown exception";
  try {
    std::rethrow_exception(failure);
  } catch (const RankFailed& error) {
    return {{rank, error.verdict.exit_code, error.what()}, error.verdict};
  } catch (const UserError& error) {
    return {{rank, kUserError, error.what()}, Ending{rank, kUserError, error.what()}};
  } catch (const Interrupted& error) {
    return {{rank, kInterrupted, error.what()}, std::nullopt};
  } catch (const std::bad_alloc&) {
    text = "out of memory";
  } catch (const std::exception& error) {  // a stack trace may follow the first line
    text = error.what();
    text = text.substr(0, text.find('\n'));
  } catch (...) {
  }
  return {
      {rank, kFailed, text},
      Ending{rank, kFailed, fmt::format("{} failed ({})", describe(rank, this_member("")), text)}};
}

// Rank 0 prints for all, rank 1 if rank 0 is the reason and has not reported it itself.
bool is_printer(Store& store, const End& end) {
  return end.own.rank == 0 ||
         (end.own.rank == 1 && end.verdict && end.verdict->rank == 0 && !read_ending(store, 0));
}

// Blocks until all ranks but the reason of the failure have ended, so that they can still read.
void wait_for_endings(Store& store, int64_t size, const End& end) {
  int64_t next = 0;
  for (WaitClock clock; next < size && clock.elapsed() < kUntilOthersEnd;) {
    if ((end.verdict && end.verdict->rank == next) || read_ending(store, next)) {
      ++next;
    } else {
      std::this_thread::sleep_for(kStorePoll);
    }
  }
  std::this_thread::sleep_for(kUntilOthersRead);
}

// Ends the process without destructors, which may wait for ranks that are gone. With --ranks the
// launcher prints the message.
[[noreturn]] void end_process(const Environment& environment, Store store, End end) {
  static std::atomic_flag is_ending;
  if (is_ending.test_and_set()) {
    for (;;) {
      pause();  // another thread ends the process
    }
  }
  static std::atomic_flag has_printed;
  const auto print = [end] {
    if (!has_printed.test_and_set()) {
      print_text(stderr, "moe: {}\n", terminal_text(end.own.text));
    }
  };
  if (environment.launcher == "moe") {
    has_printed.test_and_set();
  }
  std::thread([exit_code = end.own.exit_code, print] {
    std::this_thread::sleep_for(kUntilExit);
    print();
    std::_Exit(exit_code);
  }).detach();
  try {
    write_ending(store, end.own);
    if (end.verdict) {
      end.verdict = set_verdict(store, *end.verdict);
    }
    if (is_printer(store, end)) {
      print();
    }
    has_printed.test_and_set();
    if (serves_store(environment)) {
      wait_for_endings(store, environment.size, end);
    }
  } catch (const std::exception&) {  // the store is gone, and with it the rank that would print
    print();
  }
  std::fflush(nullptr);
  std::_Exit(end.own.exit_code);
}

// Handles an exception that ends a thread, such as an error in the watchdog of NCCL.
std::atomic<Monitor*> monitor_of_process = nullptr;  // NOLINT: read by a terminate handler
std::atomic<int64_t> rank_of_process = 0;            // NOLINT

[[noreturn]] void on_terminate() {
  const std::string text =
      std::current_exception() ? end_by(std::current_exception(), 0).own.text : "terminated";
  if (Monitor* monitor = monitor_of_process) {
    monitor->report_broken(
        fmt::format("a thread of rank {} failed ({})", rank_of_process.load(), text));
  }
  for (;;) {
    pause();  // the monitor ends the process, once it has looked for a rank that is the reason
  }
}

void run_in_group(const Environment& environment, const RankSettings& settings, at::Device device,
                  const Store& store, const std::string& address,
                  const std::function<void(Comm&)>& body) {
  const Seconds timeout{settings.timeout_s};
  Store joining = store;
  const auto members =
      join(joining, environment.rank, environment.size, this_member(address),
           fmt::format("moe {} with LibTorch {}", kVersion, TORCH_VERSION), timeout);
  const int64_t store_rank = environment.store_is_served || environment.launcher == "moe" ? -1 : 0;
  // Left to the end of the process if an exception passes: its thread guards the way there.
  auto* const group = new ProcessGroup(  // NOLINT
      store, environment.rank, members, timeout, store_rank,
      [environment, store](const RankFailed& failure) {
        end_process(environment, store, end_by(std::make_exception_ptr(failure), environment.rank));
      });
  group->interface = environment.interface;
  rank_of_process = environment.rank;
  monitor_of_process = &group->monitor;
  const auto before = std::set_terminate(on_terminate);
  {
    const auto comm = make_process_comm(*group, device);
    body(*comm);
    comm->barrier();
    group->monitor.check();
  }
  std::set_terminate(before);
  monitor_of_process = nullptr;
  delete group;  // NOLINT
}

void take_part(const Environment& environment, const RankSettings& settings, at::Device device,
               const std::function<void(Comm&)>& body) {
  const Seconds timeout{settings.timeout_s};
  if (process_variables().count("TORCH_CPP_LOG_LEVEL") == 0) {
    FLAGS_caffe2_log_level = 3;  // fatal: our messages say what c10d warns of
  }
  if (environment.inherited_store >= 0) {
    fcntl(environment.inherited_store, F_SETFD, FD_CLOEXEC);  // not for programs that we start
  }
  const Descriptor file(environment.inherited_store);
  const std::string address = address_towards(environment.store_host, environment.store_port);
  Store store = open_store(environment, file, timeout);
  claim_rank(store, environment.rank);  // throws before anything is written to the store of others
  try {
    run_in_group(environment, settings, device, store, address, body);
  } catch (...) {
    end_process(environment, store, end_by(std::current_exception(), environment.rank));
  }
  try {
    store.add(kDone, 1);
    for (WaitClock clock; serves_store(environment) && clock.elapsed() < timeout &&
                          store.add(kDone, 0) < environment.size;) {
      std::this_thread::sleep_for(kStorePoll);
    }
  } catch (const std::exception&) {  // rank 0 is done and the store is gone
  }
}

}  // namespace

void check_gpu(int64_t local_rank, int64_t num_gpus) {
  if (local_rank >= num_gpus) {
    throw UserError(
        "--device cuda: rank {} of this host has no GPU of its own, as there {} {}; start at most "
        "{} on a host, or let the launcher show each rank one GPU (CUDA_VISIBLE_DEVICES), or use "
        "--device cpu",
        local_rank, num_gpus == 1 ? "is" : "are", num_gpus,
        num_gpus == 1 ? "1 rank" : fmt::format("{} ranks", num_gpus));
  }
}

int64_t gpu_of_rank(int64_t local_rank, int64_t num_visible) {
  if (num_visible == 1) {
    return 0;
  }
  check_gpu(local_rank, num_visible);
  return local_rank;
}

void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body) {
  const Environment environment = read_environment(process_variables());
  if (!environment.is_alone() && settings.ranks != 0 && settings.ranks != environment.size) {
    throw UserError("--ranks {}, but {} has started {} processes; leave out --ranks",
                    settings.ranks, environment.launcher, environment.size);
  }
  if (environment.is_alone() && settings.ranks > 1) {
    if (settings.on_cuda) {  // reported once, before any rank is started
      check_gpu(settings.ranks - 1, c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount());
    }
    return launch(settings);
  }
  const at::Device device = pick_device(settings, environment.local_rank);
  if (environment.is_alone()) {
    return body(*solo_comm(device));
  }
  take_part(environment, settings, device, body);
}

}  // namespace moe::distributed
