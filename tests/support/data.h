#pragma once
// Where the real data files are: MOE_SHARED_DATA, else ../shared/data beside the checkout. Empty =
// absent: MOE_SKIP.

#include <cstdlib>
#include <filesystem>

#include "tests/support/places.h"

namespace moe::test {

inline std::filesystem::path shared_data() {
  const char* given = std::getenv("MOE_SHARED_DATA");
  const std::filesystem::path folder =
      given != nullptr ? given : source_folder() / ".." / "shared" / "data";
  return std::filesystem::is_directory(folder) ? std::filesystem::weakly_canonical(folder)
                                               : std::filesystem::path();
}

}  // namespace moe::test

#define MOE_NEED_SHARED_DATA()                                                     \
  if (::moe::test::shared_data().empty()) {                                        \
    MOE_SKIP("no shared data: set MOE_SHARED_DATA or put it into ../shared/data"); \
  }
