#include "core/dist/members.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"

namespace moe::dist {
namespace {

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string this_machine() {
  std::error_code ignored;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored);
  return first_line("/proc/sys/kernel/random/boot_id") + " " + space.string();
}

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : descriptor_(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// "" when nothing leads there. A datagram socket sends nothing when it connects.
std::string source_of(const addrinfo& target) {
  const Socket probe(target);
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  std::array<char, NI_MAXHOST> text{};
  if (connect(probe.get(), target.ai_addr, target.ai_addrlen) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
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

std::string describe(int64_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

std::string address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (error != 0) {
    throw UserError("MASTER_ADDR '{}' is no host that this one knows ({}); use an address", host,
                    gai_strerror(error));
  }
  std::string address;
  for (const addrinfo* next = found; next != nullptr && address.empty(); next = next->ai_next) {
    address = source_of(*next);
  }
  freeaddrinfo(found);
  if (address.empty()) {
    throw UserError("no network of this host leads to MASTER_ADDR '{}'; is it right?", host);
  }
  return address;
}

}  // namespace moe::dist
