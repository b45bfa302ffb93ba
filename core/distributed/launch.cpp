#include "core/distributed/launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Flags.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/distributed/process_group.h"

C10_DECLARE_int(caffe2_log_level);

namespace moe::distributed {
namespace {

constexpr Seconds kUntilKilled = ProcessGroup::kHardDeadline + Seconds{10};
constexpr Seconds kUntilOthersExit{3}, kUntilOthersRead{0.3};
constexpr Seconds kUntilExit{5};  // from the decision to exit to _Exit, if the store blocks

// Process of one rank that the launcher starts. Killed when its parent ends. Ranks other than 0
// have no standard input and output, and write standard error to a memory file.
struct Child {
  int64_t rank;
  Descriptor standard_error;
  pid_t pid = -1;
  std::optional<int> exit_code = {};  // 128 + the signal, if one ended it
};

Child start_child(int64_t rank, const Variables& variables, const Descriptor& store) {
  std::string words = read_small_file("/proc/self/cmdline");  // each ends with '\0'
  std::vector<char*> arguments;
  for (size_t at = 0; at < words.size(); at += std::strlen(&words[at]) + 1) {
    arguments.push_back(&words[at]);
  }
  arguments.push_back(nullptr);
  for (const auto& [name, value] : variables) {
    setenv(name.c_str(), value.c_str(), 1);  // here, because a child of fork must not allocate
  }
  Child child{rank, rank == 0 ? Descriptor() : make_memory_file()};
  child.pid = fork();
  if (child.pid == 0) {  // no allocation until exec: other threads may have held locks
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (child.standard_error.is_open()) {
      const int null = open("/dev/null", O_RDWR);
      dup2(null, STDIN_FILENO);
      dup2(null, STDOUT_FILENO);
      dup2(child.standard_error.get(), STDERR_FILENO);
    }
    fcntl(store.get(), F_SETFD, 0);  // stays open in exec
    const sigset_t none{};
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv("/proc/self/exe", arguments.data());
    _exit(127);
  }
  if (child.pid < 0) {
    throw std::runtime_error(
        fmt::format("rank {} cannot be started: {}", rank, std::strerror(errno)));
  }
  return child;
}

void print_last_output(Child& child) {
  constexpr off_t kMaxPrinted = 16 << 10;
  if (const off_t size = lseek(child.standard_error.get(), 0, SEEK_END); size > 0) {
    FileReader reader(std::move(child.standard_error), "standard error");
    reader.seek(std::max<off_t>(0, size - kMaxPrinted));
    for (std::string line; reader.read_line(line);) {
      print_text(stderr, "[rank {}] {}\n", child.rank, terminal_text(line));
    }
  }
}

// Blocks and returns the signals that the launcher polls, except those that this process was told
// to ignore (nohup). SIGCHLD gets its default action: if it is ignored, exit codes are lost.
sigset_t block_polled_signals() {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t polled{};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      sigaddset(&polled, signal);
    }
  }
  pthread_sigmask(SIG_BLOCK, &polled, nullptr);
  return polled;
}

// Starts the ranks of --ranks N, forwards signals to them, and ends them if one fails.
class Launcher {
 public:
  explicit Launcher(const RankSettings& settings)
      : timeout_(settings.timeout_s), store_(open_inherited_store(store_file_, timeout_)) {
    for (int64_t rank = 0; rank < settings.ranks; ++rank) {
      Variables variables = launched_variables(rank, settings.ranks, store_file_.get());
      if (settings.threads == 0 && getenv("OMP_NUM_THREADS") == nullptr) {
        variables["OMP_NUM_THREADS"] =
            fmt::format("{}", std::max<int64_t>(1, usable_processors() / settings.ranks));
      }
      children_.push_back(start_child(rank, variables, store_file_));
    }
  }

  // Blocks until all ranks have exited. Throws the reason of the first failure.
  void run() {
    while (is_any_running(-1)) {
      const timespec timeout = {0, 50'000'000};
      if (const int signal = sigtimedwait(&signals_, nullptr, &timeout);
          signal > 0 && signal != SIGCHLD) {
        forwarded_ = signal;
        send(signal);
      }
      for (Child& child : children_) {
        reap(child);
      }
      const auto verdict = kill_after_ ? read_verdict(store_) : std::nullopt;
      if (kill_after_ &&
          (clock_.elapsed() > *kill_after_ || (verdict && !is_any_running(verdict->rank)))) {
        was_killed_ = true;
        send(SIGKILL);
      }
    }
    throw_failure();
  }

