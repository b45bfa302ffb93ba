#pragma once
// Paths of this build. Functions, so that object files of tests are equal in every clone and a
// compiler cache can share them.

#include <filesystem>
#include <string>

namespace moe::test {

std::string moe_binary();
std::filesystem::path source_folder();

}  // namespace moe::test
