// Stores of a run: the memory file that ranks inherit, and the TCP store at one address.

#include <c10/util/Flags.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "core/distributed/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

C10_DECLARE_int(caffe2_log_level);

using namespace moe;
using namespace moe::test;
using distributed::Seconds;
using distributed::Store;

namespace {

uint16_t port(int offset) { return static_cast<uint16_t>(20000 + (getpid() + offset) % 12000); }

}  // namespace

TEST_CASE("processes that inherit a store read the values of each other") {
  const Descriptor file = make_memory_file();
  Store one = distributed::open_inherited_store(file, Seconds{20});
  Store other = one.connect_again();
  CHECK_FALSE(one.read("key"));
  one.set("key", "first");
  CHECK(other.read("key") == "first");
  other.set("key", "");
  CHECK(one.read("key") == "");
  CHECK((one.set_once("once", "first") == "first" && other.set_once("once", "second") == "first"));
}

// A process that was stopped while it wrote holds the lock of the file.
TEST_CASE("a store whose file another process holds throws after the time limit") {
  const Descriptor file = make_memory_file();
  Store store = distributed::open_inherited_store(file, Seconds{0.6});
  store.set("key", "text");
  const Descriptor holder(open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_THROWS_WITH(store.read("key"), "the store of the run does not answer");
  flock(holder.get(), LOCK_UN);
}

// Without it a write to a port scanner would end the process (SIGPIPE).
TEST_CASE("clients that disconnect early do not disturb the store") {
  std::signal(SIGPIPE, SIG_DFL);
  FLAGS_caffe2_log_level = 3;  // fatal: c10d logs a line for each
  Store store = distributed::serve_store("127.0.0.1", port(0), "run", Seconds{20});
  // The greeting of c10d's protocol, and 2,000 requests for the number of keys.
  std::string questions("\x00\xce\xf7\x85\x3c", 5);
  questions.append(2000, '\x07');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port(0));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int client = 0; client < 50; ++client) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const linger at_once{1, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    send(socket.get(), questions.data(), questions.size(), MSG_NOSIGNAL);
  }
  store.set("key", "text");
  CHECK(store.read("key") == "text");
}

TEST_CASE("a store listens only at the given address") {
  FLAGS_caffe2_log_level = 3;
  const Store first = distributed::serve_store("127.0.0.1", port(1), "run", Seconds{5});
  const Store second = distributed::serve_store("127.0.0.2", port(1), "run", Seconds{5});
  CHECK_THROWS_WITH(distributed::serve_store("127.0.0.1", port(1), "run", Seconds{5}),
                    contains_text(fmt::format("rank 0 cannot listen on port {}", port(1))));
  Store client = distributed::connect_store("127.0.0.2", port(1), "run", Seconds{5});
  client.set("key", "text");
  CHECK(client.read("key") == "text");
  CHECK_THROWS_WITH(distributed::connect_store("127.0.0.1", port(2), "run", Seconds{1}),
                    contains_text(fmt::format("127.0.0.1 port {} within 1 s", port(2))));
}

TEST_CASE("MASTER_ADDR must be an address of one host") {
  CHECK(distributed::local_address("127.0.0.1", 29500) == "127.0.0.1");
  for (const char* host : {"0.0.0.0", "0", "::"}) {
    INFO(host);
    CHECK_THAT(user_error_of([&] { distributed::local_address(host, 1); }),
               contains_text("MASTER_ADDR '" + std::string(host) + "'") &&
                   contains_text("every interface"));
    CHECK_THAT(user_error_of([&] { distributed::serve_store(host, port(3), "run", Seconds{1}); }),
               contains_text("every interface"));
  }
  CHECK_THAT(user_error_of([] { distributed::local_address("no.such.host.invalid", 1); }),
             contains_text("MASTER_ADDR 'no.such.host.invalid'"));
}

TEST_CASE("a loopback interface that is down is named") {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) {
      _exit(77);
    }
    const std::string error = user_error_of([] { distributed::local_address("127.0.0.1", 1); });
    _exit(error.find("bring the loopback interface up") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) {
    MOE_SKIP("needs the right to make a network namespace");
  }
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("a descriptor that is not a memory file is refused as a store") {
  const TempDir folder;
  write_file(folder / "file", "text");
  const Descriptor file(open((folder / "file").c_str(), O_RDWR));
  CHECK_THROWS_WITH(distributed::open_inherited_store(file, Seconds{1}),
                    contains_text("is not the store of a run that moe --ranks started"));
  CHECK_THROWS_WITH(distributed::open_inherited_store(Descriptor(-1), Seconds{1}),
                    contains_text("descriptor -1 is not the store"));
  CHECK(read_file(folder / "file") == "text");
}
