// Memory that ranks have in common; here ranks are threads, which find it as processes do.

#include "core/dist/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/support/catch.h"

using namespace moe;
using dist::Seconds;
using dist::SharedMemory;

namespace {

constexpr size_t kBytes = size_t{1} << 20;

std::ptrdiff_t names_of_memory() {
  const std::filesystem::directory_iterator names("/dev/shm");
  return std::distance(begin(names), end(names));
}

}  // namespace

TEST_CASE("what one rank writes the other reads, and the memory has no name") {
  const auto store = dist::local_store();
  const std::ptrdiff_t before = names_of_memory();
  const auto nothing = [] {};
  std::thread other([&] {
    const SharedMemory memory(*store, "key", 1, 2, kBytes, Seconds{20}, nothing);
    std::memcpy(memory.data(), "words", 6);
    store->set("written", "yes");
  });
  const SharedMemory memory(*store, "key", 0, 2, kBytes, Seconds{20}, nothing);
  other.join();
  REQUIRE(store->read("written") == "yes");
  CHECK(std::string(static_cast<const char*>(memory.data())) == "words");
  const auto* bytes = static_cast<const char*>(memory.data());
  CHECK(std::all_of(bytes + 6, bytes + kBytes, [](char byte) { return byte == 0; }));
  CHECK(names_of_memory() == before);
}

TEST_CASE("who waits for memory looks around meanwhile") {
  const auto store = dist::local_store();
  for (const int64_t rank : {0, 1}) {  // one makes it, one finds it; the other does not come
    const std::string key = "key" + std::to_string(rank);
    const auto look = [] { throw std::runtime_error("it is gone"); };
    CHECK_THROWS_WITH(SharedMemory(*store, key, rank, 2, kBytes, Seconds{60}, look), "it is gone");
    CHECK_THROWS_WITH(SharedMemory(*store, key + "b", rank, 2, kBytes, Seconds{0.2}, [] {}),
                      "shared memory: the others did not come");
  }
}
