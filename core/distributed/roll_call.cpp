#include "core/distributed/roll_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/distributed/nonce.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Seconds kGrace{2};       // for the notices of others, after a connection broke
constexpr Seconds kOwnWords{0.5};  // a launcher's notice says more than a missing process
constexpr std::chrono::milliseconds kPause{20};
constexpr size_t kMostStrangers = 8;  // that are named

Seconds since(Clock::time_point begin) { return Clock::now() - begin; }

// What others wrote into the store is hostile until read: of the right type, in its range, of few
// bytes, and fit for a terminal. UserError where it is not.
constexpr const char* kStore = "the store of the run";
constexpr size_t kMostOfText = 4096;  // bytes
constexpr int64_t kMostRanks = 1 << 20, kMostPid = 1 << 22;

int64_t number_of(const Json& line, const std::string& key, int64_t least, int64_t most) {
  const int64_t value = get_int(line, key, kStore);
  if (value < least || value > most) {
    throw UserError("{}: {} = {}", kStore, key, value);
  }
  return value;
}

std::string nonce_of(const Json& line, const std::string& key) {
  std::string value = get_string(line, key, kStore);
  if (!is_nonce(value)) {
    throw UserError("{}: {} is none", kStore, key);
  }
  return value;
}

// Its lines stay lines.
std::string text_of(const Json& line, const std::string& key) {
  std::istringstream stream(get_string(line, key, kStore));
  std::string text;
  for (std::string next; text.size() < kMostOfText && std::getline(stream, next);) {
    text += (text.empty() ? "" : "\n") + printable(next, kMostOfText);
  }
  return text;
}

