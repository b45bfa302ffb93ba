#pragma once
// Catch2 2.13 (Debian 12) or 3 (Debian 13).

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define MOE_SKIP(reason) SKIP(reason)
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#include <iostream>
// 2.13 has no SKIP: prints the reason, counts (tests/support/main.cpp) and leaves the case.
#define MOE_SKIP(reason)                               \
  do {                                                 \
    ::moe::test::count_skip();                         \
    std::cout << "skipped: " << (reason) << std::endl; \
    return;                                            \
  } while (false)
#endif

namespace moe::test {
void count_skip();
}
