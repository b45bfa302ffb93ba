#include "core/distributed/launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Flags.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/distributed/process_group.h"

C10_DECLARE_int(caffe2_log_level);

namespace moe::distributed {
namespace {

constexpr int kFailed = 1, kUserError = 2, kInterrupted = 130;  // exit codes of main()
constexpr Seconds kUntilKilled = Monitor::kHardDeadline + Seconds{10};
constexpr Seconds kUntilOthersEnd{3}, kUntilOthersRead{0.3};
constexpr Seconds kUntilExit{5};  // from the decision to exit to _Exit, whatever blocks
constexpr std::chrono::milliseconds kStorePoll{20};
constexpr const char* kDone = "done";  // counts ranks that need the store no longer

// Process of one rank that the launcher starts. Killed when its parent ends. Ranks other than 0
// have no standard input and output, and write standard error to a memory file.
struct Child {
  int64_t rank;
  pid_t pid = -1;
  Descriptor standard_error;
  std::optional<int> status;

  Child(int64_t its_rank, const Variables& variables, const Descriptor& store);
  Child(Child&&) = default;

  bool has_exited() const { return status.has_value(); }
  int exit_code() const {  // 128 + the signal, if one ended it
    return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  }
  std::string describe_exit() const {  // "signal 9, Killed", "exit code 3"
    return WIFEXITED(*status)
               ? fmt::format("exit code {}", WEXITSTATUS(*status))
               : fmt::format("signal {}, {}", WTERMSIG(*status), strsignal(WTERMSIG(*status)));
  }
  void print_last_output() const;
};

Child::Child(int64_t its_rank, const Variables& variables, const Descriptor& store)
    : rank(its_rank) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) {
    arguments.push_back(word);
  }
  std::vector<char*> argument_pointers;
  for (auto& argument : arguments) {
    argument_pointers.push_back(argument.data());
  }
  argument_pointers.push_back(nullptr);
  for (const auto& [name, value] : variables) {
    setenv(name.c_str(), value.c_str(), 1);  // here, because a child of fork must not allocate
  }
  if (rank != 0) {
    standard_error = make_memory_file();
  }
  const pid_t parent = getpid();
  pid = fork();
  if (pid == 0) {  // no allocation until exec: other threads may have held locks
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    if (standard_error.is_open()) {
      const int null = open("/dev/null", O_RDWR);
      dup2(null, STDIN_FILENO);
      dup2(null, STDOUT_FILENO);
      dup2(standard_error.get(), STDERR_FILENO);
    }
    fcntl(store.get(), F_SETFD, 0);  // stays open in exec
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv("/proc/self/exe", argument_pointers.data());
    _exit(127);
  }
  if (pid < 0) {
    throw std::runtime_error(
        fmt::format("rank {} cannot be started: {}", rank, std::strerror(errno)));
  }
}

void Child::print_last_output() const {
  constexpr off_t kMaxPrinted = 16 << 10;
  struct stat file {};
  if (!standard_error.is_open() || fstat(standard_error.get(), &file) != 0) {
    return;
  }
  std::string text(static_cast<size_t>(std::min<off_t>(file.st_size, kMaxPrinted)), '\0');
  const ssize_t count = pread(standard_error.get(), text.data(), text.size(),
                              file.st_size - static_cast<off_t>(text.size()));
  std::istringstream lines(text.substr(0, static_cast<size_t>(std::max<ssize_t>(count, 0))));
  for (std::string line; std::getline(lines, line);) {
    print_text(stderr, "[rank {}] {}\n", rank, terminal_text(line));
  }
}

