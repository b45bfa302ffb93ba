// Conversion of weights between F32, F16 and BF16.

#include <vector>

#include "core/model/config/folder_tensors.h"
#include "core/upcycle/expert_sources.h"
#include "tests/support/catch.h"

namespace moe::model {
namespace {

TEST_CASE("convert() equals two conversions by way of F32, between all three types",
          "[model][convert]") {
  const std::vector<float> values = {0.0F, -1.5F, 3.14159F, 65504.0F, 1e-8F, -2.5e-5F, 7.0F};
  const std::vector<io::DType> types = {io::DType::kF32, io::DType::kBF16, io::DType::kF16};
  const auto size = [&](io::DType type) {
    return values.size() * static_cast<size_t>(io::dtype_bytes(type));
  };
  for (const auto from : types) {
    std::vector<std::byte> source(size(from));
    convert(std::as_bytes(std::span(values)), io::DType::kF32, source, from);
    for (const auto to : types) {
      std::vector<std::byte> direct(size(to)), wide(size(io::DType::kF32)), twice(size(to));
      convert(source, from, direct, to);
      convert(source, from, wide, io::DType::kF32);  // exact, so that two steps round once
      convert(wide, io::DType::kF32, twice, to);
      CHECK((direct == twice));
    }
  }
}

}  // namespace
}  // namespace moe::model
