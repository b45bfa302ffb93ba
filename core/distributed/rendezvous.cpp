#include "core/distributed/rendezvous.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/option.h"
#include "core/base/text.h"

namespace moe::distributed {
namespace {

constexpr std::chrono::milliseconds kStorePoll{20};
constexpr const char* kVerdict = "verdict";

// Opens a server on the socket `listening`, or a client without one.
Store open_tcp_store(const std::string& address, uint16_t port, std::optional<int> listening,
                     const std::string& prefix, Seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = listening.has_value();
  options.masterListenFd = listening;
  options.waitWorkers = false;
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return {c10::make_intrusive<c10d::PrefixStore>(
              prefix, c10::make_intrusive<c10d::TCPStore>(address, options)),
          timeout / 2};
}

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

// Returns a list of at least one address.
std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &list);
  USER_ERROR_IF(error != 0, "MASTER_ADDR '{}' is not a known host ({}); use an address", host,
                gai_strerror(error));
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(list, freeaddrinfo);
  const std::string first = numeric(list->ai_addr, list->ai_addrlen);
  USER_ERROR_IF(first == "0.0.0.0" || first == "::",
                "MASTER_ADDR '{}' stands for every interface, not for a host; set it to the "
                "address of rank 0's host (127.0.0.1 if all ranks are on one host)",
                host);
  return addresses;
}

std::string member_key(int64_t rank) { return fmt::format("member/{}", rank); }
std::string exit_key(int64_t rank) { return fmt::format("exit/{}", rank); }

std::string to_record(const ExitReason& reason) {
  return fmt::format("{} {} {}", reason.rank, reason.exit_code, reason.text);
}

ExitReason parse_reason(const std::string& record) {
  std::istringstream words(record);
  int64_t rank = 0, exit_code = 0;
  std::string text;
  if (!(words >> rank >> exit_code >> std::ws)) {
    return {-1, kFailed, "the store of the run has an invalid record"};
  }
  std::getline(words, text, '\0');
  return {std::clamp<int64_t>(rank, -1, kMaxRanks),
          static_cast<int>(std::clamp<int64_t>(exit_code, 1, 130)), printable(text, 4096)};
}

// Variable of our own launcher: a descriptor above the standard streams.
constexpr const char* kInheritedStore = "MOE_STORE_DESCRIPTOR";

// Names of the variables of a launcher.
struct VariableNames {
  const char *launcher, *rank, *size, *local_rank;
  const char* local_size;  // processes on this host; srun: hosts
  const char* job;         // differs between runs
};

// The innermost launcher first: torchrun and mpirun may run under srun.
constexpr VariableNames kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_PORT"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES",
     "SLURM_JOB_ID"}};
constexpr const VariableNames &kTorchrun = kLaunchers[0], &kSlurm = kLaunchers[3];

}  // namespace

