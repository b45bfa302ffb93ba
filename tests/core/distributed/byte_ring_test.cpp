#include "core/distributed/byte_ring.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "tests/support/catch.h"

using namespace moe;
using distributed::ByteRing;

namespace {

constexpr uint64_t kCapacity = uint64_t{1} << 20;

// Memory of a ring, all zeros; the counters are the first words of its first two lines.
struct alignas(64) Memory {
  std::atomic<uint64_t> written = 0;
  alignas(64) std::atomic<uint64_t> read = 0;
  alignas(64) std::array<std::byte, kCapacity> data{};

  ByteRing ring() { return {reinterpret_cast<std::byte*>(this), kCapacity}; }
};

// The n-th byte of a stream that repeats at no power of two.
std::byte byte_at(uint64_t n) { return static_cast<std::byte>((n * 31 + n / 251) % 253); }

}  // namespace

TEST_CASE("a full ring takes nothing, an empty one gives nothing") {
  const auto memory = std::make_unique<Memory>();
  REQUIRE(ByteRing::bytes_for(kCapacity) == sizeof(Memory));
  ByteRing ring = memory->ring();
  std::vector<std::byte> much(kCapacity + 5);
  CHECK(ring.pop(much.data(), 10) == 0);
  CHECK(ring.push(much.data(), 0) == 0);
  CHECK(ring.push(much.data(), much.size()) == kCapacity);
  CHECK(ring.push(much.data(), 1) == 0);
  CHECK(ring.pop(much.data(), 3) == 3);
  CHECK(ring.push(much.data(), 7) == 3);
  CHECK(ring.pop(much.data(), much.size()) == kCapacity);
  CHECK(ring.pop(much.data(), 1) == 0);
}

TEST_CASE("bytes come out in order, whatever the pieces, from another thread") {
  constexpr uint64_t kAll = 5 * kCapacity + 12345;
  const auto memory = std::make_unique<Memory>();
  std::thread writer([&] {
    ByteRing ring = memory->ring();
    Random random(1, "writer");
    std::vector<std::byte> piece;
    for (uint64_t sent = 0; sent < kAll;) {
      piece.resize(std::min<uint64_t>(kAll - sent, 1 + random.below(300'000)));
      for (uint64_t i = 0; i < piece.size(); ++i) {
        piece[i] = byte_at(sent + i);
      }
      for (uint64_t done = 0; done < piece.size(); std::this_thread::yield()) {
        done += ring.push(piece.data() + done, piece.size() - done);
      }
      sent += piece.size();
    }
  });
  ByteRing ring = memory->ring();
  Random random(2, "reader");
  std::vector<std::byte> piece;
  uint64_t wrong = 0;
  for (uint64_t seen = 0; seen < kAll; std::this_thread::yield()) {
    piece.resize(1 + random.below(300'000));
    const uint64_t count = ring.pop(piece.data(), piece.size());
    for (uint64_t i = 0; i < count; ++i) {
      wrong += piece[i] == byte_at(seen + i) ? 0 : 1;
    }
    seen += count;
  }
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("counters that a peer has spoilt lead to nothing outside of the ring") {
  const auto memory = std::make_unique<Memory>();
  ByteRing ring = memory->ring();
  std::vector<std::byte> piece(100);
  memory->written = ~uint64_t{0};
  CHECK(ring.pop(piece.data(), piece.size()) <= piece.size());
  memory->read = 12345;
  memory->written = 3;
  CHECK(ring.push(piece.data(), piece.size()) == 0);
}

TEST_CASE("rings of many ranks are small ones") {
  CHECK(distributed::ring_capacity(2) == uint64_t{1} << 20);
  CHECK(distributed::ring_capacity(16) == uint64_t{1} << 20);
  CHECK(distributed::ring_capacity(17) == uint64_t{1} << 19);
  CHECK(distributed::ring_capacity(4096) == uint64_t{16} << 10);
  for (const int64_t ranks : {2, 3, 16, 17, 100, 128}) {
    CHECK(distributed::all_rings_bytes(ranks) < (uint64_t{260} << 20));  // with the counters
  }
}
