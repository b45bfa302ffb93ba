// Who is given a descriptor: processes of this user, by its random name. Another user's is played
// by a child that gives up its own account, where this one may.

#include "core/distributed/descriptor_passing.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "core/distributed/nonce.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe::distributed;
using moe::Descriptor;
using moe::test::contains_text;

namespace {

constexpr uid_t kNobody = 65534;

// Both ends of a pipe, as something to hand over.
struct Pipe {
  Descriptor out, in;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(pipe(ends.data()) == 0);
    out = Descriptor(ends[0]);
    in = Descriptor(ends[1]);
  }
};

// What `request` gets from `offer`, which is served meanwhile.
Descriptor exchange(DescriptorOffer& offer, DescriptorRequest& request) {
  for (;;) {
    if (auto received = request.receive()) {
      return std::move(*received);
    }
    offer.serve();
  }
}

// Exit code of `body` in a child of another account.
int as_nobody(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(setuid(kNobody) == 0 ? body() : 99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a nonce is 32 hexadecimal digits, and never the same") {
  const std::string nonce = make_nonce();
  CHECK(is_nonce(nonce));
  CHECK(make_nonce() != nonce);
  for (const std::string& other :
       {std::string(), nonce.substr(1), nonce + "0", std::string(32, '/'), std::string(32, 'F'),
        std::string(31, '0') + '\0'}) {
    CHECK_FALSE(is_nonce(other));
  }
}

TEST_CASE("what is handed over is the same file, and who has it is known by number") {
  Pipe pipe;
  DescriptorOffer offer(pipe.in);
  DescriptorRequest first(offer.name(), 1), second(offer.name(), 7);
  CHECK_FALSE(second.receive().has_value());
  const Descriptor received = exchange(offer, first);
  REQUIRE(write(received.get(), "hello", 5) == 5);
  std::array<char, 6> text{};
  REQUIRE(read(pipe.out.get(), text.data(), 5) == 5);
  CHECK(std::string(text.data()) == "hello");
  CHECK(exchange(offer, second).is_open());
  CHECK(offer.receivers() == std::set<int64_t>{1, 7});
}

TEST_CASE("no text of the store becomes a name of a socket but a nonce") {
  for (const std::string& name :
       {std::string("/tmp/socket"), std::string(200, 'a'), std::string()}) {
    DescriptorRequest request(name, 1);
    CHECK_THROWS_WITH(request.receive(), contains_text("that is no name of a socket"));
  }
  DescriptorRequest nobody(make_nonce(), 1);
  CHECK_THROWS_WITH(nobody.receive(), contains_text("Connection refused"));
}

TEST_CASE("an offer that ends is said") {
  Pipe pipe;
  auto offer = std::make_unique<DescriptorOffer>(pipe.in);
  DescriptorRequest request(offer->name(), 1);
  CHECK_FALSE(request.receive().has_value());
  offer.reset();
  CHECK_THROWS_WITH(request.receive(), contains_text("handing over memory: "));
}

TEST_CASE("another user is given nothing, and cannot offer anything in our name") {
  if (geteuid() != 0) {
    MOE_SKIP("only root can become another user");
  }
  Pipe pipe;
  DescriptorOffer offer(pipe.in);
  std::atomic<bool> is_over = false;
  std::thread server([&] {
    while (!is_over) {
      offer.serve();
    }
  });
  // The stranger does what a rank does, without looking who is there: it is hung up on.
  const int got = as_nobody([&] {
    const Descriptor stranger(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = "moe-" + offer.name();
    std::memcpy(address.sun_path + 1, path.data(), path.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
    if (connect(stranger.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return 1;
    }
    const int64_t number = 1;
    send(stranger.get(), &number, sizeof(number), MSG_NOSIGNAL);
    char byte = 0;
    return recv(stranger.get(), &byte, 1, 0) <= 0 ? 0 : 2;
  });
  is_over = true;
  server.join();
  CHECK(got == 0);
  CHECK(offer.receivers().empty());
}

TEST_CASE("nothing is taken from another user") {
  if (geteuid() != 0) {
    MOE_SKIP("only root can become another user");
  }
  Pipe name;
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(kNobody) != 0) {
      _exit(1);
    }
    DescriptorOffer trap(name.in);
    if (write(name.in.get(), trap.name().data(), 32) != 32) {
      _exit(1);
    }
    for (;;) {
      trap.serve();
    }
  }
  std::string theirs(32, ' ');
  CHECK(read(name.out.get(), theirs.data(), theirs.size()) == 32);
  DescriptorRequest request(theirs, 1);
  CHECK_THROWS_WITH(request.receive(), contains_text("another user's process offers it"));
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}