// What `parse` makes of each line, one JSON object each, appended whole. Lines that it refuses are
// nobody's of this run, and are left out.
template <typename Parse>
auto parse_lines(const std::optional<std::string>& text, const Parse& parse) {
  std::vector<decltype(parse(Json()))> parsed;
  std::istringstream stream(text.value_or(""));
  for (std::string line; std::getline(stream, line);) {
    try {
      parsed.push_back(parse(parse_json(line, kStore)));
    } catch (const UserError&) {
    }
  }
  return parsed;
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string waits_key(const std::string& run, int64_t rank) {
  return fmt::format("{}/waits/{}", run, rank);
}
std::string own_work_key(const std::string& run, int64_t rank) {
  return fmt::format("{}/own_work/{}", run, rank);
}

// What the notice of another means for this rank.
Verdict verdict_of(const Notice& notice, const std::string& name) {
  switch (notice.ending) {
    case Ending::kAffected:
      return {notice.culprit, notice.text};
    case Ending::kKilled:
      return {notice.rank, fmt::format("{} is gone ({})", name, notice.text)};
    case Ending::kUserError:
    case Ending::kFailed:
      return {notice.rank, fmt::format("{} failed ({})", name, notice.text)};
    default:
      return {notice.rank, fmt::format("{} has left", name)};
  }
}

struct Arrival {
  int64_t rank = 0;
  Member member;
  std::string version;
  int64_t size = 0;
  std::string token;  // of the process, made by it
};

Json to_json(const Arrival& arrival) {
  const Member& member = arrival.member;
  return {{"rank", arrival.rank},      {"host", member.host},   {"address", member.address},
          {"machine", member.machine}, {"pid", member.pid},     {"version", arrival.version},
          {"size", arrival.size},      {"token", arrival.token}};
}

Arrival arrival_of(const Json& line) {
  const int64_t size = number_of(line, "size", 1, kMostRanks);
  return {number_of(line, "rank", 0, size - 1),
          {text_of(line, "host"), text_of(line, "address"), text_of(line, "machine"),
           number_of(line, "pid", 1, kMostPid)},
          text_of(line, "version"),
          size,
          nonce_of(line, "token")};
}

std::vector<Arrival> read_arrivals(Store& store) {
  return parse_lines(store.read("members"), arrival_of);
}

// One a rank, as long as it is open who belongs to this run.
std::map<int64_t, Arrival> by_rank(const std::vector<Arrival>& arrivals) {
  std::map<int64_t, Arrival> ranks;
  for (const Arrival& next : arrivals) {
    const auto [place, is_new] = ranks.emplace(next.rank, next);
    if (!is_new) {
      throw UserError(
          "two processes say that they are {} and {}: another run uses the same MASTER_ADDR and "
          "MASTER_PORT; give each run a port of its own",
          describe(next.rank, place->second.member), describe(next.rank, next.member));
    }
  }
  return ranks;
}

const Arrival* arrival_with(const std::vector<Arrival>& arrivals, const std::string& token) {
  const auto found = std::find_if(arrivals.begin(), arrivals.end(),
                                  [&](const Arrival& arrival) { return arrival.token == token; });
  return found == arrivals.end() ? nullptr : &*found;
}

// What rank 0 says once all have come: the run's own name, and the token of each of its ranks.
struct Roster {
  std::string run;
  std::vector<std::string> tokens;
};

Roster make_roster(const std::map<int64_t, Arrival>& ranks) {
  Roster roster{make_nonce(), {}};
  for (const auto& [rank, arrival] : ranks) {
    roster.tokens.push_back(arrival.token);
  }
  return roster;
}

std::string text_of(const Roster& roster) {
  return line_of({{"run", roster.run}, {"tokens", roster.tokens}});
}

std::optional<Roster> read_roster(Store& store) {
  const auto rosters = parse_lines(store.read("roster"), [](const Json& line) -> Roster {
    Roster roster{nonce_of(line, "run"), {}};
    const auto tokens = line.find("tokens");
    if (tokens == line.end() || !tokens->is_array()) {
      throw UserError("{}: no tokens", kStore);
    }
    for (const Json& token : *tokens) {
      roster.tokens.push_back(token.is_string() ? token.get<std::string>() : "");
    }
    return roster;
  });
  return rosters.empty() ? std::nullopt : std::optional(rosters.front());
}

// All are of the same make, and there are as many as each believes.
void compare(const std::map<int64_t, Arrival>& arrivals) {
  const auto& [first_rank, first] = *arrivals.begin();
  for (const auto& [rank, arrival] : arrivals) {
    if (arrival.version != first.version) {
      throw UserError("{} runs {}, {} runs {}; start the same binary everywhere",
                      describe(rank, arrival.member), arrival.version,
                      describe(first_rank, first.member), first.version);
    }
    if (arrival.size != first.size) {
      throw UserError("{} believes in {} ranks, {} in {}; start all with the same number",
                      describe(rank, arrival.member), arrival.size,
                      describe(first_rank, first.member), first.size);
    }
  }
}

// "ranks 1, 2, 3 and 2 more of 8 did not come within 30 s of the start".
[[noreturn]] void throw_missing(const std::map<int64_t, Arrival>& arrivals, int64_t size,
                                Seconds timeout) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (arrivals.count(rank) == 0) {
      missing.push_back(rank);
    }
  }
  const int64_t first = missing.front();
  const size_t shown = std::min<size_t>(missing.size(), 8);
  const size_t hidden = missing.size() - shown;
  missing.resize(shown);
  const std::string text = fmt::format(
      "{} {}{} of {} did not come", shown == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
      hidden == 0 ? "" : fmt::format(" and {} more", hidden), size);
  throw RankFailed({first, text},
                   fmt::format("{} within {:g} s of the start", text, timeout.count()));
}

// Rank 0 came, and then did not say that all have.
[[noreturn]] void throw_unadmitted(const Arrival& first, Seconds timeout) {
  const std::string text = describe(0, first.member) + " did not let the others in";
  throw RankFailed({0, text}, fmt::format("{} within {:g} s of the start", text, timeout.count()));
}

}  // namespace

RollCall::RollCall(std::shared_ptr<Store> store, int64_t rank, int64_t size)
    : store_(std::move(store)), rank_(rank), size_(size), token_(make_nonce()) {}

