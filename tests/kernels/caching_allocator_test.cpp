#include "kernels/cpu/caching_allocator.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using moe::kernels::CachingAllocator;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

}  // namespace

TEST_CASE("a dropped block goes to the next tensor of about its size", "[kernels]") {
  CachingAllocator cache;
  void* first = cache.allocate(8 * kMiB).get();
  CHECK(cache.stats().live_bytes == 0);
  CHECK(cache.stats().cached_bytes == 8 * kMiB);
  auto again = cache.allocate(8 * kMiB - 300000);  // 3.6 % smaller
  CHECK(again.get() == first);
  CHECK(cache.stats().live_bytes == 8 * kMiB);
  CHECK(cache.stats().cached_bytes == 0);
}

TEST_CASE("raw memory, as for the scratch of oneDNN, is allocated and freed", "[kernels]") {
  CachingAllocator cache;
  for (const size_t bytes : {size_t{1000}, 2 * kMiB}) {
    void* data = cache.raw_allocate(bytes);
    std::memset(data, 1, bytes);
    cache.raw_deallocate(data);
  }
  CHECK(cache.stats().live_bytes == 0);
  CHECK(cache.stats().cached_bytes == 2 * kMiB);
}

TEST_CASE("blocks are aligned, apart from each other, and hold what is written", "[kernels]") {
  CachingAllocator cache;
  std::vector<c10::DataPtr> blocks;
  const std::vector<size_t> sizes = {1, 63, 64, 65, 65535, 65536, 65537, 3 * kMiB, 3 * kMiB + 1};
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(cache.allocate(sizes[i]));
    CHECK(reinterpret_cast<uintptr_t>(blocks[i].get()) % 64 == 0);
    std::memset(blocks[i].get(), static_cast<int>(i + 1), sizes[i]);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(blocks[i].get());
    CHECK(std::all_of(bytes, bytes + sizes[i], [&](unsigned char b) { return b == i + 1; }));
  }
  const auto none = cache.allocate(0);  // may be anything that can be dropped
}

TEST_CASE("reserved memory exceeds the peak of used memory by at most a sixteenth", "[kernels]") {
  CachingAllocator cache;
  uint64_t state = 3;
  std::vector<c10::DataPtr> blocks;
  for (int step = 0; step < 2000; ++step) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const size_t bytes = kMiB / 8 + (state >> 33) % (4 * kMiB);
    if (blocks.size() < 12 && (state >> 20) % 3 != 0) {
      blocks.push_back(cache.allocate(bytes));
    } else if (!blocks.empty()) {
      blocks.erase(blocks.begin() + static_cast<int64_t>((state >> 40) % blocks.size()));
    }
    const auto stats = cache.stats();
    CHECK(stats.live_bytes + stats.cached_bytes <= stats.peak_bytes + stats.peak_bytes / 16);
    CHECK(stats.live_bytes <= stats.peak_bytes);
  }
  blocks.clear();
  CHECK(cache.stats().live_bytes == 0);
}

TEST_CASE("a block of another size reuses the pages of cached blocks", "[kernels]") {
#ifdef __SANITIZE_ADDRESS__
  MOE_SKIP("the sanitizer's own pages are counted too");
#endif
  CachingAllocator cache;
  const auto fill = [](const c10::DataPtr& block, size_t bytes) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    std::memset(block.get(), 1, bytes);
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
  };
  {
    const auto one = cache.allocate(24 * kMiB), other = cache.allocate(16 * kMiB);
    CHECK(fill(one, 24 * kMiB) >= 12);  // pages of 2 MiB at most
    CHECK(fill(other, 16 * kMiB) >= 8);
  }
  {
    // Parts of both blocks, then parts of these parts; sizes of whole huge pages and not.
    for (const size_t bytes : {38 * kMiB, 20 * kMiB, 31 * kMiB + 5000, 35 * kMiB}) {
      CAPTURE(bytes);
      const auto block = cache.allocate(bytes);
      CHECK(fill(block, bytes) <= 2 + static_cast<int64_t>(bytes % (2 * kMiB) / 4096));
      CHECK(cache.stats().live_bytes + cache.stats().cached_bytes <=
            cache.stats().peak_bytes + cache.stats().peak_bytes / 16);
    }
  }
}

TEST_CASE("release frees the memory that no tensor uses and resets the peak", "[kernels]") {
  CachingAllocator cache;
  auto used = cache.allocate(kMiB);
  std::memset(used.get(), 5, kMiB);
  cache.allocate(64 * kMiB).clear();
  CHECK(cache.stats().cached_bytes == 64 * kMiB);
  cache.release();
  CHECK(cache.stats().cached_bytes == 0);
  CHECK(cache.stats().live_bytes == kMiB);
  CHECK(cache.stats().peak_bytes == kMiB);
  const auto* bytes = static_cast<const unsigned char*>(used.get());
  CHECK(std::all_of(bytes, bytes + kMiB, [](unsigned char b) { return b == 5; }));
  used.clear();
  CHECK(cache.stats().cached_bytes == kMiB);  // still caches
}

TEST_CASE("several threads may take and drop blocks", "[kernels]") {
  CachingAllocator cache;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&cache, thread] {
      for (int round = 0; round < 300; ++round) {
        const size_t bytes = kMiB / 2 + static_cast<size_t>(round % 7) * 100000;
        auto block = cache.allocate(bytes);
        std::memset(block.get(), thread, 4096);
        if (static_cast<const char*>(block.get())[4095] != thread) {
          std::abort();
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(cache.stats().live_bytes == 0);
}
