#include "core/base/random.h"

#include <bit>
#include <cmath>

#include "core/base/error.h"

namespace moe {
namespace {

constexpr int kLayers = 256;
constexpr double kTailStart = 3.6541528853610088;  // r of Marsaglia and Tsang for 256 layers

// Right edges x[0] > x[1] = r > ... > x[256] = 0 of layers of equal area; layer 0 has the tail.
struct Ziggurat {
  std::array<double, kLayers + 1> x{};
  std::array<double, kLayers> ratio{};  // x[i + 1] / x[i]: points below it are under the curve

  Ziggurat() {
    const double height = std::exp(-0.5 * kTailStart * kTailStart);
    const double tail = std::sqrt(std::acos(-1.0) / 2.0) * std::erfc(kTailStart / std::sqrt(2.0));
    const double area = kTailStart * height + tail;
    x[0] = area / height;
    x[1] = kTailStart;
    for (int i = 2; i < kLayers; ++i) {
      x[i] = std::sqrt(-2.0 * std::log(area / x[i - 1] + std::exp(-0.5 * x[i - 1] * x[i - 1])));
    }
    x[kLayers] = 0.0;
    for (int i = 0; i < kLayers; ++i) {
      ratio[i] = x[i + 1] / x[i];
    }
  }
};

const Ziggurat& ziggurat() {
  static const Ziggurat table;
  return table;
}

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

inline uint64_t advance(std::array<uint64_t, 4>& s) {
  const uint64_t result = std::rotl(s[0] + s[3], 23) + s[0];
  const uint64_t shifted = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= shifted;
  s[3] = std::rotl(s[3], 45);
  return result;
}

// Returns the upper 53 bits as an odd multiple of 2^-53 in (-1, 1): symmetric and never 0.
inline double symmetric(uint64_t bits) {
  const auto whole = static_cast<int64_t>(bits >> 11);  // [0, 2^53)
  return static_cast<double>(2 * whole + 1 - (int64_t{1} << 53)) * 0x1p-53;
}

// Returns draw() mod `bound` without bias: rejects the lowest 2^64 mod bound numbers.
template <typename Draw>
uint64_t unbiased(uint64_t bound, Draw draw) {
  MOE_CHECK(bound > 0);
  const uint64_t surplus = (0 - bound) % bound;
  uint64_t number = draw();
  while (number < surplus) {
    number = draw();
  }
  return number % bound;
}

}  // namespace

uint64_t SplitMix64::next() {
  state_ += 0x9E3779B97F4A7C15ULL;
  uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
  return mixed ^ (mixed >> 31);
}

uint64_t SplitMix64::below(uint64_t bound) {
  return unbiased(bound, [this] { return next(); });
}

Random::Random(uint64_t seed, std::string_view stream) {
  SplitMix64 mixer(SplitMix64(seed).next() ^ fnv1a(stream));
  for (auto& word : state_) {
    word = mixer.next();
  }
}

uint64_t Random::bits() { return advance(state_); }

uint64_t Random::below(uint64_t count) {
  return unbiased(count, [this] { return bits(); });
}

// Returns a number in the tail of layer 0 or the wedge of another layer; nothing if it is rejected.
std::optional<double> Random::try_tail_or_wedge(uint64_t layer, double u) {
  const Ziggurat& table = ziggurat();
  if (layer == 0) {
    double x = 0, y = 0;
    do {
      x = std::log1p(-uniform()) / kTailStart;
      y = std::log1p(-uniform());
    } while (-2.0 * y < x * x);
    return u < 0 ? x - kTailStart : kTailStart - x;
  }
  const double x = u * table.x[layer];
  const double upper = std::exp(-0.5 * (table.x[layer] * table.x[layer] - x * x));
  const double lower = std::exp(-0.5 * (table.x[layer + 1] * table.x[layer + 1] - x * x));
  return lower + uniform() * (upper - lower) < 1.0 ? std::optional(x) : std::nullopt;
}

double Random::normal() {
  const Ziggurat& table = ziggurat();
  for (;;) {
    const uint64_t random = bits();
    const uint64_t layer = random & (kLayers - 1);  // bits 0..7; the value uses 11..63
    const double u = symmetric(random);
    if (std::abs(u) < table.ratio[layer]) {
      return u * table.x[layer];
    }
    if (const auto x = try_tail_or_wedge(layer, u)) {
      return *x;
    }
  }
}

void Random::fill_normal(std::span<float> out, double std) {
  const Ziggurat& table = ziggurat();
  std::array<uint64_t, 4> state = state_;  // stays in registers: twice as fast as normal()
  for (float& value : out) {
    const std::array<uint64_t, 4> previous = state;
    const uint64_t random = advance(state);
    const uint64_t layer = random & (kLayers - 1);
    const double u = symmetric(random);
    if (std::abs(u) < table.ratio[layer]) {
      value = static_cast<float>(u * table.x[layer] * std);
      continue;
    }
    state_ = previous;
    value = static_cast<float>(normal() * std);
    state = state_;
  }
  state_ = state;
}

}  // namespace moe