void RollCall::check_in(const Member& me, const std::string& version, Seconds timeout) {
  WaitClock clock;
  store_->append("members", line_of(to_json({rank_, me, version, size_, token_})));
  while (!is_admitted()) {
    const auto ranks = by_rank(read_arrivals(*store_));
    compare(ranks);
    const bool are_all_here = static_cast<int64_t>(ranks.size()) == size_;
    if (are_all_here && rank_ == 0) {
      store_->set("roster", text_of(make_roster(ranks)));
      continue;
    }
    Verdict verdict;
    if (!bad_news(verdict).empty()) {
      throw RankFailed(verdict, verdict.text + ": before all ranks had come");
    }
    if (clock.look() > timeout) {
      are_all_here ? throw_unadmitted(ranks.at(0), timeout) : throw_missing(ranks, size_, timeout);
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Whether rank 0 has said who takes part. Then whoever it did not name is of another run.
bool RollCall::is_admitted() {
  const auto roster = read_roster(*store_);
  if (!roster) {
    return false;
  }
  const auto size = static_cast<int64_t>(roster->tokens.size());
  if (size != size_ || roster->tokens[rank_] != token_) {
    throw UserError(
        "another run uses the same MASTER_ADDR and MASTER_PORT, and has all its ranks; give each "
        "run a port of its own");
  }
  const auto arrivals = read_arrivals(*store_);
  std::vector<Member> members;
  for (const std::string& token : roster->tokens) {
    const Arrival* arrival = arrival_with(arrivals, token);
    if (arrival == nullptr || arrival->rank != static_cast<int64_t>(members.size())) {
      return false;  // somebody spoils the store
    }
    members.push_back(arrival->member);
  }
  run_ = roster->run;
  tokens_ = roster->tokens;
  members_ = std::move(members);
  return true;
}

// Said once, for a store in a file keeps whatever was ever said.
void RollCall::wait_at(const std::string& operation) {
  if (noted_ != operation) {
    store_->set(waits_key(run_, rank_), operation);
    noted_ = operation;
  }
}

void RollCall::go_on() {
  if (!noted_.empty()) {
    wait_at("");
  }
}

void RollCall::tell_own_work() {
  store_->set(own_work_key(run_, rank_), fmt::format("{}", ++told_));
}

// Clocks of machines differ: what counts is that the others' number goes on.
bool RollCall::is_at_own_work(int64_t rank, Seconds recent) {
  const std::string count = store_->read(own_work_key(run_, rank)).value_or("");
  Told& told = others_told_[rank];
  if (count != told.count) {
    told = {count, Clock::now()};
  }
  return !told.count.empty() && since(told.heard) < recent;
}

void RollCall::forgive_silence() {
  for (auto& [rank, told] : others_told_) {
    told.heard = Clock::now();
  }
}

bool RollCall::is_waiting(int64_t rank) {
  return !store_->read(waits_key(run_, rank)).value_or("").empty();
}

std::string RollCall::name(int64_t rank) const {
  return rank < static_cast<int64_t>(members_.size()) ? describe(rank, members_[rank])
                                                      : fmt::format("rank {}", rank);
}

void RollCall::give_notice(const Notice& notice) {
  store_->append("notices", line_of({{"rank", notice.rank},
                                     {"ending", static_cast<int>(notice.ending)},
                                     {"culprit", notice.culprit},
                                     {"text", notice.text},
                                     {"sentence", notice.sentence},
                                     {"token", token_}}));
}

std::vector<Notice> RollCall::notices() {
  struct Signed {
    Notice notice;
    std::string token;
  };
  const auto all = parse_lines(store_->read("notices"), [this](const Json& line) -> Signed {
    constexpr auto kLast = static_cast<int64_t>(Ending::kAffected);
    return {{number_of(line, "rank", 0, size_ - 1),
             static_cast<Ending>(number_of(line, "ending", 0, kLast)),
             number_of(line, "culprit", -1, size_ - 1), text_of(line, "text"),
             text_of(line, "sentence")},
            get_string(line, "token", kStore, "")};
  });
  std::vector<Notice> notices;
  for (const auto& [notice, token] : all) {
    if (store_->is_private() || is_token_of(token, notice.rank)) {
      notices.push_back(notice);
    } else {
      name_stranger(token, notice.rank);
    }
  }
  return notices;
}

// Before all have come, whoever came counts.
bool RollCall::is_token_of(const std::string& token, int64_t rank) {
  if (!tokens_.empty()) {
    return tokens_[rank] == token;
  }
  const auto arrivals = read_arrivals(*store_);
  const Arrival* arrival = arrival_with(arrivals, token);
  return arrival != nullptr && arrival->rank == rank;
}

void RollCall::name_stranger(const std::string& token, int64_t rank) {
  if (on_stranger == nullptr || strangers_.size() >= kMostStrangers ||
      !strangers_.insert(token).second) {
    return;
  }
  const auto arrivals = read_arrivals(*store_);
  const Arrival* arrival = arrival_with(arrivals, token);
  on_stranger(
      fmt::format("{} is of another run that uses the same MASTER_ADDR and MASTER_PORT; what it "
                  "says is ignored",
                  arrival == nullptr ? fmt::format("a process that says it is rank {}", rank)
                                     : describe(arrival->rank, arrival->member)));
}

std::string RollCall::bad_news(Verdict& verdict) {
  for (const Notice& notice : notices()) {
    const bool is_agreed = notice.ending == Ending::kDone || notice.ending == Ending::kInterrupted;
    if (notice.rank != rank_ && !is_agreed) {
      verdict = verdict_of(notice, name(notice.rank));
      return verdict.text;
    }
  }
  return "";
}

// By notices; by processes of this machine that are gone, or stand still where that explains it.
// Processes are looked at first: one that gave notice and ended since is judged by its notice.
bool RollCall::find_ended(bool is_late, Verdict& verdict) {
  Verdict ended;
  for (int64_t rank = 0; rank < static_cast<int64_t>(members_.size()); ++rank) {
    const Life life = life_of(members_[rank]);
    if (life == Life::kGone || (is_late && life == Life::kStopped)) {
      ended = {rank, name(rank) + (life == Life::kGone ? " is gone" : " is stopped")};
      break;
    }
  }
  if (bad_news(verdict).empty()) {
    verdict = ended;
  }
  return !verdict.text.empty();
}

// Those that wait nowhere; only those at the broken connection's end, if there are any.
std::vector<int64_t> RollCall::who_might_have_gone(const std::string& error,
                                                   const std::vector<int64_t>& among) {
  std::vector<int64_t> silent, there;
  for (const int64_t rank : among) {
    if (rank != rank_ && !is_waiting(rank)) {
      silent.push_back(rank);
      if (error.find(members_[rank].address) != std::string::npos) {
        there.push_back(rank);
      }
    }
  }
  return there.empty() ? silent : there;
}

Verdict RollCall::who_broke_off(const std::string& error, const std::vector<int64_t>& among) {
  const auto begin = Clock::now();
  wait_at("a broken connection");
  Verdict verdict;
  std::vector<int64_t> suspects;
  for (; since(begin) < kGrace; std::this_thread::sleep_for(kPause)) {
    if (since(begin) < kOwnWords) {
      if (!bad_news(verdict).empty()) {
        return verdict;
      }
      continue;
    }
    if (find_ended(false, verdict)) {
      return verdict;
    }
    suspects = who_might_have_gone(error, among);
    if (suspects.size() == 1 && since(begin) > kGrace / 2) {
      break;
    }
  }
  return suspects.empty() ? Verdict{-1, "a connection broke"}
                          : Verdict{suspects.front(), name(suspects.front()) + " is gone"};
}

std::optional<Verdict> RollCall::who_is_late(const std::vector<int64_t>& among, Seconds recent) {
  Verdict verdict;
  if (find_ended(true, verdict)) {
    return verdict;
  }
  std::vector<int64_t> suspects = among;
  for (int64_t rank = 0; rank < size_; ++rank) {
    suspects.push_back(rank);  // who is waited for by those who are waited for
  }
  bool is_excused = false;
  for (const int64_t rank : suspects) {
    if (rank == rank_ || is_waiting(rank)) {
      continue;
    }
    if (!is_at_own_work(rank, recent)) {
      return Verdict{rank, name(rank) + " did not come"};
    }
    is_excused = true;
  }
  if (is_excused) {
    return std::nullopt;
  }
  for (const int64_t rank : among) {
    if (rank != rank_) {
      return Verdict{rank,
                     fmt::format("{} waits elsewhere ({})", name(rank),
                                 printable(store_->read(waits_key(run_, rank)).value_or("")))};
    }
  }
  return Verdict{-1, "nobody came"};
}

void RollCall::wait_for_notices(Seconds timeout, int64_t culprit) {
  for (const auto begin = Clock::now(); since(begin) < timeout;) {
    std::set<int64_t> ended = {culprit};
    for (const Notice& notice : notices()) {
      ended.insert(notice.rank);
    }
    ended.erase(-1);
    if (static_cast<int64_t>(ended.size()) >= size_) {
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace moe::distributed
