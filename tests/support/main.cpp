// main() of a test binary. Exit codes: 77 if every case that ran was skipped (ctest shows it as
// skipped), 2 if the filter matches no case, otherwise Catch2's.

#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#endif
#include <cstdlib>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace {

int g_skips = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Replaces the cache folder of the user by an empty one.
class OwnCache {
 public:
  OwnCache() { ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }

 private:
  moe::test::TempDir folder_;
};

}  // namespace

namespace moe::test {
void count_skip() { ++g_skips; }
// MOE_BINARY of the environment is used by tests/wheel/run.sh.
std::string moe_binary() {
  const char* other = std::getenv("MOE_BINARY");
  return other != nullptr ? other : MOE_BINARY;
}
std::filesystem::path source_folder() { return MOE_SOURCE_DIR; }
}  // namespace moe::test

#if __has_include(<catch2/catch_all.hpp>)
int main(int argc, char** argv) {
  const OwnCache cache;
  const int result = Catch::Session().run(argc, argv);
  return result == 4 ? 77 : result;  // Catch2 3: 4 = all skipped
}
#else
namespace {

int g_cases = 0;              // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
bool g_is_unmatched = false;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

struct CaseCounter : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseEnded(const Catch::TestCaseStats&) override { ++g_cases; }
  void noMatchingTestCases(const std::string& /*filter*/) override { g_is_unmatched = true; }
};
CATCH_REGISTER_LISTENER(CaseCounter)

}  // namespace

int main(int argc, char** argv) {
  const OwnCache cache;
  const int result = Catch::Session().run(argc, argv);
  if (result == 0 && g_cases == 0 && g_is_unmatched) {
    return 2;  // Catch2 3 does
  }
  return result == 0 && g_cases > 0 && g_skips == g_cases ? 77 : result;
}
#endif
