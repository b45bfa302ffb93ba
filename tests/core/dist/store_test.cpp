// The store of ranks that inherit it: a file in memory that each of them opens for itself.

#include "core/dist/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <thread>

#include "core/dist/shared_memory.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using Catch::Matchers::Contains;
using dist::Descriptor;
using dist::Seconds;

TEST_CASE("processes that inherit a store read what the others write") {
  const Descriptor file = dist::make_memory_file();
  const auto one = dist::inherited_store(file, Seconds{20});
  const auto other = dist::inherited_store(file, Seconds{20});
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
  const auto store = dist::local_store();
  store->set("key", std::string(dist::Store::kMostBytes + 5, 'x'));
  CHECK(store->read("key")->size() == dist::Store::kMostBytes);
}

// A rank that was stopped while it wrote holds the file's lock.
TEST_CASE("a store whose file another process holds is silent, and does not block for ever") {
  const Descriptor file = dist::make_memory_file();
  const auto store = dist::inherited_store(file, Seconds{0.6});
  store->set("key", "text");
  const Descriptor holder(open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_THROWS_AS(store->read("key"), dist::StoreIsSilent);
  flock(holder.get(), LOCK_UN);
  CHECK_THROWS_AS(store->read("key"), dist::StoreIsSilent);
}

TEST_CASE("a descriptor that is no file in memory is refused as a store") {
  const test::TempDir folder;
  test::write_file(folder / "file", "text");
  const Descriptor file(open((folder / "file").c_str(), O_RDWR));
  CHECK_THROWS_WITH(dist::inherited_store(file, Seconds{1}),
                    Contains("is not the store of a run that moe --ranks started"));
  CHECK_THROWS_WITH(dist::inherited_store(Descriptor(-1), Seconds{1}),
                    Contains("descriptor -1 is not the store"));
  CHECK(test::read_file(folder / "file") == "text");
}