Environment read_environment(const GetVariable& get) {
  const auto has = [&](const char* name) { return get(name) != nullptr; };
  const auto text = [&](const char* name) { return std::string(has(name) ? get(name) : ""); };
  // Returns nothing if the variable is not set.
  const auto number = [&](const char* name, int64_t min, int64_t max) {
    int64_t parsed = 0;
    USER_ERROR_IF(has(name) && (!set_value(&parsed, text(name)) || parsed < min || parsed > max),
                  "the environment says {}='{}', which is not a whole number from {} to {}", name,
                  text(name), min, max);
    return has(name) ? std::optional(parsed) : std::nullopt;
  };
  Environment environment;
  const auto* const launcher = std::ranges::find_if(kLaunchers, [&](const VariableNames& names) {
    // Scripts of sbatch and shells of salloc have SLURM_NTASKS too, but no step.
    return (&names != &kSlurm || has("SLURM_STEP_ID")) && (has(names.rank) || has(names.size));
  });
  if (launcher == std::end(kLaunchers)) {
    return environment;
  }
  const VariableNames& names = *launcher;
  for (const auto& [given, missing] :
       {std::pair(names.rank, names.size), {names.size, names.rank}}) {
    USER_ERROR_IF(!has(missing), "the environment has {} but no {}; set both or unset {}", given,
                  missing, given);
  }
  const auto inherited = number(kInheritedStore, STDERR_FILENO + 1, 1 << 20);
  environment.launcher = inherited ? "moe" : names.launcher;
  environment.inherited_store = static_cast<int>(inherited.value_or(-1));
  environment.size = *number(names.size, 1, kMaxRanks);
  environment.rank = *number(names.rank, 0, kMaxRanks);
  USER_ERROR_IF(environment.rank >= environment.size,
                "the environment says {}={} of {}={}; ranks count from 0", names.rank,
                environment.rank, names.size, environment.size);
  environment.local_rank = number(names.local_rank, 0, kMaxRanks).value_or(environment.rank);
  if (inherited || environment.is_alone()) {
    return environment;
  }
  const bool is_torchrun = launcher == &kTorchrun;
  const std::string job = text(names.job) + (is_torchrun ? "" : "." + text("SLURM_STEP_ID"));
  const auto port = number("MASTER_PORT", 1, 65535);
  USER_ERROR_IF(!port && is_torchrun,
                "the environment has RANK but no MASTER_PORT; set it to a port that is free on "
                "rank 0's host, the same for all ranks");
  // Equal in every process of the job, and below the ports that Linux gives to clients.
  const auto job_port = static_cast<int64_t>(20000 + std::hash<std::string>{}(job) % 12000);
  environment.store_port = static_cast<uint16_t>(port.value_or(job_port));
  const bool is_one_host =
      number(names.local_size, 1, kMaxRanks) == (launcher == &kSlurm ? 1 : environment.size);
  const std::string host = text("MASTER_ADDR");
  USER_ERROR_IF(host.empty() && !is_one_host,
                "{} started {} processes, which may be on several hosts; set MASTER_ADDR to the "
                "name or address of rank 0's host",
                environment.launcher, environment.size);
  environment.store_host = host.empty() ? environment.store_host : host;
  const std::string served = text("TORCHELASTIC_USE_AGENT_STORE");
  environment.has_agent_store = served == "True" || served == "true" || served == "1";
  // Differs between restarts that share an agent's store, and between jobs that share a port.
  environment.run_name = fmt::format("moe/{}/{}/", job, text("TORCHELASTIC_RESTART_COUNT"));
  environment.interface = text("GLOO_SOCKET_IFNAME");
  return environment;
}

Variables launched_variables(int64_t rank, int64_t size, int inherited_store) {
  return {{kInheritedStore, fmt::format("{}", inherited_store)},
          {kTorchrun.rank, fmt::format("{}", rank)},
          {kTorchrun.size, fmt::format("{}", size)},
          {kTorchrun.local_rank, fmt::format("{}", rank)},
          {kTorchrun.local_size, fmt::format("{}", size)}};
}

Seconds WaitClock::elapsed() {
  constexpr Seconds kStopped{0.7}, kUsualGap{0.25};
  const auto now = std::chrono::steady_clock::now();
  const Seconds gap = now - last_;
  waited_ += gap > kStopped ? kUsualGap : gap;
  last_ = now;
  return waited_;
}

Store::Store(c10::intrusive_ptr<c10d::Store> store, Seconds answer_limit)
    : store_(store.get(), [owner = store](c10d::Store* /*pointer*/) {}),
      answer_limit_(answer_limit) {}

// Throws std::runtime_error after answer_limit_: c10d has no limit if the network is broken
// (TCPStore) or a stopped process holds the file lock (FileStore).
template <typename Work>
auto Store::within_limit(Work work) const {
  WaitClock clock;
  try {
    return run_in_thread(work, [&] {
      if (clock.elapsed() > answer_limit_) {
        throw std::exception();
      }
    });
  } catch (const std::exception& error) {  // c10d's message has a stack trace
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
      return work();  // no thread can be started: runs without a limit
    }
    throw std::runtime_error("the store of the run does not answer");
  }
}

