#pragma once
// The two families of failure that code throws on purpose (the third, a failing machine, is
// std::exception as it comes).
//
// UserError: the user can mend it. One sentence: what is wrong, where, how to mend. main() prints
// it and exits with 2. MOE_CHECK: we are wrong. Prints the condition, the place and the values,
// exits with 1.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

class UserError : public std::runtime_error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> text, Args&&... args)
      : std::runtime_error(fmt::format(text, std::forward<Args>(args)...)) {}
};

// Work stopped by SIGINT or SIGTERM after what can be resumed was saved; main() exits with 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail_check(const char* condition, const char* file, int line, std::string values);

// The known name closest to `unknown` by edit distance, or "" when none is near. For "did you
// mean".
std::string nearest_name(std::string_view unknown, const std::vector<std::string>& known);

}  // namespace moe

// MOE_CHECK(rows == expected, "rows {} expected {}", rows, expected): an invariant of ours, on in
// release.
#define MOE_CHECK(condition, ...)                                                     \
  do {                                                                                \
    if (!(condition)) {                                                               \
      ::moe::fail_check(#condition, __FILE__, __LINE__, fmt::format("" __VA_ARGS__)); \
    }                                                                                 \
  } while (false)
