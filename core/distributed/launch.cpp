#include "core/distributed/launch.h"

#include <sched.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <sstream>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/distributed/child.h"
#include "core/distributed/roll_call.h"
#include "core/distributed/shared_memory.h"

namespace moe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInterrupted = 130;  // exit code of main()
constexpr Seconds kOnTheWay{15};   // for the others to come where they miss one that ended badly
constexpr Seconds kLastWords{5};   // for them all, once one has said where that is
constexpr Seconds kAfterTerm{2};   // from SIGTERM to SIGKILL
// The rings of a Comm are at most 16 MiB a rank (ring_capacity); a rank is in all, in its group and
// among its replicas. Only what is written takes memory.
constexpr size_t kPoolBytesARank = size_t{128} << 20;

Seconds since(Clock::time_point begin) { return Clock::now() - begin; }

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
        memory_(MemoryPool::make(static_cast<size_t>(settings.ranks) * kPoolBytesARank)),
        store_(inherited_store(store_file_, timeout())),
        roll_(store_, -1, settings.ranks) {
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
    const auto notices = roll_.notices();
    const bool all_well = std::all_of(children_.begin(), children_.end(),
                                      [](const Child& child) { return child.exit_code() == 0; });
    if (all_well) {
      return;
    }
    pass_on_words(notices);
    throw_user_error(notices);
    throw_interrupted(notices);
    throw_failure(notices);
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
          first_bad_ = Clock::now();  // nobody had time meanwhile
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

  // A rank that ended badly without a word gets its notice from us, so that the others hear of it.
  void look_at(Child& child) {
    child.listen();
    if (child.has_ended()) {
      return;
    }
    child.reap();
    if (!child.has_ended() || child.exit_code() == 0) {
      return;
    }
    child.listen();
    const auto notices = roll_.notices();
    const bool has_spoken = std::any_of(notices.begin(), notices.end(), [&](const Notice& notice) {
      return notice.rank == child.rank();
    });
    if (!has_spoken && !is_stop(child)) {
      roll_.give_notice({child.rank(), Ending::kKilled, child.rank(), child.describe_end()});
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

  // From the first bad end on. An interruption is agreed on: the others are about to follow, once
  // their files are written.
  Seconds patience() {
    if (is_interrupted_) {
      return timeout();
    }
    return first_of(roll_.notices(), Ending::kAffected) == nullptr
               ? std::min(kOnTheWay, timeout() / 2)
               : std::min(kLastWords, timeout() / 3);
  }

  void end_others() {
    const bool is_stuck = only_culprits_left();
    if (!ended_ && (is_stuck || since(*first_bad_) > patience())) {
      ended_ = Clock::now();
      kill(-group(), is_stuck ? SIGKILL : SIGTERM);
    } else if (ended_ && since(*ended_) > kAfterTerm) {
      kill(-group(), SIGKILL);
    }
  }

  // Those still there are why the others are not.
  bool only_culprits_left() {
    const auto notices = roll_.notices();
    return std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
      return child.has_ended() ||
             std::any_of(notices.begin(), notices.end(), [&](const Notice& notice) {
               return notice.ending == Ending::kAffected && notice.culprit == child.rank();
             });
    });
  }

  // Of ranks that ended without a notice of their own: what they wrote matters.
  void pass_on_words(const std::vector<Notice>& notices) const {
    for (const Notice& notice : notices) {
      if (notice.ending != Ending::kKilled) {
        continue;
      }
      std::istringstream words(children_.at(notice.rank).said());
      for (std::string line; std::getline(words, line);) {
        fmt::print(stderr, "[rank {}] {}\n", notice.rank, terminal_text(line));
      }
    }
  }

  static std::string by_rank(const Notice& notice) {
    return (notice.rank == 0 ? "" : fmt::format("[rank {}] ", notice.rank)) + notice.text;
  }

  static const Notice* first_of(const std::vector<Notice>& notices, Ending ending) {
    const Notice* first = nullptr;
    for (const Notice& notice : notices) {
      if (notice.ending == ending && (first == nullptr || notice.rank < first->rank)) {
        first = &notice;
      }
    }
    return first;
  }

  static void throw_user_error(const std::vector<Notice>& notices) {
    if (const Notice* notice = first_of(notices, Ending::kUserError)) {
      throw UserError("{}", by_rank(*notice));
    }
  }

  void throw_interrupted(const std::vector<Notice>& notices) const {
    const bool has_failed =
        first_of(notices, Ending::kFailed) || first_of(notices, Ending::kKilled);
    const Notice* notice = first_of(notices, Ending::kInterrupted);
    if (!has_failed && notice != nullptr) {
      throw Interrupted(notice->text);
    }
    if (!has_failed && passed_on_ != 0) {
      throw Interrupted(fmt::format("stopped by signal {}", passed_on_));
    }
  }

  [[noreturn]] static void throw_failure(const std::vector<Notice>& notices) {
    if (const Notice* affected = first_of(notices, Ending::kAffected)) {
      throw std::runtime_error(affected->sentence);
    }
    if (const Notice* failed = first_of(notices, Ending::kFailed)) {
      throw std::runtime_error(by_rank(*failed));
    }
    const Notice* killed = first_of(notices, Ending::kKilled);
    throw std::runtime_error(killed == nullptr
                                 ? "the ranks had to be ended"
                                 : fmt::format("rank {} is gone ({})", killed->rank, killed->text));
  }

  HeldSignals signals_;  // before the store starts a thread
  RankSettings settings_;
  Descriptor store_file_, memory_;  // the ranks inherit both
  std::shared_ptr<Store> store_;
  RollCall roll_;
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
