// Ranks compare what they are about to do before they do it.

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/distributed/session.h"

namespace moe::distributed {
namespace {

constexpr size_t kMostShown = 120, kMostSent = 1 << 20;  // bytes

std::string next_line(std::istringstream& stream) {
  std::string line;
  std::getline(stream, line);
  return line.size() <= kMostShown ? line : line.substr(0, kMostShown) + "..";
}

// " ('seed = 2' where rank 0 has 'seed = 1')".
std::string first_difference(const std::string& first, const std::string& other) {
  std::istringstream one(first), two(other);
  while (one || two) {
    const std::string line = next_line(one), mine = next_line(two);
    if (line != mine) {
      return fmt::format(" ('{}' where rank 0 has '{}')", mine, line);
    }
  }
  return "";
}

}  // namespace

void agree(Comm& comm, const std::string& what, const std::string& text) {
  const auto hashes = gather_texts(comm, sha256_hex(text));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const auto& hash) { return hash != hashes.front(); });
  if (other == hashes.end()) {
    return;
  }
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto texts = gather_texts(comm, text.substr(0, kMostSent));
  throw UserError("rank {} disagrees with rank 0 on {}{}; start all ranks with the same", rank,
                  what, first_difference(texts.front(), texts[rank]));
}

}  // namespace moe::distributed
