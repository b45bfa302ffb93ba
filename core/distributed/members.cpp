#include "core/distributed/members.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

namespace moe::distributed {
namespace {

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

const std::string& this_machine() {
  static const std::string machine = [] {
    std::error_code ignored;
    const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored);
    return first_line("/proc/sys/kernel/random/boot_id") + " " + space.string();
  }();
  return machine;
}

}  // namespace

Member this_member(const std::string& address) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), address, this_machine(), getpid()};
}

Life life_of(const Member& member) {
  if (member.machine != this_machine()) {
    return Life::kUnknown;
  }
  // pid (name) state ...: the name may hold anything, the last ')' ends it.
  const std::string line = first_line(fmt::format("/proc/{}/stat", member.pid));
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 2 >= line.size()) {
    return Life::kGone;
  }
  switch (line[end + 2]) {
    case 'Z':
    case 'X':
      return Life::kGone;
    case 'T':
    case 't':
      return Life::kStopped;
    default:
      return Life::kAlive;
  }
}

bool are_on_one_host(const std::vector<Member>& members) {
  return !members.empty() && !members.front().machine.empty() &&
         std::all_of(members.begin(), members.end(), [&](const Member& member) {
           return member.machine == members.front().machine &&
                  member.address == members.front().address;
         });
}

std::string describe(int64_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

}  // namespace moe::distributed
