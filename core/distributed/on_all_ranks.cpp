#include "core/distributed/on_all_ranks.h"

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {
namespace {

// The first letter of what a rank tells the others.
constexpr char kUser = 'u', kInterrupt = 'i', kOther = 'o';
constexpr size_t kMostShown = 120, kMostSent = 1 << 20;  // bytes of a text that differs

// What became of `body` on this rank: "" when all is well, else a letter and a sentence.
std::string outcome_of(Comm& comm, const std::function<void()>& body) {
  const auto announced = comm.long_operation();
  try {
    body();
    return "";
  } catch (const UserError& error) {
    return kUser + std::string(error.what());
  } catch (const Interrupted& stopped) {
    return kInterrupt + std::string(stopped.what());
  } catch (const std::exception& error) {
    return kOther + std::string(error.what());
  }
}

std::string next_line(std::istringstream& stream) {
  std::string line;
  std::getline(stream, line);
  return line.size() <= kMostShown ? line : line.substr(0, kMostShown) + "..";
}

// " ('seed = 2' where rank 0 has 'seed = 1')".
std::string first_difference(const std::string& first, const std::string& other) {
  std::istringstream expected_lines(first), found_lines(other);
  while (expected_lines || found_lines) {
    const std::string expected = next_line(expected_lines), found = next_line(found_lines);
    if (expected != found) {
      return fmt::format(" ('{}' where rank 0 has '{}')", found, expected);
    }
  }
  return "";
}

}  // namespace

void on_all_ranks(Comm* ranks, const std::function<void()>& body) {
  if (ranks == nullptr || ranks->size() == 1) {
    return body();
  }
  const auto outcomes = gather_texts(*ranks, outcome_of(*ranks, body));
  for (const char kind : {kUser, kInterrupt, kOther}) {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      if (outcomes[rank].empty() || outcomes[rank].front() != kind) {
        continue;
      }
      const std::string sentence = outcomes[rank].substr(1);
      if (kind == kUser) {
        throw UserError("{}", sentence);
      }
      if (kind == kInterrupt) {
        throw Interrupted(sentence);
      }
      throw std::runtime_error(fmt::format("rank {}: {}", rank, sentence));
    }
  }
}

bool any_rank(Comm* ranks, bool statement) {
  return ranks == nullptr || ranks->size() == 1
             ? statement
             : sum_numbers(*ranks, {statement ? 1.0 : 0.0}).front() > 0;
}

void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text) {
  const auto hashes = gather_texts(ranks, sha256_hex(text));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const auto& hash) { return hash != hashes.front(); });
  if (other == hashes.end()) {
    return;
  }
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto texts = gather_texts(ranks, text.substr(0, kMostSent));
  throw UserError("rank {} disagrees with rank 0 on {}{}; start all ranks with the same", rank,
                  what, first_difference(texts.front(), texts[rank]));
}

std::vector<int64_t> ranks_of_this_host(Comm& ranks) {
  const std::vector<std::string> machines = gather_texts(ranks, this_machine());
  std::vector<int64_t> same;
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank] == machines[static_cast<size_t>(ranks.rank())]) {
      same.push_back(static_cast<int64_t>(rank));
    }
  }
  return same;
}

std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force) {
  if (ranks != nullptr && ranks->size() > 1) {
    need.processes = static_cast<int64_t>(ranks_of_this_host(*ranks).size());
  }
  std::optional<std::string> shortage;
  on_all_ranks(ranks, [&] { shortage = moe::check_memory(need, force); });
  return shortage;
}

}  // namespace moe::distributed
