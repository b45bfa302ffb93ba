#pragma once
// Tensors of a folder form on their way to files, written by one process or by all ranks of a run;
// the bytes are the same.

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/convert/shared_folder.h"

namespace moe::model {

// A tensor of a folder, as a file stores it, and where its numbers are: in f32, or undefined where
// another process holds them.
struct FolderTensor {
  io::TensorInfo info;
  at::Tensor values;
  // Where every rank holds a part: `values` are flat, the tensor's elements from here on; all ranks
  // together have each once.
  std::optional<int64_t> begin = {};
};

at::ScalarType scalar_type(io::DType dtype);  // of weights: F32, F16 or BF16

// All of them here, ready for io::write_tensors.
std::vector<io::TensorSource> sources_of(const std::vector<FolderTensor>& tensors);

// Into the files that io::write_tensors would make: rank 0 makes them with their headers, every
// rank writes what it alone holds and its part of what many hold, by bytes. A collective; all list
// the same tensors in the same order. UserError on all ranks when one fails: disk full, a rank
// without the others' disk.
void write_tensors(const SharedFolder& folder, const std::vector<FolderTensor>& tensors,
                   uint64_t shard_bytes);

}  // namespace moe::model
