#include "core/distributed/descriptor_passing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/distributed/nonce.h"

namespace moe::distributed {
namespace {

constexpr size_t kMostConnected = 4096;  // that have not said their number

[[noreturn]] void fail_to_pass(const std::string& words) {
  throw std::runtime_error("handing over memory: " + words);
}

Descriptor make_socket() {
  Descriptor descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!descriptor.is_open()) {
    fail_to_pass(std::strerror(errno));
  }
  return descriptor;
}

struct SocketAddress {
  sockaddr_un bytes{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

// A name that begins with a zero byte is in no file system.
SocketAddress socket_address_of(const std::string& name) {
  SocketAddress address;
  const std::string path = std::string(1, '\0') + "moe-" + name;
  if (!is_nonce(name) || path.size() > sizeof(address.bytes.sun_path)) {
    fail_to_pass("that is no name of a socket");
  }
  address.bytes.sun_family = AF_UNIX;
  std::memcpy(address.bytes.sun_path, path.data(), path.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  return address;
}

bool is_of_this_user(const Descriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

// One message: a byte that says nothing and the descriptor beside it.
struct Message {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};

  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

void send_descriptor(int socket, const Descriptor& given) {
  Message message;
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = given.get();
  std::memcpy(CMSG_DATA(control), &number, sizeof(number));
  sendmsg(socket, &message.header, MSG_NOSIGNAL);
}

}  // namespace

DescriptorOffer::DescriptorOffer(const Descriptor& given)
    : given_(given), name_(make_nonce()), listening_(make_socket()) {
  const SocketAddress address = socket_address_of(name_);
  if (bind(listening_.get(), address.get(), address.length) != 0 ||
      listen(listening_.get(), SOMAXCONN) != 0) {
    fail_to_pass(std::strerror(errno));
  }
}

void DescriptorOffer::serve() {
  int number = -1;
  while (connected_.size() < kMostConnected &&
         (number = accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >=
             0) {
    Descriptor socket(number);
    if (is_of_this_user(socket)) {
      connected_.emplace(number, std::move(socket));
    }
  }
  std::erase_if(connected_, [this](const auto& entry) { return answer(entry.first); });
}

// Whether nothing more is to be said to it.
bool DescriptorOffer::answer(int socket) {
  int64_t receiver = -1;
  const ssize_t count = recv(socket, &receiver, sizeof(receiver), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return false;
  }
  if (count == sizeof(receiver)) {
    send_descriptor(socket, given_);
    receivers_.insert(receiver);
  }
  return true;
}

bool DescriptorRequest::connect() {
  Descriptor socket = make_socket();
  const SocketAddress address = socket_address_of(name_);
  if (::connect(socket.get(), address.get(), address.length) != 0) {
    if (errno == EAGAIN || errno == EINTR) {  // many ask at once
      return false;
    }
    fail_to_pass(std::strerror(errno));
  }
  if (!is_of_this_user(socket)) {
    fail_to_pass("another user's process offers it");
  }
  if (send(socket.get(), &receiver_, sizeof(receiver_), MSG_NOSIGNAL) != sizeof(receiver_)) {
    fail_to_pass(std::strerror(errno));
  }
  socket_ = std::move(socket);
  return true;
}

std::optional<Descriptor> DescriptorRequest::receive() {
  if (!socket_.is_open() && !connect()) {
    return std::nullopt;
  }
  Message message;
  const ssize_t count = recvmsg(socket_.get(), &message.header, MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return std::nullopt;
  }
  const cmsghdr* control = count > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS ||
      control->cmsg_len != CMSG_LEN(sizeof(int))) {
    fail_to_pass("the process that offered it is gone");
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(control), sizeof(number));
  return Descriptor(number);
}

}  // namespace moe::distributed
