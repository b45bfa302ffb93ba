// The store of ranks that inherit it: a file in memory that each of them opens for itself.

#include "core/distributed/store.h"

#include <c10/util/Flags.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>

#include "core/distributed/shared_memory.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"

// c10d writes a line for each answer that nobody took.
C10_DECLARE_int(caffe2_log_level);

using namespace moe;
using distributed::Seconds;
using moe::test::contains_text;

TEST_CASE("processes that inherit a store read what the others write") {
  const Descriptor file = make_memory_file();
  const auto one = distributed::inherited_store(file, Seconds{20});
  const auto other = distributed::inherited_store(file, Seconds{20});
  CHECK((one->is_private() && !one->read("key").has_value()));
  one->set("key", "first");
  CHECK(other->read("key") == "first");
  other->set("key", "");
  CHECK(one->read("key") == "");
  std::vector<std::thread> threads;
  for (const auto& store : {one, other}) {
    threads.emplace_back([store] {
      for (int line = 0; line < 50; ++line) {
        store->append("lines", fmt::format("{} {}\n", static_cast<const void*>(store.get()), line));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const std::string lines = one->read("lines").value_or("");
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 100);
  CHECK(other->read("lines") == lines);
}

TEST_CASE("a value has an end") {
  const auto store = distributed::local_store();
  store->set("key", std::string(distributed::Store::kMostBytes + 5, 'x'));
  CHECK(store->read("key")->size() == distributed::Store::kMostBytes);
}

// A rank that was stopped while it wrote holds the file's lock.
TEST_CASE("a store whose file another process holds is silent, and does not block for ever") {
  const Descriptor file = make_memory_file();
  const auto store = distributed::inherited_store(file, Seconds{0.6});
  store->set("key", "text");
  const Descriptor holder(open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_THROWS_AS(store->read("key"), distributed::StoreIsSilent);
  flock(holder.get(), LOCK_UN);
  CHECK_THROWS_AS(store->read("key"), distributed::StoreIsSilent);
}

// Else the answer that finds nobody ends the process (SIGPIPE), as any port scanner would.
TEST_CASE("clients that hang up before their answer leave the store as it is") {
  std::signal(SIGPIPE, SIG_DFL);
  FLAGS_caffe2_log_level = 3;  // fatal
  const auto port = static_cast<uint16_t>(20000 + getpid() % 12000);
  const auto store = distributed::serve_store("127.0.0.1", port, "run", Seconds{20});
  CHECK_FALSE(store->is_private());
  // c10d's greeting, and then the question how many keys there are, again and again.
  std::string questions("\x00\xce\xf7\x85\x3c", 5);
  questions.append(2000, '\x07');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int client = 0; client < 50; ++client) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const linger at_once{1, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    send(socket.get(), questions.data(), questions.size(), MSG_NOSIGNAL);
  }
  store->set("key", "text");
  CHECK(store->read("key") == "text");
}

TEST_CASE("a descriptor that is no file in memory is refused as a store") {
  const test::TempDir folder;
  test::write_file(folder / "file", "text");
  const Descriptor file(open((folder / "file").c_str(), O_RDWR));
  CHECK_THROWS_WITH(distributed::inherited_store(file, Seconds{1}),
                    contains_text("is not the store of a run that moe --ranks started"));
  CHECK_THROWS_WITH(distributed::inherited_store(Descriptor(-1), Seconds{1}),
                    contains_text("descriptor -1 is not the store"));
  CHECK(test::read_file(folder / "file") == "text");
}
