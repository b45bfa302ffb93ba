#pragma once
// Helpers of the fuzz targets. A target aborts if a check fails; libFuzzer then saves the input.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace moe::fuzz {

inline void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

// A folder of this process in memory, for readers that take a path.
inline const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    std::string name = "/dev/shm/moe-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr);
    std::atexit([] { std::filesystem::remove_all(folder()); });
    return name;
  }();
  return path;
}

inline std::filesystem::path write_file(const std::string& name, std::string_view bytes) {
  const std::filesystem::path path = folder() / name;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  require(out.good());
  return path;
}

}  // namespace moe::fuzz
