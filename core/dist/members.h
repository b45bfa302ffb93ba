#pragma once
// Who the ranks are: host and process of each, so that a failure has a name, and whether a process
// of this machine still lives.

#include <string>
#include <vector>

#include "core/dist/store.h"

namespace moe::dist {

struct Member {
  std::string host, address;  // address: where its transport listens
  std::string machine;        // equal = the same process numbers
  int64_t pid = 0;
};

enum class Life { kUnknown, kAlive, kStopped, kGone };  // unknown: on another machine

Member this_member(const std::string& address);
Life life_of(const Member& member);

// "rank 2 (host h, pid 41)".
std::string describe(int64_t rank, const Member& member);

// The address from which packets to `host` leave: the one that other hosts of the run reach.
// UserError when nothing leads there.
std::string address_towards(const std::string& host, uint16_t port);

}  // namespace moe::dist
