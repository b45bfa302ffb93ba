#include "core/distributed/rendezvous.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/distributed/environment.h"

namespace moe::distributed {
namespace {

constexpr const char* kSource = "the store of the run";  // in messages about its contents
constexpr const char* kVerdict = "verdict";
constexpr std::chrono::milliseconds kJoinPoll{20};
constexpr size_t kMaxText = 4096, kMaxListed = 8;

std::string ending_key(int64_t rank) { return fmt::format("ending/{}", rank); }
std::string member_key(int64_t rank) { return fmt::format("member/{}", rank); }

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string to_record(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string get_text(const Json& record, const std::string& key) {
  return printable(get_string(record, key, kSource), kMaxText);
}

Ending parse_ending(const std::string& text) {
  try {
    const Json record = parse_json(text, kSource);
    return {std::clamp<int64_t>(get_int(record, "rank", kSource), -1, kMaxRanks),
            static_cast<int>(std::clamp<int64_t>(get_int(record, "exit_code", kSource), 1, 130)),
            get_text(record, "text")};
  } catch (const UserError& error) {
    return {-1, 1, error.what()};
  }
}

std::string to_record(const Ending& ending) {
  return to_record({{"rank", ending.rank}, {"exit_code", ending.exit_code}, {"text", ending.text}});
}

// Returns "ranks 1, 2, 3 and 2 more of 8 did not join".
std::string describe_missing(std::vector<int64_t> missing, int64_t size) {
  const size_t shown = std::min(missing.size(), kMaxListed), hidden = missing.size() - shown;
  missing.resize(shown);
  return fmt::format("{} {}{} of {} did not join", shown == 1 ? "rank" : "ranks",
                     fmt::join(missing, ", "),
                     hidden == 0 ? "" : fmt::format(" and {} more", hidden), size);
}

}  // namespace

const std::string& this_machine() {
  static const std::string machine = [] {
    std::error_code ignored;
    const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored);
    return first_line("/proc/sys/kernel/random/boot_id") + " " + space.string();
  }();
  return machine;
}

Member this_member(const std::string& address) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), address, this_machine(), getpid()};
}

ProcessState process_state(const Member& member) {
  if (member.machine != this_machine()) {
    return ProcessState::kUnknown;
  }
  // "pid (name) state ...". The name may contain ')'.
  const std::string line = first_line(fmt::format("/proc/{}/stat", member.pid));
  const size_t end = line.rfind(')');
  const char state = end == std::string::npos || end + 2 >= line.size() ? 'X' : line[end + 2];
  return state == 'Z' || state == 'X'   ? ProcessState::kGone
         : state == 'T' || state == 't' ? ProcessState::kStopped
                                        : ProcessState::kAlive;
}

std::string describe(int64_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

void claim_rank(Store& store, int64_t rank) {
  if (store.add(fmt::format("claims/{}", rank), 1) > 1) {
    throw UserError(
        "another process is rank {} of a run with the same MASTER_ADDR and MASTER_PORT; give each "
        "run a port of its own",
        rank);
  }
}

std::vector<Member> join(Store& store, int64_t rank, int64_t size, const Member& member,
                         const std::string& version, Seconds timeout) {
  store.set(member_key(rank), to_record({{"host", member.host},
                                         {"address", member.address},
                                         {"machine", member.machine},
                                         {"pid", member.pid},
                                         {"version", version},
                                         {"size", size}}));
  std::vector<Member> members(size);
  std::set<int64_t> missing;
  for (int64_t other = 0; other < size; ++other) {
    missing.insert(other);
  }
  for (WaitClock clock; !missing.empty(); std::this_thread::sleep_for(kJoinPoll)) {
    for (auto next = missing.begin(); next != missing.end();) {
      const auto text = store.read(member_key(*next));
      if (!text) {
        ++next;
        continue;
      }
      const Json record = parse_json(*text, kSource);
      members[*next] = {get_text(record, "host"), get_text(record, "address"),
                        get_text(record, "machine"), get_int(record, "pid", kSource)};
      const std::string its_version = get_text(record, "version");
      const int64_t its_size = get_int(record, "size", kSource);
      if (its_version != version || its_size != size) {
        throw UserError(
            "{} runs {} in a run of {} ranks, rank {} runs {} in a run of {}; start the same "
            "binary with the same number of ranks everywhere",
            describe(*next, members[*next]), its_version, its_size, rank, version, size);
      }
      next = missing.erase(next);
    }
    if (const auto verdict = read_verdict(store)) {
      throw std::runtime_error(verdict->text + ": before all ranks had joined");
    }
    if (!missing.empty() && clock.elapsed() > timeout) {
      throw std::runtime_error(fmt::format("{} within {:g} s of the start",
                                           describe_missing({missing.begin(), missing.end()}, size),
                                           timeout.count()));
    }
  }
  return members;
}

Ending set_verdict(Store& store, const Ending& verdict) {
  return parse_ending(store.set_once(kVerdict, to_record(verdict)));
}

std::optional<Ending> read_verdict(Store& store) {
  const auto text = store.read(kVerdict);
  return text ? std::optional(parse_ending(*text)) : std::nullopt;
}

void write_ending(Store& store, const Ending& ending) {
  store.set(ending_key(ending.rank), to_record(ending));
}

std::optional<Ending> read_ending(Store& store, int64_t rank) {
  const auto text = store.read(ending_key(rank));
  return text ? std::optional(parse_ending(*text)) : std::nullopt;
}

}  // namespace moe::distributed