void Store::set(const std::string& key, const std::string& value) {
  within_limit([store = store_, key, value] { store->set(key, value); });
}

std::string Store::set_once(const std::string& key, const std::string& value) {
  return within_limit([store = store_, key, value] { return store->compareSet(key, "", value); });
}

std::optional<std::string> Store::read(const std::string& key) {
  return within_limit([store = store_, key]() -> std::optional<std::string> {
    return store->check({key}) ? std::optional(store->get_to_str(key)) : std::nullopt;
  });
}

Store Store::connect_again() const { return {store_->clone(), answer_limit_}; }

c10::intrusive_ptr<c10d::Store> Store::with_prefix(const std::string& prefix) const {
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix, c10::intrusive_ptr<c10d::Store>::reclaim_copy(store_.get()));
}

Store open_inherited_store(const Descriptor& file, Seconds timeout) {
  struct stat status {};
  USER_ERROR_IF(fstat(file.get(), &status) != 0 || status.st_uid != geteuid() ||
                    fcntl(file.get(), F_GET_SEALS) < 0,  // fails for all but memory files
                "descriptor {} is not the store of a run that moe --ranks started", file.get());
  // FileStore opens its file by name for every operation, the last time in its destructor. This
  // descriptor therefore stays open until the process ends.
  const int copy = fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  auto store = c10::make_intrusive<c10d::FileStore>(fmt::format("/proc/self/fd/{}", copy),
                                                    /*numWorkers=*/-1);  // keeps its file
  store->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  return {std::move(store), timeout / 2};
}

