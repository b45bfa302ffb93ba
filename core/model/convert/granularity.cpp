#include "core/model/convert/granularity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "core/model/convert/dtype_conversion.h"

namespace moe::model {
namespace {

constexpr int64_t kCutValues = int64_t{1} << 20;
constexpr float kLargestF16 = 65504;

bool lies_whole(const ExpertMatrix& matrix) { return matrix.row_step == matrix.info.shape[1]; }

// A weight that came in finite leaves so. What bf16 and f32 cannot hold is no weight of a model.
void check_range(const ExpertMatrix& matrix, std::span<const float> values) {
  const bool is_beyond = matrix.info.dtype == io::DType::kF16 && matrix.factor != 1 &&
                         std::any_of(values.begin(), values.end(), [&](float value) {
                           return std::fabs(value) > kLargestF16 && std::isfinite(value);
                         });
  if (is_beyond) {
    throw UserError("{}: {:g} times a weight of it is beyond fp16; give --dtype bf16 or fp32",
                    matrix.info.name, matrix.factor);
  }
}

}  // namespace

void check_granularity(int64_t granularity, int64_t experts, int64_t most_experts, int64_t width) {
  if (granularity < 1 || granularity > width || width % granularity != 0) {
    throw UserError(
        "--granularity {}: the feed-forward is {} wide and cannot be cut into so many equal parts; "
        "give a divisor of {}",
        granularity, width, width);
  }
  if (experts < 1 || experts > most_experts / granularity) {
    throw UserError("--experts {} with --granularity {}: a layer has 1 to {} experts in all",
                    experts, granularity, most_experts);
  }
}

route::FunctionPreservation preserves_function(const MoeConfig& moe, double gate_scale) {
  const route::RouterSettings& router = moe.router;
  const route::FunctionPreservation whole = route::preserves_function(router, gate_scale);
  const bool may_keep = route::weights_sum_to_one(router) && gate_scale == 1.0;
  if (moe.granularity == 1 || !may_keep) {
    return whole;
  }
  if (router.fr) {
    return {false, fmt::format("not preserved: +fr gives a token one of the {} slices of another "
                               "feed-forward, without the others",
                               moe.granularity)};
  }
  if (!router.capacity_factor) {
    return whole;
  }
  if (router.ir) {
    return {false,
            fmt::format("not preserved for a token that capacity drops: +ir gives it one of the {} "
                        "slices of a feed-forward, without the others (cf=inf drops none)",
                        moe.granularity)};
  }
  return {false,
          "not preserved for a token that capacity drops from all its experts: it passes by the "
          "residual only (cf=inf serves every token)"};
}

ExpertMatrix slice_of(const io::Checkpoint& parent, const std::string& name, int64_t slice,
                      int64_t granularity) {
  ExpertMatrix matrix;
  matrix.info = parent.info(name);
  matrix.file = &parent.file_of(name);
  matrix.from = matrix.info.dtype;
  const bool is_down = name.ends_with("down_proj.weight");
  int64_t& cut = matrix.info.shape.at(is_down ? 1 : 0);
  MOE_CHECK(matrix.info.shape.size() == 2 && cut % granularity == 0 && slice < granularity,
            "slice {} of {} of {}", slice, granularity, name);
  matrix.row_step = matrix.info.shape[1];
  cut /= granularity;
  matrix.factor = is_down ? static_cast<float>(granularity) : 1;
  const int64_t first = slice * cut * (is_down ? 1 : matrix.row_step);
  matrix.bytes = parent.bytes(name).subspan(static_cast<size_t>(first) *
                                            static_cast<size_t>(io::dtype_bytes(matrix.from)));
  return matrix;
}

std::span<const std::byte> read_values(const ExpertMatrix& matrix, int64_t begin,
                                       std::span<float> values) {
  const auto step = static_cast<size_t>(io::dtype_bytes(matrix.from));
  const bool is_whole = lies_whole(matrix);
  const int64_t columns = is_whole ? matrix.info.elements() : matrix.info.shape[1];
  const auto place_of = [&](int64_t index) {  // in the parent, of value `index`
    return static_cast<size_t>(index / columns * matrix.row_step + index % columns) * step;
  };
  const auto end = begin + static_cast<int64_t>(values.size());
  for (int64_t index = begin; index < end;) {
    const int64_t count = std::min(end - index, columns - index % columns);
    const auto part =
        values.subspan(static_cast<size_t>(index - begin), static_cast<size_t>(count));
    convert(matrix.bytes.subspan(place_of(index), part.size() * step), matrix.from,
            std::as_writable_bytes(part), io::DType::kF32);
    index += count;
  }
  if (matrix.factor != 1) {
    std::transform(values.begin(), values.end(), values.begin(),
                   [&](float value) { return value * matrix.factor; });
  }
  const size_t first = place_of(begin);
  return matrix.bytes.subspan(first, values.empty() ? 0 : place_of(end - 1) + step - first);
}

void write_matrix(io::SafetensorsWriter& writer, const ExpertMatrix& matrix) {
  const int64_t elements = matrix.info.elements();
  if (matrix.info.dtype == matrix.from && matrix.factor == 1 && lies_whole(matrix)) {
    const auto bytes = matrix.bytes.first(static_cast<size_t>(matrix.info.bytes()));
    writer.write(bytes);
    matrix.file->file().drop(bytes);
    return;
  }
  std::vector<float> values(static_cast<size_t>(std::min(elements, kCutValues)));
  std::vector<std::byte> out(values.size() *
                             static_cast<size_t>(io::dtype_bytes(matrix.info.dtype)));
  for (int64_t begin = 0; begin < elements; begin += kCutValues) {
    const auto block =
        std::span(values).first(static_cast<size_t>(std::min(elements - begin, kCutValues)));
    const auto read = read_values(matrix, begin, block);
    check_range(matrix, block);
    const auto written = std::span(out).first(
        block.size() * static_cast<size_t>(io::dtype_bytes(matrix.info.dtype)));
    convert(std::as_bytes(block), io::DType::kF32, written, matrix.info.dtype);
    writer.write(written);
    matrix.file->file().drop(read);
  }
}

}  // namespace moe::model
