#include "core/distributed/hosts.h"

#include <filesystem>
#include <fstream>

#include "core/distributed/on_all_ranks.h"

namespace moe::distributed {

namespace {

// Names the host: ranks that say the same see each other's processes.
std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace

std::vector<int64_t> ranks_of_this_host(Comm& ranks) {
  const std::vector<std::string> hosts = gather_texts(ranks, this_host());
  std::vector<int64_t> ranks_of_host;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == hosts[static_cast<size_t>(ranks.rank())]) {
      ranks_of_host.push_back(static_cast<int64_t>(rank));
    }
  }
  return ranks_of_host;
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
