#pragma once
// Errors. The user can fix a UserError: its message is one sentence with fault, place and remedy;
// exit code 2. A failed MOE_CHECK is a bug: its message has the condition, the source line and
// values. Failures of the machine are other exceptions. These and bugs have exit code 1.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

// Exit codes besides 0.
inline constexpr int kFailed = 1, kUserError = 2, kInterrupted = 130;

class UserError : public std::runtime_error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> text, Args&&... args)
      : std::runtime_error(fmt::format(text, std::forward<Args>(args)...)) {}
};

// Thrown after SIGINT or SIGTERM, once the state to resume from is saved. Exit code 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws "FILE: ACTION: reason" for the current errno: UserError, or std::runtime_error if the
// reason is a lack of descriptors or memory, or a failing device (EMFILE, ENFILE, ENOMEM, EIO).
[[noreturn]] void fail_file(const std::string& file, std::string_view action);

[[noreturn]] void fail_check(const char* condition, const char* file, int line, std::string values);

// Returns ", did you mean 'NAME'?" with the name in `known` that is closest to `unknown` by edit
// distance, or "" if the distance is 0 or large.
std::string did_you_mean(std::string_view unknown, const std::vector<std::string>& known);

}  // namespace moe

// MOE_CHECK(rows == expected, "rows {} expected {}", rows, expected) checks an invariant, also in
// release builds.
#define MOE_CHECK(condition, ...)                                                     \
  do {                                                                                \
    if (!(condition)) {                                                               \
      ::moe::fail_check(#condition, __FILE__, __LINE__, fmt::format("" __VA_ARGS__)); \
    }                                                                                 \
  } while (false)

// USER_ERROR_IF(rows < 1, "--rows {}: must be at least 1", rows) throws a UserError if
// rows < 1, and only then evaluates the arguments of the message.
#define USER_ERROR_IF(condition, ...)      \
  do {                                     \
    if (condition) {                       \
      throw ::moe::UserError(__VA_ARGS__); \
    }                                      \
  } while (false)
