#include "core/distributed/session.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Flags.h>
#include <fcntl.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/base/version.h"
#include "core/distributed/addresses.h"
#include "core/distributed/environment.h"
#include "core/distributed/launch.h"
#include "core/distributed/process_group.h"

C10_DECLARE_int(caffe2_log_level);

namespace moe::distributed {
namespace {

constexpr int kFailed = 1, kUserError = 2;  // as main() has them
constexpr Seconds kLinger{3};     // for the final records of others, before the process ends
constexpr Seconds kReading{0.3};  // for others to read ours, before the store ends with us

void check(const RankSettings& settings, const Environment& environment) {
  if (!environment.is_alone() && settings.ranks != 0 && settings.ranks != environment.size) {
    throw UserError("--ranks {}, but {} has started {} processes; leave out --ranks",
                    settings.ranks, environment.launcher, environment.size);
  }
}

// Whether the store ends with this process.
bool is_server(const Environment& environment) {
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

// What the launcher of --ranks left to this process, and what programs that it starts do not get.
Descriptor take_inherited(int number) {
  fcntl(number, F_SETFD, FD_CLOEXEC);
  return Descriptor(number);
}

std::shared_ptr<Store> open_store(const Environment& environment, const Descriptor& inherited,
                                  Seconds timeout) {
  if (inherited.is_open()) {
    return inherited_store(inherited, timeout);
  }
  return is_server(environment) ? serve_store(environment.store_host, environment.store_port,
                                              environment.run_name, timeout)
                                : reach_store(environment.store_host, environment.store_port,
                                              environment.run_name, timeout);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

struct End {
  int exit_code;
  FinalRecord record;
};

End end_by(const std::exception_ptr& failure, int64_t rank) {
  try {
    std::rethrow_exception(failure);
  } catch (const RankFailed& error) {
    return {kFailed,
            {rank, Ending::kAffected, error.report.culprit, error.report.text, error.what()}};
  } catch (const UserError& error) {
    return {kUserError, {rank, Ending::kUserError, rank, error.what()}};
  } catch (const Interrupted& error) {
    return {kInterrupted, {rank, Ending::kInterrupted, rank, error.what()}};
  } catch (const std::bad_alloc&) {
    return {kFailed, {rank, Ending::kFailed, rank, "out of memory"}};
  } catch (const std::exception& error) {
    return {kFailed, {rank, Ending::kFailed, rank, first_line(error.what())}};
  } catch (...) {
    return {kFailed, {rank, Ending::kFailed, rank, "unknown exception"}};
  }
}

std::string sentence_of(const FinalRecord& record) {
  return terminal_text(record.sentence.empty() ? record.text : record.sentence);
}

// Whether this rank prints why it ended: rank 0 does; another when its reason is a different one,
// or rank 0 has written none.
bool should_print(Rendezvous& rendezvous, const FinalRecord& own) {
  if (own.rank == 0) {
    return true;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < kLinger) {
    const auto records = rendezvous.final_records();
    const auto first = std::find_if(records.begin(), records.end(),
                                    [](const FinalRecord& record) { return record.rank == 0; });
    if (first != records.end()) {
      const bool is_own = own.ending == Ending::kFailed || own.ending == Ending::kUserError;
      return is_own && first->text != own.text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// The launcher of --ranks prints for its ranks.
void print(const Environment& environment, Rendezvous& rendezvous, const FinalRecord& record) {
  if (environment.launcher != "moe" && should_print(rendezvous, record)) {
    print_text(stderr, "moe: {}{}\n",
               record.rank == 0 ? "" : fmt::format("[rank {}] ", record.rank), sentence_of(record));
  }
}

// The process ends without its destructors: transports may wait there for ranks that are gone.
[[noreturn]] void end_process(const Environment& environment, Rendezvous& rendezvous,
                              const End& end) {
  try {
    rendezvous.write_final_record(end.record);
    print(environment, rendezvous, end.record);
    if (is_server(environment) || end.record.ending == Ending::kInterrupted) {
      const bool is_affected = end.record.ending == Ending::kAffected;
      rendezvous.wait_for_final_records(kLinger, is_affected ? end.record.culprit : -1);
      std::this_thread::sleep_for(kReading);
    }
  } catch (const std::exception&) {  // the store is gone
    print_text(stderr, "moe: [rank {}] {}\n", end.record.rank, sentence_of(end.record));
  }
  std::fflush(nullptr);
  std::_Exit(end.exit_code);
}

void take_part(const Environment& environment, const RankSettings& settings, at::Device device,
               const std::function<void(Comm&)>& body) {
  const Seconds timeout{settings.timeout_s};
  if (process_variables().count("TORCH_CPP_LOG_LEVEL") == 0) {
    FLAGS_caffe2_log_level = 3;  // fatal: c10d's warnings are of what we say better
  }
  const Descriptor store_file = take_inherited(environment.inherited.store);
  const auto store = open_store(environment, store_file, timeout);
  const auto membership =
      std::make_shared<Membership>(store, environment.rank, environment.size, timeout);
  membership->interface = environment.interface;
  membership->store_rank = environment.store_is_served || store_file.is_open() ? -1 : 0;
  Rendezvous& rendezvous = membership->rendezvous;
  if (environment.rank == 0) {
    rendezvous.on_stranger = [](const std::string& sentence) {
      print_text(stderr, "moe: {}\n", sentence);
    };
  }
  std::exception_ptr failure;
  try {
    if (environment.inherited.memory >= 0) {
      membership->pool = std::make_shared<MemoryPool>(take_inherited(environment.inherited.memory));
    }
    // Ranks of one launcher exchange everything through memory and need no network.
    const std::string address =
        environment.launcher == "moe" && !settings.on_cuda
            ? environment.store_host
            : address_towards(environment.store_host, environment.store_port);
    membership->check_in(this_member(address),
                         fmt::format("moe {} with LibTorch {}", kVersion, TORCH_VERSION));
    const auto comm = process_comm(membership, device);
    body(*comm);
    comm->barrier();
  } catch (...) {
    failure = std::current_exception();
  }
  // Of a GPU: an aborted exchange may have broken what the host did meanwhile.
  if (const std::exception_ptr unseen = unseen_failure(*membership)) {
    failure = unseen;
  }
  if (failure) {
    end_process(environment, rendezvous, end_by(failure, environment.rank));
  }
  rendezvous.write_final_record({environment.rank, Ending::kDone});
  if (is_server(environment)) {
    rendezvous.wait_for_final_records(timeout);
  }
}

}  // namespace

void check_gpu(int64_t local_rank, int64_t gpus) {
  if (local_rank >= gpus) {
    throw UserError(
        "--device cuda: rank {} of this host has no GPU of its own, as there {} {}; start at most "
        "{} on a host, or let the launcher show each rank one GPU (CUDA_VISIBLE_DEVICES), or use "
        "--device cpu",
        local_rank, gpus == 1 ? "is" : "are", gpus,
        gpus == 1 ? "1 rank" : fmt::format("{} ranks", gpus));
  }
}

int64_t gpu_of_rank(int64_t local_rank, int64_t visible) {
  if (visible == 1) {
    return 0;
  }
  check_gpu(local_rank, visible);
  return local_rank;
}

void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body) {
  const Environment environment = read_environment(process_variables());
  check(settings, environment);
  if (environment.is_alone() && settings.ranks > 1) {
    if (settings.on_cuda) {  // said once, before any rank is started
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
