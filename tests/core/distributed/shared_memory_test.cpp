// Memory that ranks have in common; here ranks are threads, which come to it as processes do: from
// a pool that they inherit, or by descriptors that they hand over. What others hand over is checked
// before it is touched, for memory that shrinks under a mapping ends a process without a word.

#include "core/distributed/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/distributed/descriptor_passing.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using distributed::Mapping;
using distributed::MemoryPool;
using distributed::Seconds;
using moe::test::contains_text;

namespace {

constexpr size_t kBytes = size_t{1} << 20;

std::ptrdiff_t names_of_memory() {
  const std::filesystem::directory_iterator names("/dev/shm");
  return std::distance(begin(names), end(names));
}

distributed::MemoryMeeting meeting(distributed::Store& store, int64_t rank, MemoryPool* pool,
                                   const std::string& key = "key") {
  return {store, key, rank, 2, pool, Seconds{20}, [] {}};
}

void write_words(const Mapping& memory) { std::memcpy(memory.data(), "words", 6); }

// What rank 1 says of an offer of `memory`, and in whose name it is made.
std::string failure_of_receiver(const Descriptor& memory) {
  const auto store = distributed::local_store();
  distributed::DescriptorOffer offer(memory);
  store->set("key", offer.name());
  std::atomic<bool> is_over = false;
  std::thread server([&] {
    while (!is_over) {
      offer.serve();
      std::this_thread::yield();
    }
  });
  std::string failure;
  try {
    share_memory(meeting(*store, 1, nullptr), kBytes);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  is_over = true;
  server.join();
  return failure;
}

}  // namespace

TEST_CASE("what one rank writes the other reads, and the memory has no name") {
  const bool has_pool = GENERATE(true, false);
  const auto store = distributed::local_store();
  const std::ptrdiff_t before = names_of_memory();
  const Descriptor inherited = MemoryPool::make(4 * kBytes);
  MemoryPool pool{Descriptor(dup(inherited.get()))};
  MemoryPool other_pool{Descriptor(dup(inherited.get()))};
  std::thread other([&] {
    write_words(share_memory(meeting(*store, 1, has_pool ? &other_pool : nullptr), kBytes));
    store->set("written", "yes");
  });
  const Mapping memory = share_memory(meeting(*store, 0, has_pool ? &pool : nullptr), kBytes);
  other.join();
  REQUIRE(store->read("written") == "yes");
  const auto* bytes = static_cast<const char*>(memory.data());
  CHECK(std::string(bytes) == "words");
  CHECK(std::all_of(bytes + 6, bytes + kBytes, [](char byte) { return byte == 0; }));
  CHECK(names_of_memory() == before);
}

TEST_CASE("pieces of a pool are apart, and it has an end") {
  const Descriptor inherited = MemoryPool::make(2 * kBytes);
  MemoryPool first{Descriptor(dup(inherited.get()))}, second{Descriptor(dup(inherited.get()))};
  const size_t one = first.take(kBytes), two = second.take(kBytes);
  CHECK((one >= 64 && two >= one + kBytes));  // behind the pool's own counter
  CHECK_THROWS_WITH(first.take(1), contains_text("no room for 1 bytes more"));
  write_words(first.map(one, kBytes));
  CHECK(*static_cast<const char*>(second.map(two, kBytes).data()) == 0);
}

TEST_CASE("an offset from the store leads nowhere outside of the pool") {
  const auto store = distributed::local_store();
  MemoryPool pool{MemoryPool::make(kBytes)};
  for (const char* offset : {"0", "1", "65537", "1048576", "18446744073709486080"}) {
    store->set("key", offset);
    CHECK_THROWS_WITH(share_memory(meeting(*store, 1, &pool), kBytes),
                      contains_text("lie outside"));
  }
}

TEST_CASE("a value that names a path is not followed") {
  const test::TempDir folder;
  const std::string secret(kBytes, 's');
  test::write_file(folder / "private", secret);
  const auto store = distributed::local_store();
  MemoryPool pool{MemoryPool::make(kBytes)};
  for (const std::string& value :
       {(folder / "private").string(), std::string("/proc/self/fd/1"), std::string("../key"),
        std::string("-1"), std::string(33, 'a'), std::string(32, 'A'), std::string()}) {
    store->set("key", value);
    for (MemoryPool* way : {static_cast<MemoryPool*>(nullptr), &pool}) {
      distributed::MemoryMeeting short_meeting = meeting(*store, 1, way);
      short_meeting.timeout = Seconds{0.05};
      CHECK_THROWS_WITH(share_memory(short_meeting, kBytes),
                        "shared memory: the others did not come");
    }
  }
  CHECK(test::read_file(folder / "private") == secret);
}

TEST_CASE("memory that could be cut short, or has another size, is refused before it is touched") {
  Descriptor open_memory = make_memory_file();
  REQUIRE(ftruncate(open_memory.get(), kBytes) == 0);
  CHECK_THAT(failure_of_receiver(open_memory), contains_text("can change its size"));
  REQUIRE(fcntl(open_memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  CHECK_THAT(failure_of_receiver(open_memory), contains_text("can change its size"));
  CHECK_THAT(failure_of_receiver(distributed::make_sealed_memory(kBytes / 2)),
             contains_text("524288 bytes came where 1048576 were expected"));
  const test::TempDir folder;
  test::write_file(folder / "file", std::string(kBytes, 's'));
  CHECK_THAT(failure_of_receiver(Descriptor(open((folder / "file").c_str(), O_RDWR))),
             contains_text("can change its size"));
  const Descriptor sealed = distributed::make_sealed_memory(kBytes);
  CHECK(ftruncate(sealed.get(), 1) != 0);
  CHECK(failure_of_receiver(sealed).empty());
  CHECK_THROWS_WITH(MemoryPool{make_memory_file()}, contains_text("can change its size"));
}

TEST_CASE("who waits for memory looks around meanwhile") {
  const auto store = distributed::local_store();
  for (const int64_t rank : {0, 1}) {  // one makes it, one is given it; the other does not come
    distributed::MemoryMeeting lonely =
        meeting(*store, rank, nullptr, "key" + std::to_string(rank));
    lonely.look = [] { throw std::runtime_error("it is gone"); };
    CHECK_THROWS_WITH(share_memory(lonely, kBytes), "it is gone");
    lonely.look = [] {};
    lonely.key += "b";
    lonely.timeout = Seconds{0.2};
    CHECK_THROWS_WITH(share_memory(lonely, kBytes), "shared memory: the others did not come");
  }
}
