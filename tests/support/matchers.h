#pragma once
// Matchers that both versions of Catch2 have under names of their own.

#include <string>

#include "tests/support/catch.h"

namespace moe::test {

// For CHECK_THAT: a text that holds `part`.
inline auto contains_text(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace moe::test
