#pragma once
// Where this build's binary and sources are. Functions, so that a test's object file is the same in
// every clone and a compiler cache can share it.

#include <filesystem>
#include <string>

namespace moe::test {

std::string moe_binary();
std::filesystem::path source_folder();

}  // namespace moe::test
