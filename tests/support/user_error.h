#pragma once
// Messages of UserErrors, and the matchers that check them.

#include "core/base/error.h"
#include "tests/support/matchers.h"

namespace moe::test {

// Returns the message of the UserError that `work` throws, "" if it throws none.
template <typename Work>
std::string user_error_of(Work&& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace moe::test