// Blocks the signals that the launcher polls, except those that this process was told to ignore
// (nohup), and returns them. SIGCHLD gets its default action: if it is ignored, exit codes are
// lost.
sigset_t block_polled_signals() {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t polled;
  sigemptyset(&polled);
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

Variables rank_variables(int64_t rank, const RankSettings& settings, const Descriptor& store) {
  Variables variables = launched_variables(rank, settings.ranks, store.get());
  if (settings.threads == 0 && getenv("OMP_NUM_THREADS") == nullptr) {
    cpu_set_t cores;
    const int64_t count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    variables["OMP_NUM_THREADS"] = fmt::format("{}", std::max<int64_t>(1, count / settings.ranks));
  }
  return variables;
}

// Launcher of --ranks N: starts the ranks, forwards signals to them, and ends them if one fails.
class Launcher {
 public:
  explicit Launcher(const RankSettings& settings)
      : timeout_(settings.timeout_s),
        store_file_(make_memory_file()),
        store_(open_inherited_store(store_file_, timeout_)) {
    for (int64_t rank = 0; rank < settings.ranks; ++rank) {
      children_.emplace_back(rank, rank_variables(rank, settings, store_file_), store_file_);
    }
  }
  ~Launcher() {
    send(SIGKILL);
    for (const Child& child : children_) {
      if (!child.has_exited()) {
        waitpid(child.pid, nullptr, 0);
      }
    }
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  void wait() {
    while (!std::all_of(children_.begin(), children_.end(), std::mem_fn(&Child::has_exited))) {
      const timespec timeout = {0, 50'000'000};
      if (const int signal = sigtimedwait(&signals_, nullptr, &timeout);
          signal > 0 && signal != SIGCHLD) {
        forwarded_ = signal;
        send(signal);
      }
      for (Child& child : children_) {
        reap(child);
      }
      // After an interruption the other ranks exit once their files are written.
      if (first_failure_ &&
          (first_failure_->elapsed() > (is_interrupted_ ? timeout_ : kUntilKilled) ||
           is_reason_left())) {
        was_killed_ = true;
        send(SIGKILL);
      }
    }
  }

  // Throws the reason of the first failure.
  void report() {
    const auto verdict = read_verdict(store_);
    std::vector<Ending> endings;
    for (const Child& child : children_) {
      if (const auto ending = read_ending(store_, child.rank)) {
        endings.push_back(*ending);
      } else if (child.exit_code() != 0 && verdict && verdict->rank == child.rank) {
        child.print_last_output();
      }
    }
    const auto find_text = [&](auto condition) -> std::optional<std::string> {
      const auto found = std::find_if(endings.begin(), endings.end(), condition);
      return found == endings.end() ? std::nullopt : std::optional(found->text);
    };
    if (verdict) {
      // Another rank adds its position.
      const auto affected = find_text(
          [&](const Ending& e) { return e.text.find(verdict->text) != std::string::npos; });
      const std::string sentence = affected.value_or(verdict->text);
      if (verdict->exit_code == kUserError) {
        throw UserError("{}", sentence);
      }
      throw std::runtime_error(sentence);
    }
    const auto interrupted = find_text([](const Ending& e) { return e.exit_code == kInterrupted; });
    if (interrupted || forwarded_ != 0) {
      throw Interrupted(interrupted.value_or(fmt::format("stopped by signal {}", forwarded_)));
    }
    if (was_killed_) {
      throw std::runtime_error("the ranks had to be killed");
    }
  }

 private:
  // Signals of a terminal (Ctrl-C, Ctrl-Z) reach the ranks, which are in the same process group,
  // without the launcher.
  void send(int signal) {
    for (const Child& child : children_) {
      if (!child.has_exited()) {
        kill(child.pid, signal);
      }
    }
  }

  // Reports an exit for a rank that has not reported it itself.
  void reap(Child& child) {
    int status = 0;
    if (child.has_exited() || waitpid(child.pid, &status, WNOHANG) != child.pid) {
      return;
    }
    child.status = status;
    if (child.exit_code() == 0) {
      return;
    }
    if (!was_killed_ && !read_ending(store_, child.rank) &&
        (forwarded_ == 0 || child.exit_code() != 128 + forwarded_)) {
      Member member = this_member("");
      member.pid = child.pid;
      set_verdict(store_, {child.rank, kFailed,
                           fmt::format("{} is gone ({})", describe(child.rank, member),
                                       child.describe_exit())});
    }
    if (!first_failure_) {
      first_failure_.emplace();
      is_interrupted_ = child.exit_code() == kInterrupted;
    }
  }

  // Returns true if only the rank that the verdict names has not exited.
  bool is_reason_left() {
    const auto verdict = read_verdict(store_);
    return verdict && std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
             return child.has_exited() || child.rank == verdict->rank;
           });
  }

  const sigset_t signals_ = block_polled_signals();  // first: before the store starts a thread
  Seconds timeout_;
  Descriptor store_file_;  // inherited by the ranks
  Store store_;
  std::vector<Child> children_;
  int forwarded_ = 0;  // the last signal from the user
  std::optional<WaitClock> first_failure_;
  bool is_interrupted_ = false;  // the first rank that exited was
  bool was_killed_ = false;      // the rest of the ranks, by this process
};

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
    const Ending ending{rank, kUserError, error.what()};
    return {ending, ending};
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
                  Store store, const std::string& address, const std::function<void(Comm&)>& body) {
  const Seconds timeout{settings.timeout_s};
  const auto members =
      join(store, environment.rank, environment.size, this_member(address),
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
  if (getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = 3;  // fatal: our messages say what c10d warns of
  }
  if (environment.inherited_store >= 0) {
    fcntl(environment.inherited_store, F_SETFD, FD_CLOEXEC);  // not for programs that we start
  }
  const Descriptor inherited(environment.inherited_store);
  const std::string address = address_towards(environment.store_host, environment.store_port);
  const auto open_tcp = serves_store(environment) ? serve_store : connect_store;
  Store store = inherited.is_open() ? open_inherited_store(inherited, timeout)
                                    : open_tcp(environment.store_host, environment.store_port,
                                               environment.run_name, timeout);
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
    address_towards(environment.store_host, 1);  // throws if the loopback interface is down
    Launcher launcher(settings);
    launcher.wait();
    return launcher.report();
  }
  const at::Device device = pick_device(settings, environment.local_rank);
  if (environment.is_alone()) {
    return body(*solo_comm(device));
  }
  take_part(environment, settings, device, body);
}

}  // namespace moe::distributed
