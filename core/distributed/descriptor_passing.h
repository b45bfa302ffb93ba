#pragma once
// One process gives a descriptor to others of the same user on the same machine, over a Unix socket
// with a random name in no file system. The kernel says who stands at the other end (SO_PEERCRED):
// another user's process is given nothing, and nothing is taken from it. Nothing here waits.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/base/descriptor.h"

namespace moe::distributed {

class DescriptorOffer {
 public:
  // `given` outlives it.
  explicit DescriptorOffer(const Descriptor& given);

  // For the others' DescriptorRequest.
  const std::string& name() const { return name_; }
  // Gives to all that have asked by now.
  void serve();
  // The numbers by which they asked.
  const std::set<int64_t>& receivers() const { return receivers_; }

 private:
  bool answer(int socket);

  const Descriptor& given_;
  std::string name_;
  Descriptor listening_;
  std::map<int, Descriptor> connected_;  // have not said their number yet
  std::set<int64_t> receivers_;
};

class DescriptorRequest {
 public:
  DescriptorRequest(std::string name, int64_t receiver)
      : name_(std::move(name)), receiver_(receiver) {}

  // What was offered; nothing where it has not come yet. std::runtime_error: the name is another
  // user's, or the other end went away.
  std::optional<Descriptor> receive();

 private:
  bool connect();

  std::string name_;
  int64_t receiver_;
  Descriptor socket_;
};

}  // namespace moe::distributed
