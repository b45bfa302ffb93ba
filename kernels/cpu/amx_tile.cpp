#include "kernels/cpu/amx_tile.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moe::kernels {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// Inline assembly: the intrinsics require literal register numbers.
struct AmxUnit {
  template <int kRegister>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kRegister));
  }
  template <int kRegister>
  static void load(const float* from, int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row * 4), "i"(kRegister)
                 : "memory");
  }
  template <int kRegister>
  static void store(float* to, int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row * 4), "i"(kRegister)
                 : "memory");
  }
  template <int kC, int kA, int kB>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

// Intel SDM, volume 1, section 18.2: palette 1 with eight full registers.
struct alignas(64) AmxConfiguration {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> bytes_of_a_row{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxConfiguration) == 64);

// Configures the registers for one product; other libraries may configure them differently.
void begin_amx() {
  static constexpr AmxConfiguration kConfiguration;
  asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
}
void end_amx() { asm volatile("tilerelease"); }

void run_amx(const Tile& tile) { AmxTile<AmxUnit>(tile).run(); }

// Returns true if the CPU has the unit (CPUID leaf 7: AMX-BF16, AMX-TILE) and the system saves its
// registers (XCR0) after this process has requested permission.
bool can_use_amx() {
  constexpr unsigned kBF16 = 1U << 22, kTile = 1U << 24, kXsave = 1U << 27;
  constexpr unsigned kTileState = 3U << 17;                    // TILECFG and TILEDATA
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBF16) == 0 || (d & kTile) == 0 ||
      __get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kXsave) == 0) {
    return false;
  }
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::optional<TileKernel> amx_tile_kernel() {
  static const bool is_usable = can_use_amx();
  const TileKernel kernel{kAmxSide, kAmxVectors, run_amx, Word::kTwoBF16,
                          kAmxRows, begin_amx,   end_amx};
  return is_usable ? std::optional(kernel) : std::nullopt;
}
#else
std::optional<TileKernel> amx_tile_kernel() { return std::nullopt; }
#endif

}  // namespace moe::kernels
