#include "core/distributed/launch.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/distributed/environment.h"
#include "core/distributed/heartbeats.h"
#include "core/distributed/rendezvous.h"
#include "core/distributed/shared_memory.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Seconds kUntilFound{15};  // for the others to find out that one ended badly
constexpr Seconds kUntilAll{5};     // for them all, once one has written where it found out
constexpr Seconds kAfterTerm{2};    // from SIGTERM to SIGKILL
// The rings of a Comm are at most 16 MiB a rank (ring_capacity); a rank is in all, in its group and
// among its replicas. Only what is written takes memory.
constexpr size_t kPoolBytesARank = size_t{128} << 20;

constexpr size_t kMostKept = 16 << 10;  // bytes of last output

// This process's command line.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) {
    arguments.push_back(word);
  }
  return arguments;
}

// Texts as exec takes them; `texts` outlives it.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (auto& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const Variables& added) {
  Variables all = process_variables();
  for (const auto& [name, value] : added) {
    all[name] = value;
  }
  std::vector<std::string> texts;
  for (const auto& [name, value] : all) {
    texts.push_back(name + "=" + value);
  }
  return texts;
}

// The way from fork to exec: nothing here allocates, for other threads held locks when we forked.
[[noreturn]] void become_rank(char** arguments, char** environment, pid_t parent, pid_t group,
                              int standard_error, const std::vector<int>& inherited) {
  setpgid(0, group);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {  // it died before we asked to be told
    _exit(1);
  }
  if (standard_error >= 0) {
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    dup2(standard_error, STDERR_FILENO);
  }
  for (const int descriptor : inherited) {
    fcntl(descriptor, F_SETFD, 0);  // not closed on exec
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve("/proc/self/exe", arguments, environment);
  _exit(127);
}

// A process that runs this command line as one rank. It dies with its parent, however that dies.
class Child {
 public:
  // `group`: the process group that it joins, 0 = one of its own. `has_terminal`: it has the
  // standard streams of this process; else its standard error comes here, its input is empty, and
  // what it prints is dropped. Of the other descriptors of this process it has `inherited`.
  Child(int64_t rank, const Variables& variables, pid_t group, bool has_terminal,
        const std::vector<int>& inherited);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  int64_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  bool has_ended() const { return status_.has_value(); }
  int exit_code() const;             // 128 + the signal that ended it; of one that has ended
  std::string describe_end() const;  // "signal 9, Killed", "exit code 3"

  void reap();                 // does not wait
  void read_standard_error();  // what came meanwhile

  // The end of what it wrote to standard error.
  const std::string& last_output() const { return last_output_; }

 private:
  int64_t rank_;
  pid_t pid_ = -1;
  int standard_error_ = -1;
  std::optional<int> status_;
  std::string last_output_;
};

Child::Child(int64_t rank, const Variables& variables, pid_t group, bool has_terminal,
             const std::vector<int>& inherited)
    : rank_(rank) {
  std::vector<std::string> arguments = own_arguments();
  std::vector<std::string> environment = environment_with(variables);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  std::array<int, 2> ends = {-1, -1};
  if (!has_terminal && pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::runtime_error(fmt::format("no pipe for rank {}: {}", rank, std::strerror(errno)));
  }
  if (!has_terminal) {  // its writes wait where the pipe is full
    fcntl(ends[1], F_SETFL, 0);
  }
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    become_rank(const_cast<char**>(argument_pointers.data()),
                const_cast<char**>(environment_pointers.data()), parent, group, ends[1], inherited);
  }
  const int error = errno;
  if (!has_terminal) {
    close(ends[1]);
    standard_error_ = ends[0];
  }
  if (pid_ < 0) {
    throw std::runtime_error(
        fmt::format("rank {} cannot be started: {}", rank, std::strerror(error)));
  }
  setpgid(pid_, group == 0 ? pid_ : group);  // whoever of the two comes first
}

