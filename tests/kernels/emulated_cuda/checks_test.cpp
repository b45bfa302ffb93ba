// Faults that the emulator detects, with kernels that are wrong on purpose (wrong_kernels.h).

#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/kernels/emulated_cuda/wrong_kernels.h"
#include "tests/support/emulated_cuda/emulator.h"
#include "tests/support/matchers.h"

using namespace moe::test;

namespace {

// Returns the reason why a launch was stopped; "" if it completed.
std::string failure_of(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a vector load or store that is not aligned is refused", "[kernels][emulator]") {
  alignas(16) std::array<float, 12> from = {}, to = {};
  CHECK(failure_of([&] { copy_vector(from.data() + 4, to.data() + 8); }).empty());
  const std::string load = failure_of([&] { copy_vector(from.data() + 2, to.data()); });
  CHECK_THAT(load, contains_text("block 0 of 1, warp 0, lane 5: reads from an address") &&
                       contains_text("multiple of 16 (8 past one of 16)") &&
                       contains_text("launch.cuh:"));
  CHECK_THAT(failure_of([&] { copy_vector(from.data(), to.data() + 1); }),
             contains_text("writes to an address") && contains_text("(4 past one of 16)"));
  // A launch after one that failed runs.
  CHECK(failure_of([&] { copy_vector(from.data(), to.data()); }).empty());
}

TEST_CASE("warps without a barrier between them are found, in any order", "[kernels][emulator]") {
  if (!emulated::finds_races()) {
    MOE_SKIP("kernels compiled for a sanitizer are not watched for races");
  }
  std::array<int32_t, 8> out = {};
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    emulated::set_order(seed);
    CHECK(failure_of([&] { read_neighbour(8, out.data(), /*has_barrier=*/true); }).empty());
    const std::string failure =
        failure_of([&] { read_neighbour(8, out.data(), /*has_barrier=*/false); });
    CHECK_THAT(failure, contains_text("s what another warp ") ||
                            contains_text("reads shared memory that the block has not written"));
    CHECK_THAT(failure,
               contains_text("(threads in the order of seed " + std::to_string(seed) + ")"));
  }
  CHECK(failure_of([&] { read_neighbour(1, out.data(), /*has_barrier=*/false); }).empty());
}

TEST_CASE("a sum that warps update without an atomic is found", "[kernels][emulator]") {
  int32_t sum = 0;
  CHECK(failure_of([&] { add_one(8, &sum, /*is_atomic=*/true); }).empty());
  CHECK(sum == 8);
  if (emulated::finds_races()) {  // an order of whole threads never shows it
    CHECK_THAT(failure_of([&] { add_one(8, &sum, /*is_atomic=*/false); }),
               contains_text("what another warp "));
  }
}

TEST_CASE("shared memory that no thread wrote is found", "[kernels][emulator]") {
  int32_t number = -1;
  CHECK(failure_of([&] { read_shared(&number, /*is_written=*/true); }).empty());
  CHECK(number == 7);
  if (emulated::finds_races()) {  // the block before has left a 7
    CHECK_THAT(failure_of([&] { read_shared(&number, /*is_written=*/false); }),
               contains_text("reads shared memory that the block has not written"));
  }
}

TEST_CASE("blocks that write one number are found", "[kernels][emulator]") {
  int32_t number = -1;
  CHECK(failure_of([&] { write_block_number(1, &number); }).empty());
  if (emulated::finds_races()) {
    CHECK_THAT(failure_of([&] { write_block_number(2, &number); }),
               contains_text("block 1 of 2, warp 0, lane 0: writes what another block writes"));
  }
}

TEST_CASE("two orders give two results where a barrier is missing", "[kernels][emulator]") {
  const emulated::RacesAllowed allowed;
  const auto neighbours_of = [](unsigned seed) {
    const at::Tensor out = at::zeros({32}, at::kInt);
    emulated::set_order(seed);
    read_neighbour(32, out.data_ptr<int32_t>(), /*has_barrier=*/false);
    return out;
  };
  // Shared memory is full of -1: with 32 warps an order shows no difference with probability below
  // 2^-30.
  const at::Tensor first = neighbours_of(1);
  CHECK_FALSE(at::equal(first, neighbours_of(2)));
  CHECK(at::equal(first, neighbours_of(1)));  // a seed is an order
}
