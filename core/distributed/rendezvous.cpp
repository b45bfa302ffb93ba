#include "core/distributed/rendezvous.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "core/distributed/environment.h"
#include "core/distributed/nonce.h"
#include "core/distributed/store_lines.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

constexpr std::chrono::milliseconds kRecordPause{20};
constexpr size_t kMostStrangers = 8;  // that are named
constexpr int64_t kMostPid = 1 << 22;

// What the final record of another rank means for this one.
FailureReport report_of(const FinalRecord& record, const std::string& name) {
  switch (record.ending) {
    case Ending::kAffected:
      return {record.culprit, record.text};
    case Ending::kKilled:
      return {record.rank, fmt::format("{} is gone ({})", name, record.text)};
    case Ending::kUserError:
    case Ending::kFailed:
      return {record.rank, fmt::format("{} failed ({})", name, record.text)};
    default:
      return {record.rank, fmt::format("{} has left", name)};
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

// One a rank, as long as it is not settled who belongs to this run.
std::map<int64_t, Arrival> by_rank(const std::vector<Arrival>& arrivals) {
  std::map<int64_t, Arrival> ranks;
  for (const Arrival& next : arrivals) {
    const auto [earlier, is_new] = ranks.emplace(next.rank, next);
    if (!is_new) {
      throw UserError(
          "two processes say that they are {} and {}: another run uses the same MASTER_ADDR and "
          "MASTER_PORT; give each run a port of its own",
          describe(next.rank, earlier->second.member), describe(next.rank, next.member));
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
      throw UserError("{}: no tokens", kStoreOfRun);
    }
    for (const Json& token : *tokens) {
      roster.tokens.push_back(token.is_string() ? token.get<std::string>() : "");
    }
    return roster;
  });
  return rosters.empty() ? std::nullopt : std::optional(rosters.front());
}

// All run the same version, and there are as many as each was started with.
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

Rendezvous::Rendezvous(std::shared_ptr<Store> store, int64_t rank, int64_t size)
    : store_(std::move(store)), rank_(rank), size_(size), token_(make_nonce()) {}

void Rendezvous::check_in(const Member& member, const std::string& version, Seconds timeout) {
  WaitClock clock;
  store_->append("members", line_of(to_json({rank_, member, version, size_, token_})));
  while (!is_admitted()) {
    const auto ranks = by_rank(read_arrivals(*store_));
    compare(ranks);
    const bool are_all_here = static_cast<int64_t>(ranks.size()) == size_;
    if (are_all_here && rank_ == 0) {
      store_->set("roster", text_of(make_roster(ranks)));
      continue;
    }
    if (const auto failure = reported_failure()) {
      throw RankFailed(*failure, failure->text + ": before all ranks had come");
    }
    if (clock.look() > timeout) {
      are_all_here ? throw_unadmitted(ranks.at(0), timeout) : throw_missing(ranks, size_, timeout);
    }
    std::this_thread::sleep_for(kRecordPause);
  }
}

// Whether rank 0 has said who takes part. Whoever it did not name then is of another run.
bool Rendezvous::is_admitted() {
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

std::string Rendezvous::describe(int64_t rank) const {
  return rank < static_cast<int64_t>(members_.size()) ? distributed::describe(rank, members_[rank])
                                                      : fmt::format("rank {}", rank);
}

void Rendezvous::write_final_record(const FinalRecord& record) {
  store_->append("final_records", line_of({{"rank", record.rank},
                                           {"ending", static_cast<int>(record.ending)},
                                           {"culprit", record.culprit},
                                           {"text", record.text},
                                           {"sentence", record.sentence},
                                           {"token", token_}}));
}

std::vector<FinalRecord> Rendezvous::final_records() {
  struct Signed {
    FinalRecord record;
    std::string token;
  };
  const auto all = parse_lines(store_->read("final_records"), [this](const Json& line) -> Signed {
    constexpr auto kLast = static_cast<int64_t>(Ending::kAffected);
    return {{number_of(line, "rank", 0, size_ - 1),
             static_cast<Ending>(number_of(line, "ending", 0, kLast)),
             number_of(line, "culprit", -1, size_ - 1), text_of(line, "text"),
             text_of(line, "sentence")},
            get_string(line, "token", kStoreOfRun, "")};
  });
  std::vector<FinalRecord> records;
  for (const auto& [record, token] : all) {
    if (store_->is_private() || is_token_of(token, record.rank)) {
      records.push_back(record);
    } else {
      name_stranger(token, record.rank);
    }
  }
  return records;
}

// Before all have come, whoever came counts.
bool Rendezvous::is_token_of(const std::string& token, int64_t rank) {
  if (!tokens_.empty()) {
    return tokens_[rank] == token;
  }
  const auto arrivals = read_arrivals(*store_);
  const Arrival* arrival = arrival_with(arrivals, token);
  return arrival != nullptr && arrival->rank == rank;
}

void Rendezvous::name_stranger(const std::string& token, int64_t rank) {
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
                                     : distributed::describe(arrival->rank, arrival->member)));
}

std::optional<FailureReport> Rendezvous::reported_failure() {
  for (const FinalRecord& record : final_records()) {
    const bool is_failure = record.ending != Ending::kDone && record.ending != Ending::kInterrupted;
    if (record.rank != rank_ && is_failure) {
      return report_of(record, describe(record.rank));
    }
  }
  return std::nullopt;
}

void Rendezvous::wait_for_final_records(Seconds timeout, int64_t culprit) {
  for (WaitClock clock; clock.look() < timeout; std::this_thread::sleep_for(kRecordPause)) {
    std::set<int64_t> ended = {culprit};
    for (const FinalRecord& record : final_records()) {
      ended.insert(record.rank);
    }
    ended.erase(-1);
    if (static_cast<int64_t>(ended.size()) >= size_) {
      return;
    }
  }
}

}  // namespace moe::distributed
