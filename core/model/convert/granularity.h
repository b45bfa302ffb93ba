#pragma once
// Finer experts (He et al. 2024, virtual groups): a feed-forward is cut into G slices of its
// intermediate dimensions, each an expert. The slices of one feed-forward are a group; together
// they compute it (core/model/README.md, "Finer experts").

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/io/checkpoint.h"
#include "core/model/config/config.h"

namespace moe::model {

// UserError: parts that a feed-forward of `width` does not have, or more than `most_experts` slices
// of all `experts`.
void check_granularity(int64_t granularity, int64_t experts, int64_t most_experts, int64_t width);

// Overload of route::preserves_function() for a mixture whose experts may be slices: routing that
// sends a token to a slice without the others of its group does not keep the function.
route::FunctionPreservation preserves_function(const MoeConfig& moe, double gate_scale);

// A matrix of one expert where its parent has it.
struct ExpertMatrix {
  io::TensorInfo info;                        // as it is written
  const io::SafetensorsFile* file = nullptr;  // the parent's
  std::span<const std::byte> bytes;  // the parent's matrix, from the expert's first value on
  io::DType from = io::DType::kF32;
  int64_t row_step = 0;  // values of the parent from one row to the next
  float factor = 1;      // of every value
};

// Slice `slice` of a feed-forward that is cut into `granularity`: of matrix `name` of a dense
// folder its rows, or the columns of a down projection, times `granularity` then. `info` has the
// parent's name and type.
ExpertMatrix slice_of(const io::Checkpoint& parent, const std::string& name, int64_t slice,
                      int64_t granularity);

// The numbers from `begin` on, row by row, in f32. Returns the mapped bytes from the first to the
// last of them, which the caller may drop.
std::span<const std::byte> read_values(const ExpertMatrix& matrix, int64_t begin,
                                       std::span<float> values);

// Sends the matrix to `writer` through a block of at most 8 MiB, or as it is mapped where nothing
// changes. UserError: a product with the factor that F16 cannot hold.
void write_matrix(io::SafetensorsWriter& writer, const ExpertMatrix& matrix);

}  // namespace moe::model