 private:
  bool is_any_running(int64_t except) const {
    return std::ranges::any_of(
        children_, [&](const Child& child) { return !child.exit_code && child.rank != except; });
  }

  // Sends `signal` to the running ranks. Ctrl-C and Ctrl-Z of a terminal reach the ranks directly,
  // because they are in the process group of the launcher.
  void send(int signal) {
    for (const Child& child : children_) {
      if (!child.exit_code) {
        kill(child.pid, signal);
      }
    }
  }

  // Collects the exit code of a rank. Sets the verdict if the rank failed without a report.
  void reap(Child& child) {
    int status = 0;
    if (child.exit_code || waitpid(child.pid, &status, WNOHANG) != child.pid) {
      return;
    }
    const int signal = WIFEXITED(status) ? 0 : WTERMSIG(status);
    const int exit_code = signal == 0 ? WEXITSTATUS(status) : 128 + signal;
    child.exit_code = exit_code;
    if (exit_code == 0) {
      return;
    }
    if (!was_killed_ && !read_failure(store_, child.rank) &&
        (forwarded_ == 0 || exit_code != 128 + forwarded_)) {
      Member member = this_member();
      member.pid = child.pid;
      const std::string exit = signal == 0
                                   ? fmt::format("exit code {}", exit_code)
                                   : fmt::format("signal {}, {}", signal, strsignal(signal));
      set_verdict(store_, {child.rank, kFailed,
                           fmt::format("{} has exited ({})", describe(child.rank, member), exit)});
    }
    if (!kill_after_) {  // interrupted ranks may still write files, for example a checkpoint
      kill_after_ = exit_code == kInterrupted ? timeout_ : kUntilKilled;
      clock_ = {};
    }
  }

  void throw_failure() {
    const auto verdict = read_verdict(store_);
    const auto failure = read_failure(store_, verdict && verdict->rank == 0 ? 1 : 0);
    if (verdict) {
      for (Child& child : children_) {
        if (child.rank == verdict->rank && child.exit_code != 0 &&
            !read_failure(store_, child.rank)) {
          if (child.rank == 0 && child.exit_code < 128) {  // it printed its error to our stderr
            std::fflush(nullptr);
            std::_Exit(*child.exit_code);
          }
          print_last_output(child);
        }
      }
      // The text of a rank that did not fail itself is the verdict followed by its position.
      const bool has_position = failure && failure->text.find(verdict->text) != std::string::npos;
      throw_reason(
          {verdict->rank, verdict->exit_code, has_position ? failure->text : verdict->text});
    }
    if (failure && failure->exit_code == kInterrupted) {
      throw_reason(*failure);
    }
    if (forwarded_ != 0) {
      throw Interrupted(fmt::format("stopped by signal {}", forwarded_));
    }
    if (was_killed_) {
      throw std::runtime_error("the ranks had to be killed");
    }
  }

  const sigset_t signals_ = block_polled_signals();  // first: before the store starts a thread
  const Seconds timeout_;
  const Descriptor store_file_ = make_memory_file();  // inherited by the ranks
  Store store_;
  std::vector<Child> children_;
  int forwarded_ = 0;                  // the last signal from the user
  std::optional<Seconds> kill_after_;  // from the first failure until the other ranks are killed
  WaitClock clock_;                    // since the first failure
  bool was_killed_ = false;            // this process has killed the remaining ranks
};

// Ends the process without destructors, which may wait for ranks that have exited. The message is
// printed by the launcher of --ranks, else by rank 0, or rank 1 if rank 0 failed without a report.
[[noreturn]] void end_process(const Environment& environment, Store store, const ExitReason& own) {
  static std::atomic_flag is_ending;
  while (is_ending.test_and_set()) {
    pause();  // another thread ends the process
  }
  std::atomic<bool> prints = environment.launcher != "moe";
  const auto print = [&] {
    if (prints.exchange(false)) {
      print_text(stderr, "moe: {}\n", terminal_text(own.text));
    }
  };
  std::thread([&] {  // refers to variables of a function that does not return
    std::this_thread::sleep_for(kUntilExit);
    print();
    std::_Exit(own.exit_code);
  })
      .detach();
  try {
    write_exit(store, own.rank, own);
    const auto verdict = own.exit_code == kInterrupted ? read_verdict(store)
                                                       : std::optional(set_verdict(store, own));
    const int64_t failed_rank = verdict ? verdict->rank : -1;
    if (own.rank == 0 || (own.rank == 1 && failed_rank == 0 && !read_failure(store, 0))) {
      print();
    }
    prints = false;
    if (environment.serves_store()) {
      wait_for_exits(store, environment.size, failed_rank, kUntilOthersExit);
      std::this_thread::sleep_for(kUntilOthersRead);
    }
  } catch (const std::exception&) {  // the rank that serves the store has exited
    print();
  }
  std::fflush(nullptr);
  std::_Exit(own.exit_code);
}

