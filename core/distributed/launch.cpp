#include "core/distributed/launch.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/distributed/environment.h"
#include "core/distributed/monitor.h"

namespace moe::distributed {
namespace {

constexpr Seconds kUntilKilled = Monitor::kHardDeadline + Seconds{10};
constexpr off_t kMaxPrinted = 16 << 10;  // bytes of the standard error of a rank that crashed

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) {
    arguments.push_back(word);
  }
  return arguments;
}

// The process of one rank. Killed with its parent, however that ends. Ranks other than 0 have no
// standard input and output, and write standard error to a memory file.
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
  std::vector<std::string> arguments = own_arguments();
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
  struct stat file {};
  if (!standard_error.is_open() || fstat(standard_error.get(), &file) != 0) {
    return;
  }
  std::string text(static_cast<size_t>(std::min<off_t>(file.st_size, kMaxPrinted)), '\0');
  const ssize_t count = pread(standard_error.get(), text.data(), text.size(),
                              file.st_size - static_cast<off_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  std::istringstream lines(text);
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
  if (settings.threads == 0 && process_variables().count("OMP_NUM_THREADS") == 0) {
    cpu_set_t cores;
    const int64_t count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    variables["OMP_NUM_THREADS"] = fmt::format("{}", std::max<int64_t>(1, count / settings.ranks));
  }
  return variables;
}

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
    const auto has_exited = [](const Child& child) { return child.has_exited(); };
    while (!std::all_of(children_.begin(), children_.end(), has_exited)) {
      const timespec timeout = {0, 50'000'000};
      if (const int signal = sigtimedwait(&signals_, nullptr, &timeout);
          signal > 0 && signal != SIGCHLD) {
        forwarded_ = signal;
        send(signal);
      }
      for (Child& child : children_) {
        reap(child);
      }
      if (first_failure_ && (first_failure_->elapsed() > time_to_report() || is_reason_left())) {
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
    const auto find = [&](auto condition) {
      return std::find_if(endings.begin(), endings.end(), condition);
    };
    if (verdict) {
      // Another rank adds its position.
      const auto affected =
          find([&](const Ending& e) { return e.text.find(verdict->text) != std::string::npos; });
      const auto sentence = affected != endings.end() ? affected->text : verdict->text;
      if (verdict->exit_code == 2) {
        throw UserError("{}", sentence);
      }
      throw std::runtime_error(sentence);
    }
    const auto interrupted = find([](const Ending& e) { return e.exit_code == kInterrupted; });
    if (interrupted != endings.end() || forwarded_ != 0) {
      throw Interrupted(interrupted != endings.end()
                            ? interrupted->text
                            : fmt::format("stopped by signal {}", forwarded_));
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
      set_verdict(store_, {child.rank, 1,
                           fmt::format("{} is gone ({})", describe(child.rank, member),
                                       child.describe_exit())});
    }
    if (!first_failure_) {
      first_failure_.emplace();
      is_interrupted_ = child.exit_code() == kInterrupted;
    }
  }

  // After an interruption the other ranks follow once their files are written.
  Seconds time_to_report() const { return is_interrupted_ ? timeout_ : kUntilKilled; }

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

}  // namespace

void launch(const RankSettings& settings) {
  address_towards("127.0.0.1", 1);  // throws if the loopback interface is down
  Launcher launcher(settings);
  launcher.wait();
  launcher.report();
}

}  // namespace moe::distributed
