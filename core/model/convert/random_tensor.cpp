#include "core/model/convert/random_tensor.h"

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "core/base/random.h"
#include "core/model/convert/dtype_conversion.h"

namespace moe::model {
namespace {

constexpr int64_t kDrawnValues =
    int64_t{1} << 16;  // 256 KiB of F32 stay in the cache between drawing and rounding

// Sends `info` in blocks that `fill` makes; at most 512 KiB of memory.
void write_blocks(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                  const std::function<void(std::span<float>)>& fill) {
  std::vector<float> values(static_cast<size_t>(std::min(info.elements(), kDrawnValues)));
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(io::dtype_bytes(info.dtype)));
  for (int64_t left = info.elements(); left > 0; left -= kDrawnValues) {
    const auto count = static_cast<size_t>(std::min(left, kDrawnValues));
    const auto block = std::span(values).first(count);
    fill(block);
    const auto out =
        std::span(bytes).first(count * static_cast<size_t>(io::dtype_bytes(info.dtype)));
    convert(std::as_bytes(block), io::DType::kF32, out, info.dtype);
    writer.write(out);
  }
}

}  // namespace

void write_normal(io::SafetensorsWriter& writer, const io::TensorInfo& info, double std,
                  uint64_t seed, const std::string& stream) {
  Random random(seed, stream);
  write_blocks(writer, info, [&](std::span<float> block) { random.fill_normal(block, std); });
}

void write_constant(io::SafetensorsWriter& writer, const io::TensorInfo& info, float value) {
  write_blocks(writer, info,
               [&](std::span<float> block) { std::fill(block.begin(), block.end(), value); });
}

}  // namespace moe::model
