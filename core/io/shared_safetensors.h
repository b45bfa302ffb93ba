#pragma once
// A safetensors file that several processes write at once: one makes it at its full length with its
// header, then each writes the bytes that it has. What nobody writes is zero.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/safetensors.h"

namespace moe::io {

// Header and length are on the disk when it returns, and where the file system can, the blocks are
// claimed: a disk too small shows here. UserError "disk full".
void create_safetensors(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors);

// Writes into a file that create_safetensors made. Processes that write different bytes need not
// know of each other. Nobody looks at the file before all have finished.
class SafetensorsPatch {
 public:
  // UserError: no such file (a machine that does not see the others' disk), not a whole one, not
  // writable.
  explicit SafetensorsPatch(const std::filesystem::path& path);

  const SafetensorsFile& file() const { return contents_; }
  // `bytes` at `begin` of the data of tensor `name`. MOE_CHECK: they lie within it.
  void write(const std::string& name, uint64_t begin, std::span<const std::byte> bytes);
  void finish();  // on the disk

 private:
  std::filesystem::path path_;
  SafetensorsFile contents_;
  Descriptor file_;
};

}  // namespace moe::io