std::atomic<ProcessGroup*> current_group = nullptr;  // NOLINT: read by a terminate handler

// Handles an exception that ends a thread, such as an error in the watchdog of NCCL.
[[noreturn]] void on_terminate() {
  if (ProcessGroup* group = current_group) {
    group->report_broken(describe_exception(group->rank).text);
  }
  for (;;) {
    pause();  // the group's thread finds the reason and ends the process
  }
}

void run_as_rank(const Environment& environment, Seconds timeout, at::Device device,
                 const std::function<void(Comm&)>& body) {
  if (getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = 3;  // fatal only: moe reports these failures itself
  }
  const Member own = this_member(local_address(environment.store_host, environment.store_port));
  const Descriptor inherited(environment.inherited_store);
  fcntl(inherited.get(), F_SETFD, FD_CLOEXEC);  // not inherited by child programs
  const auto open_tcp = environment.serves_store() ? serve_store : connect_store;
  Store store = inherited.is_open() ? open_inherited_store(inherited, timeout)
                                    : open_tcp(environment.store_host, environment.store_port,
                                               environment.run_name, timeout);
  claim_rank(store, environment.rank, own);
  // Declared before `try`: its thread enforces kHardDeadline until end_process() ends the process.
  std::unique_ptr<ProcessGroup> group;
  try {
    group = std::make_unique<ProcessGroup>(
        store, environment.rank, join(store, environment.size, timeout), timeout,
        environment.store_rank(), [environment, store](ExitReason reason) {
          reason.rank = environment.rank;
          end_process(environment, store, reason);
        });
    group->interface = environment.interface;
    current_group = group.get();
    const auto before = std::set_terminate(on_terminate);
    {
      const auto comm = make_process_comm(*group, device);
      check_same_on_all_ranks(*comm, "the program",
                              fmt::format("moe {} with LibTorch {}", kVersion, TORCH_VERSION));
      body(*comm);
      comm->barrier();
      group->check();
    }
    std::set_terminate(before);
    current_group = nullptr;
    group.reset();
  } catch (...) {
    end_process(environment, store, describe_exception(environment.rank));
  }
  try {
    write_exit(store, environment.rank, std::nullopt);
    if (environment.serves_store()) {
      wait_for_exits(store, environment.size, -1, timeout);
    }
  } catch (const std::exception&) {  // rank 0, which serves the store, has exited
  }
}

}  // namespace

int64_t rank_gpu(int64_t local_rank, int64_t num_visible, bool is_assigned) {
  const int64_t gpu = is_assigned && num_visible == 1 ? 0 : local_rank;
  USER_ERROR_IF(gpu >= num_visible,
                "--device cuda: rank {} of this host has no GPU of its own ({} visible); start at "
                "most one rank per GPU, or let the launcher show each rank one "
                "(CUDA_VISIBLE_DEVICES), or use --device cpu",
                local_rank, num_visible);
  return gpu;
}

void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body) {
  const Environment environment = read_environment(::getenv);
  USER_ERROR_IF(
      !environment.is_alone() && settings.ranks != 0 && settings.ranks != environment.size,
      "--ranks {}, but {} has started {} processes; leave out --ranks", settings.ranks,
      environment.launcher, environment.size);
  if (environment.is_alone() && settings.ranks > 1) {
    if (settings.on_cuda) {  // reported once, before any rank is started
      rank_gpu(settings.ranks - 1, c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount(), false);
    }
    local_address(environment.store_host, 1);  // throws if the loopback interface is down
    // A limit on file sizes truncates records of the store: c10d's FileStore takes the length of
    // such a record from the bytes that follow it.
    constexpr rlim_t kStoreBytes = 1 << 20;
    rlimit limit{};
    USER_ERROR_IF(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kStoreBytes,
                  "ulimit -f allows files of {} bytes, --ranks needs {}; raise the limit",
                  limit.rlim_cur, kStoreBytes);
    return Launcher(settings).run();
  }
  at::Device device = at::kCPU;
  if (settings.on_cuda) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const int64_t gpu = rank_gpu(environment.local_rank, guard.deviceCount(), true);
    device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    guard.setDevice(device);
  }
  if (environment.is_alone()) {
    return body(*solo_comm(device));
  }
  run_as_rank(environment, Seconds{settings.timeout_s}, device, body);
}

}  // namespace moe::distributed
