#pragma once
// Matchers whose names differ between Catch2 2 and 3.

#include <string>

#include "tests/support/catch.h"

namespace moe::test {

// Matches a text that contains `part`.
inline auto contains_text(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace moe::test
