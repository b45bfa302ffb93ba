#include "core/base/system_fields.h"

#include <charconv>
#include <fstream>

namespace moe {

std::string system_field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos) {
      const size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

uint64_t system_bytes(const char* file, const std::string& key) {
  const std::string value = system_field(file, key);
  uint64_t kibibytes = 0;
  std::from_chars(value.data(), value.data() + value.size(), kibibytes);
  return kibibytes * 1024;
}

}  // namespace moe
