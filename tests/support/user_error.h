#pragma once
// The message of the UserError that `work` throws, "" when it throws none: tests compare whole
// sentences.

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
