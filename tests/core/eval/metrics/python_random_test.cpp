// Values printed by CPython 3.11.
#include "core/eval/metrics/metrics.h"
#include "tests/support/catch.h"

namespace moe::eval {
namespace {

using Indices = std::vector<uint64_t>;

TEST_CASE("random() and sample() are CPython's", "[eval]") {
  PythonRandom random(1234);
  CHECK(random.uniform() == 0.9664535356921388);
  CHECK(random.uniform() == 0.4407325991753527);
  CHECK(random.uniform() == 0.007491470058587191);
  PythonRandom samples(1234);
  CHECK((samples.sample(10, 4) == Indices{7, 1, 0, 9}));
  CHECK((samples.sample(1000, 6) == Indices{932, 965, 961, 826, 596, 35}));
  CHECK((samples.sample(100000, 3) == Indices{88023, 90844, 11001}));
  CHECK((samples.sample(30, 6) == Indices{3, 24, 11, 7, 0, 25}));
  PythonRandom zero(0);
  CHECK(zero.uniform() == 0.8444218515250481);
  CHECK((zero.sample(21, 21) ==
         Indices{13, 1, 8, 16, 15, 12, 14, 17, 4, 7, 5, 9, 3, 2, 11, 19, 0, 6, 18, 20, 10}));
}

}  // namespace
}  // namespace moe::eval
