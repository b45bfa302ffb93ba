#include "core/distributed/heartbeats.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/catch.h"

using namespace moe;
using distributed::Heartbeats;

namespace {

struct Table {
  explicit Table(int64_t ranks)
      : memory(distributed::make_sealed_memory(distributed::heartbeat_bytes(ranks))),
        heartbeats(map(ranks)) {}

  std::unique_ptr<Heartbeats> map(int64_t ranks) const {
    return distributed::heartbeats_in_memory(
        distributed::Mapping(memory, 0, distributed::heartbeat_bytes(ranks)), ranks);
  }

  Descriptor memory;
  std::unique_ptr<Heartbeats> heartbeats;
};

void replaces_texts(Heartbeats& writer, Heartbeats& reader) {
  CHECK_FALSE(reader.read(1).has_value());
  for (const std::string& text : {std::string("first"), std::string(Heartbeats::kMostBytes, 'x'),
                                  std::string("12345678"), std::string("a\0b", 3), std::string()}) {
    writer.write(1, text);
    CHECK(reader.read(1) == text);
  }
  CHECK_FALSE(reader.read(0).has_value());
  CHECK_THROWS(writer.write(0, std::string(Heartbeats::kMostBytes + 1, 'x')));
}

}  // namespace

TEST_CASE("the next heartbeat replaces the one before, in a store and in memory") {
  const auto store = distributed::local_store();
  const auto one = distributed::heartbeats_in_store(store, "run");
  const auto other = distributed::heartbeats_in_store(store, "run");
  replaces_texts(*one, *other);
  CHECK_FALSE(distributed::heartbeats_in_store(store, "another run")->read(1).has_value());
  const Table table(2);
  const auto mapped_again = table.map(2);
  replaces_texts(*table.heartbeats, *mapped_again);
  CHECK_THROWS(table.heartbeats->write(2, ""));
  CHECK_THROWS(table.heartbeats->read(-1));
}

// A reader that took half of one text and half of the next would find two letters.
TEST_CASE("a heartbeat that is read while it is written is whole") {
  const Table table(1);
  const auto reader = table.map(1);
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (int round = 0; round < 5'000; ++round) {
      const size_t length = round % 2 == 0 ? 3000 : 1700;
      table.heartbeats->write(0, std::string(length, static_cast<char>('a' + round % 26)));
      std::this_thread::sleep_for(std::chrono::microseconds(1));
    }
    is_over = true;
  });
  int64_t torn = 0, read = 0;
  while (!is_over) {
    if (const auto text = reader->read(0)) {
      ++read;
      const bool is_whole = (text->size() == 3000 || text->size() == 1700) &&
                            text->find_first_not_of(text->front()) == std::string::npos;
      torn += is_whole ? 0 : 1;
    }
  }
  writer.join();
  CHECK(torn == 0);
  CHECK(read > 0);
  CHECK(reader->read(0).has_value());
}

// Its writer was killed in the middle: the version stays odd.
TEST_CASE("a heartbeat that was never finished is none") {
  const Table table(1);
  table.heartbeats->write(0, "text");
  const distributed::Mapping bytes(table.memory, 0, distributed::heartbeat_bytes(1));
  ++*static_cast<uint64_t*>(bytes.data());
  CHECK_FALSE(table.heartbeats->read(0).has_value());
  table.heartbeats->write(0, "again");
  CHECK(table.heartbeats->read(0) == "again");
}

// What a store in a file would: the memory behind it grows with each text that is set.
TEST_CASE("a pool has room for heartbeats from the beginning") {
  const size_t bytes = distributed::heartbeat_bytes(3);
  const Descriptor inherited = distributed::MemoryPool::make(1 << 20, bytes);
  distributed::MemoryPool one{Descriptor(dup(inherited.get()))};
  distributed::MemoryPool other{Descriptor(dup(inherited.get()))};
  const auto writer = distributed::heartbeats_in_memory(one.map_reserved(bytes), 3);
  const auto reader = distributed::heartbeats_in_memory(other.map_reserved(bytes), 3);
  const size_t taken = one.take(1 << 20);
  std::fill_n(static_cast<char*>(one.map(taken, 1 << 20).data()), 1 << 20, 'x');
  writer->write(2, "text");
  CHECK(reader->read(2) == "text");
  CHECK_FALSE(reader->read(1).has_value());
}
