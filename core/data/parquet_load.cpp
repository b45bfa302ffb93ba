// Loads libmoe_parquet.so, which stands beside the binary, when the first Parquet file is met.

#include <dlfcn.h>

#include "core/base/error.h"
#include "core/data/parquet.h"

namespace moe::data {

std::unique_ptr<std::streambuf> open_parquet(const std::filesystem::path& file) {
  const auto binary = std::filesystem::read_symlink("/proc/self/exe");
  const auto library = (binary.parent_path() / "libmoe_parquet.so").string();
  // Never closed: buffers of its making may live until the end.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle == nullptr ? nullptr : ::dlsym(handle, "moe_open_parquet");
  if (symbol == nullptr) {
    throw UserError("{}: a Parquet file, but its reader cannot be loaded ({}); build moe again",
                    file.string(), ::dlerror());
  }
  const auto open = reinterpret_cast<decltype(&moe_open_parquet)>(symbol);
  return std::unique_ptr<std::streambuf>(open(file.c_str()));
}

}  // namespace moe::data