Store serve_store(const std::string& host, uint16_t port, const std::string& prefix,
                  Seconds timeout) {
  for (const std::string& name : {host, local_address(host, port)}) {
    const auto addresses = resolve(name, port);
    for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
      Descriptor listening(socket(next->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int yes = 1;
      setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
      if (bind(listening.get(), next->ai_addr, next->ai_addrlen) == 0 &&
          listen(listening.get(), SOMAXCONN) == 0) {
        return run_in_thread(  // the server's thread inherits the mask of signals
            [&, address = numeric(next->ai_addr, next->ai_addrlen)] {
              return open_tcp_store(address, port, listening.release(), prefix, timeout);
            },
            [] {});
      }
      USER_ERROR_IF(errno == EADDRINUSE || errno == EACCES,
                    "rank 0 cannot listen on port {} ({}); set MASTER_PORT to a free port", port,
                    std::strerror(errno));
    }
  }
  throw UserError("MASTER_ADDR '{}' is not an address of rank 0's host; correct it", host);
}

Store connect_store(const std::string& host, uint16_t port, const std::string& prefix,
                    Seconds timeout) {
  try {
    return open_tcp_store(host, port, std::nullopt, prefix, timeout);
  } catch (const std::exception&) {
    throw UserError(
        "no answer from {} port {} within {:g} s; check that rank 0 runs there, and MASTER_ADDR "
        "and MASTER_PORT",
        host, port, timeout.count());
  }
}

std::string local_address(const std::string& host, uint16_t port) {
  const auto addresses = resolve(host, port);
  for (const addrinfo* next = addresses.get(); next != nullptr; next = next->ai_next) {
    // Connecting a datagram socket sends nothing.
    const Descriptor probe(socket(next->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    if (connect(probe.get(), next->ai_addr, next->ai_addrlen) == 0 &&
        getsockname(probe.get(), address, &length) == 0) {
      return numeric(address, length);
    }
  }
  throw UserError(
      "no network interface of this host routes to MASTER_ADDR '{}'; correct it, or bring the "
      "loopback interface up if all ranks are on this host (ip link set lo up)",
      host);
}

std::string this_machine() {
  std::error_code ignored;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

Member this_member(const std::string& address) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), address, this_machine(), getpid()};
}

std::string describe(int64_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

ExitReason describe_exception(int64_t rank) {
  std::string text = "unknown exception";
  try {
    if (std::current_exception()) {
      throw;
    }
  } catch (const RankFailed& error) {
    return {rank, error.reason.exit_code, error.what()};
  } catch (const UserError& error) {
    return {rank, kUserError, error.what()};
  } catch (const Interrupted& error) {
    return {rank, kInterrupted, error.what()};
  } catch (const std::bad_alloc&) {
    text = "out of memory";
  } catch (const std::exception& error) {  // a stack trace may follow the first line
    text = error.what();
  } catch (...) {
  }
  text = text.substr(0, text.find('\n'));
  return {rank, kFailed, fmt::format("{} failed ({})", describe(rank, this_member()), text)};
}

void throw_reason(const ExitReason& reason) {
  USER_ERROR_IF(reason.exit_code == kUserError, "{}", reason.text);
  if (reason.exit_code == kInterrupted) {
    throw Interrupted(reason.text);
  }
  throw RankFailed(reason);
}

void claim_rank(Store& store, int64_t rank, const Member& own) {
  const std::string record =
      fmt::format("{}\n{}\n{}\n{}", own.host, own.address, own.machine, own.pid);
  USER_ERROR_IF(store.set_once(member_key(rank), record) != record,
                "another process is rank {} of a run with the same MASTER_ADDR and MASTER_PORT; "
                "give each run its own port",
                rank);
}

std::vector<Member> join(Store& store, int64_t size, Seconds timeout) {
  std::vector<Member> members(size);
  std::vector<int64_t> missing(size);
  std::iota(missing.begin(), missing.end(), 0);
  const auto has_joined = [&](int64_t rank) {
    const auto text = store.read(member_key(rank));
    std::istringstream lines(text.value_or(""));
    Member& member = members[rank];
    for (std::string* field : {&member.host, &member.address, &member.machine}) {
      std::getline(lines, *field);
      *field = printable(*field);
    }
    lines >> member.pid;
    return text.has_value();
  };
  for (WaitClock clock;; std::this_thread::sleep_for(kStorePoll)) {
    std::erase_if(missing, has_joined);
    if (missing.empty()) {
      return members;
    }
    if (auto verdict = read_verdict(store)) {
      verdict->text += ": before all ranks had joined";
      throw RankFailed(*verdict);
    }
    if (clock.elapsed() > timeout) {
      const std::string list = printable(fmt::format("{}", fmt::join(missing, ", ")), 40);
      throw RankFailed(
          {missing.front(), kFailed,
           fmt::format("{} {} of {} did not join within {:g} s of the start",
                       missing.size() == 1 ? "rank" : "ranks", list, size, timeout.count())});
    }
  }
}

ExitReason set_verdict(Store& store, const ExitReason& verdict) {
  return parse_reason(store.set_once(kVerdict, to_record(verdict)));
}

std::optional<ExitReason> read_verdict(Store& store) {
  const auto text = store.read(kVerdict);
  return text ? std::optional(parse_reason(*text)) : std::nullopt;
}

void write_exit(Store& store, int64_t rank, const std::optional<ExitReason>& failure) {
  store.set(exit_key(rank), failure ? to_record(*failure) : "");
}

std::optional<ExitReason> read_failure(Store& store, int64_t rank) {
  const auto text = store.read(exit_key(rank));
  return text && !text->empty() ? std::optional(parse_reason(*text)) : std::nullopt;
}

void wait_for_exits(Store& store, int64_t size, int64_t except, Seconds limit) {
  WaitClock clock;
  for (int64_t rank = 0; rank < size; ++rank) {
    while (rank != except && clock.elapsed() < limit && !store.read(exit_key(rank))) {
      std::this_thread::sleep_for(kStorePoll);
    }
  }
}

}  // namespace moe::distributed
