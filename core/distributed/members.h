#pragma once
// Who the ranks are: host and process of each, so that a failure has a name, and whether a process
// of this machine still lives.

#include <cstdint>
#include <string>
#include <vector>

namespace moe::distributed {

struct Member {
  std::string host, address;  // address: where its transport listens
  std::string machine;        // equal = the same process numbers
  int64_t pid = 0;
};

enum class Life { kUnknown, kAlive, kStopped, kGone };  // unknown: on another machine

Member this_member(const std::string& address);
Life life_of(const Member& member);

// They share a machine and an address (in network namespaces of one machine they do not).
bool are_on_one_host(const std::vector<Member>& members);

// "rank 2 (host h, pid 41)".
std::string describe(int64_t rank, const Member& member);

}  // namespace moe::distributed
