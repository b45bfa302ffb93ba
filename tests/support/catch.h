#pragma once
// The only file that knows Catch2's version (2.13 on Debian 12, 3 on Debian 13).

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#define MOE_SKIP(reason) SKIP(reason)
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#include <iostream>
// 2.13 has no SKIP: say so, be counted (tests/support/main.cpp), leave the test case.
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
