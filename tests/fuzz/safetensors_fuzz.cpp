// libFuzzer target: opens the input as a safetensors file, which is accepted or refused with
// UserError. Tensors of an accepted file must cover it exactly, and be equal after writing and
// reading them again.
//
// If the first byte is even, the rest is the file. If it is odd, the rest up to the first zero byte
// is the header and the remainder the data; the target inserts the length of the header, which
// mutations rarely match.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/io/safetensors.h"

namespace {

using moe::io::SafetensorsFile;

std::string file_of(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (size == 0 || text[0] % 2 == 0) {
    return size == 0 ? text : text.substr(1);
  }
  const size_t zero = std::min(text.find('\0', 1), size);
  const uint64_t length = zero - 1;
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += text.substr(1, length);
  return zero < size ? file + text.substr(zero + 1) : file;
}

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void check_tiling(const SafetensorsFile& file) {
  const auto whole = file.file().bytes();
  const std::byte* at = whole.data() + whole.size();
  for (auto tensor = file.tensors().rbegin(); tensor != file.tensors().rend(); ++tensor) {
    const auto bytes = file.bytes(tensor->name);
    require(bytes.size() == static_cast<size_t>(tensor->bytes()));
    require(bytes.data() + bytes.size() == at);
    at = bytes.data();
  }
  require(at >= whole.data() + 8);
}

void check_copy(const SafetensorsFile& file, const std::string& path) {
  moe::io::SafetensorsWriter writer(path, file.tensors());
  for (const auto& tensor : file.tensors()) {
    writer.copy(file, tensor.name);
  }
  writer.finish();
  const SafetensorsFile copy(path);
  require(copy.tensors().size() == file.tensors().size());
  for (const auto& tensor : file.tensors()) {
    const auto a = file.bytes(tensor.name), b = copy.bytes(tensor.name);
    require(a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin()));
  }
}

std::string memory_file(int* descriptor) {
  *descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  require(*descriptor >= 0);
  return "/proc/self/fd/" + std::to_string(*descriptor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes = file_of(data, size);
  int input = -1, output = -1;
  const std::string input_path = memory_file(&input), output_path = memory_file(&output);
  require(::write(input, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  try {
    const SafetensorsFile file(input_path);
    check_tiling(file);
    check_copy(file, output_path);
  } catch (const moe::UserError& error) {
    require(std::string(error.what()).starts_with(input_path));  // it names the file
  }
  ::close(input);
  ::close(output);
  return 0;
}
