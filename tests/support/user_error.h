#pragma once
// Returns the message of the UserError that `work` throws, "" if it throws none.

#include <string>

#include "core/base/error.h"

namespace moe::test {

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
