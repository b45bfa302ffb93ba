#include "core/dist/byte_ring.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "tests/support/catch.h"

using namespace moe;
using dist::ByteRing;

namespace {

// The n-th byte of a stream that repeats at no power of two.
std::byte byte_at(uint64_t n) { return static_cast<std::byte>((n * 31 + n / 251) % 253); }

}  // namespace

TEST_CASE("a full ring takes nothing, an empty one gives nothing") {
  const auto ring = std::make_unique<ByteRing>();
  std::vector<std::byte> much(ByteRing::kBytes + 5);
  CHECK(ring->pop(much.data(), 10) == 0);
  CHECK(ring->push(much.data(), 0) == 0);
  CHECK(ring->push(much.data(), much.size()) == ByteRing::kBytes);
  CHECK(ring->push(much.data(), 1) == 0);
  CHECK(ring->pop(much.data(), 3) == 3);
  CHECK(ring->push(much.data(), 7) == 3);
  CHECK(ring->pop(much.data(), much.size()) == ByteRing::kBytes);
  CHECK(ring->pop(much.data(), 1) == 0);
}

TEST_CASE("bytes come out in order, whatever the pieces, from another thread") {
  constexpr uint64_t kAll = 5 * ByteRing::kBytes + 12345;
  const auto ring = std::make_unique<ByteRing>();
  std::thread writer([&] {
    Random random(1, "writer");
    std::vector<std::byte> piece;
    for (uint64_t sent = 0; sent < kAll;) {
      piece.resize(std::min<uint64_t>(kAll - sent, 1 + random.below(300'000)));
      for (uint64_t i = 0; i < piece.size(); ++i) {
        piece[i] = byte_at(sent + i);
      }
      for (uint64_t done = 0; done < piece.size(); std::this_thread::yield()) {
        done += ring->push(piece.data() + done, piece.size() - done);
      }
      sent += piece.size();
    }
  });
  Random random(2, "reader");
  std::vector<std::byte> piece;
  uint64_t wrong = 0;
  for (uint64_t seen = 0; seen < kAll; std::this_thread::yield()) {
    piece.resize(1 + random.below(300'000));
    const uint64_t count = ring->pop(piece.data(), piece.size());
    for (uint64_t i = 0; i < count; ++i) {
      wrong += piece[i] == byte_at(seen + i) ? 0 : 1;
    }
    seen += count;
  }
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("counters that a peer has spoilt lead to nothing outside of the ring") {
  const auto ring = std::make_unique<ByteRing>();
  std::vector<std::byte> piece(100);
  ring->written = ~uint64_t{0};
  CHECK(ring->pop(piece.data(), piece.size()) <= piece.size());
  ring->read = 12345;
  ring->written = 3;
  CHECK(ring->push(piece.data(), piece.size()) == 0);
}