Child::Child(Child&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      standard_error_(std::exchange(other.standard_error_, -1)),
      status_(other.status_),
      last_output_(std::move(other.last_output_)) {}

Child::~Child() {
  if (pid_ > 0 && !has_ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (standard_error_ >= 0) {
    close(standard_error_);
  }
}

void Child::reap() {
  int status = 0;
  if (!has_ended() && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
  }
}

void Child::read_standard_error() {
  std::array<char, 4096> bytes;
  ssize_t count = 0;
  while (standard_error_ >= 0 && (count = read(standard_error_, bytes.data(), bytes.size())) > 0) {
    last_output_.append(bytes.data(), static_cast<size_t>(count));
  }
  if (last_output_.size() > kMostKept) {
    last_output_.erase(0, last_output_.size() - kMostKept);
  }
}

int Child::exit_code() const {
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

std::string Child::describe_end() const {
  return WIFEXITED(*status_)
             ? fmt::format("exit code {}", WEXITSTATUS(*status_))
             : fmt::format("signal {}, {}", WTERMSIG(*status_), strsignal(WTERMSIG(*status_)));
}

// Signals asked for one by one instead of delivered; also in threads made after it. One that this
// process was told to ignore (nohup, a shell's background) is left to be ignored, but for SIGCHLD:
// where that is ignored, nobody learns how a child ended, and the ranks inherit that too.
class HeldSignals {
 public:
  HeldSignals() {
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &by_default, &of_child_before_);
    sigemptyset(&held_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGCHLD}) {
      if (!is_ignored(signal)) {
        sigaddset(&held_, signal);
      }
    }
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    sigaction(SIGCHLD, &of_child_before_, nullptr);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // The next one, or 0 when none comes for a moment.
  int next() const {
    const timespec moment = {0, 50'000'000};
    const int signal = sigtimedwait(&held_, nullptr, &moment);
    return std::max(signal, 0);
  }

  // This process stands still, until it is continued. (Not where no shell could continue it.)
  static void stop_this_process() {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);  // delivered when it is let through
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }

 private:
  static bool is_ignored(int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler == SIG_IGN;
  }

  sigset_t held_ = {}, before_ = {};
  struct sigaction of_child_before_ = {};
};

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

Variables variables_of(int64_t rank, const RankSettings& settings, const Inherited& inherited) {
  Variables variables = launched_variables(rank, settings.ranks, inherited);
  const Variables own = process_variables();
  if (settings.threads == 0 && own.count("OMP_NUM_THREADS") == 0) {
    variables["OMP_NUM_THREADS"] =
        fmt::format("{}", std::max<int64_t>(1, usable_cores() / settings.ranks));
  }
  return variables;
}

class Launcher {
 public:
  explicit Launcher(const RankSettings& settings)
      : settings_(settings),
        store_file_(make_memory_file()),
        memory_(MemoryPool::make(static_cast<size_t>(settings.ranks) * kPoolBytesARank,
                                 heartbeat_bytes(settings.ranks))),
        store_(inherited_store(store_file_, timeout())),
        rendezvous_(store_, -1, settings.ranks) {
    const Inherited inherited{store_file_.get(), memory_.get()};
    for (int64_t rank = 0; rank < settings.ranks; ++rank) {
      children_.emplace_back(rank, variables_of(rank, settings, inherited),
                             children_.empty() ? 0 : children_.front().pid(), rank == 0,
                             std::vector<int>{inherited.store, inherited.memory});
    }
  }

  void watch() {
    while (!all_ended()) {
      pass_on(signals_.next());
      for (auto& child : children_) {
        look_at(child);
      }
      if (first_bad_) {
        end_others();
      }
    }
  }

  void report() {
    const auto records = rendezvous_.final_records();
    const bool all_well = std::all_of(children_.begin(), children_.end(),
                                      [](const Child& child) { return child.exit_code() == 0; });
    if (all_well) {
      return;
    }
    print_output_of_killed(records);
    throw_user_error(records);
    throw_interrupted(records);
    throw_failure(records);
  }

 private:
  void pass_on(int signal) {
    switch (signal) {
      case 0:
      case SIGCHLD:
        return;
      case SIGTSTP:  // Ctrl-Z: the terminal reaches this process alone, the ranks have a group
        kill(-group(), SIGTSTP);
        HeldSignals::stop_this_process();
        kill(-group(), SIGCONT);
        if (first_bad_) {
          first_bad_ = Clock::now();  // no rank had time meanwhile
        }
        return;
      case SIGCONT:
        kill(-group(), SIGCONT);
        return;
      default:
        passed_on_ = signal == SIGHUP ? SIGTERM : signal;
        kill(-group(), passed_on_);
    }
  }

  Seconds timeout() const { return Seconds{settings_.timeout_s}; }
  pid_t group() const { return children_.front().pid(); }
  bool all_ended() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.has_ended(); });
  }

  // Of a rank that ended badly without a final record we write it, so that the others read it.
  void look_at(Child& child) {
    child.read_standard_error();
    if (child.has_ended()) {
      return;
    }
    child.reap();
    if (!child.has_ended() || child.exit_code() == 0) {
      return;
    }
    child.read_standard_error();
    const auto records = rendezvous_.final_records();
    const bool has_record =
        std::any_of(records.begin(), records.end(),
                    [&](const FinalRecord& record) { return record.rank == child.rank(); });
    if (!has_record && !is_stop(child)) {
      rendezvous_.write_final_record(
          {child.rank(), Ending::kKilled, child.rank(), child.describe_end()});
    }
    if (!first_bad_) {
      first_bad_ = Clock::now();
      is_interrupted_ = child.exit_code() == kInterrupted;
    }
  }

  // Ended by what the user sent, or by us.
  bool is_stop(const Child& child) const {
    return (passed_on_ != 0 && child.exit_code() == 128 + passed_on_) ||
           (ended_ && (child.exit_code() == 128 + SIGTERM || child.exit_code() == 128 + SIGKILL));
  }

  // What the others have from the first bad end on. An interruption is decided by all: they are
  // about to follow, once their files are written.
  Seconds grace_period() {
    if (is_interrupted_) {
      return timeout();
    }
    return first_of(rendezvous_.final_records(), Ending::kAffected) == nullptr
               ? std::min(kUntilFound, timeout() / 2)
               : std::min(kUntilAll, timeout() / 3);
  }

  void end_others() {
    const bool is_stuck = only_culprits_left();
    if (!ended_ && (is_stuck || since(*first_bad_) > grace_period())) {
      ended_ = Clock::now();
      kill(-group(), is_stuck ? SIGKILL : SIGTERM);
    } else if (ended_ && since(*ended_) > kAfterTerm) {
      kill(-group(), SIGKILL);
    }
  }

  // Those still there are why the others are not.
  bool only_culprits_left() {
    const auto records = rendezvous_.final_records();
    return std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
      return child.has_ended() ||
             std::any_of(records.begin(), records.end(), [&](const FinalRecord& record) {
               return record.ending == Ending::kAffected && record.culprit == child.rank();
             });
    });
  }

  // Of ranks that ended without a final record of their own, what they wrote matters.
  void print_output_of_killed(const std::vector<FinalRecord>& records) const {
    for (const FinalRecord& record : records) {
      if (record.ending != Ending::kKilled) {
        continue;
      }
      std::istringstream output(children_.at(record.rank).last_output());
      for (std::string line; std::getline(output, line);) {
        print_text(stderr, "[rank {}] {}\n", record.rank, terminal_text(line));
      }
    }
  }

  static std::string by_rank(const FinalRecord& record) {
    return (record.rank == 0 ? "" : fmt::format("[rank {}] ", record.rank)) + record.text;
  }

  static const FinalRecord* first_of(const std::vector<FinalRecord>& records, Ending ending) {
    const FinalRecord* first = nullptr;
    for (const FinalRecord& record : records) {
      if (record.ending == ending && (first == nullptr || record.rank < first->rank)) {
        first = &record;
      }
    }
    return first;
  }

  static void throw_user_error(const std::vector<FinalRecord>& records) {
    if (const FinalRecord* record = first_of(records, Ending::kUserError)) {
      throw UserError("{}", by_rank(*record));
    }
  }

  void throw_interrupted(const std::vector<FinalRecord>& records) const {
    const bool has_failed =
        first_of(records, Ending::kFailed) || first_of(records, Ending::kKilled);
    const FinalRecord* record = first_of(records, Ending::kInterrupted);
    if (!has_failed && record != nullptr) {
      throw Interrupted(record->text);
    }
    if (!has_failed && passed_on_ != 0) {
      throw Interrupted(fmt::format("stopped by signal {}", passed_on_));
    }
  }

  [[noreturn]] static void throw_failure(const std::vector<FinalRecord>& records) {
    if (const FinalRecord* affected = first_of(records, Ending::kAffected)) {
      throw std::runtime_error(affected->sentence);
    }
    if (const FinalRecord* failed = first_of(records, Ending::kFailed)) {
      throw std::runtime_error(by_rank(*failed));
    }
    const FinalRecord* killed = first_of(records, Ending::kKilled);
    throw std::runtime_error(killed == nullptr
                                 ? "the ranks had to be ended"
                                 : fmt::format("rank {} is gone ({})", killed->rank, killed->text));
  }

  HeldSignals signals_;  // before the store starts a thread
  RankSettings settings_;
  Descriptor store_file_, memory_;  // the ranks inherit both
  std::shared_ptr<Store> store_;
  Rendezvous rendezvous_;
  std::vector<Child> children_;
  int passed_on_ = 0;  // the user's last signal
  std::optional<Clock::time_point> first_bad_, ended_;
  bool is_interrupted_ = false;  // so was the first that ended badly
};

}  // namespace

void launch(const RankSettings& settings) {
  Launcher launcher(settings);
  launcher.watch();
  launcher.report();
}

}  // namespace moe::distributed
