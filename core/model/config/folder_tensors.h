#pragma once
// Tensors of a checkpoint that is written: conversion between F32, BF16 and F16, and an output
// folder that all ranks of a run write together, with bytes that do not depend on their number.
// Rank 0 stages and commits it (core/io/staged_folder.h), and a failure on one rank throws on all.

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/io/checkpoint.h"
#include "core/io/safetensors.h"
#include "core/io/staged_folder.h"

namespace moe::model {

at::ScalarType scalar_type(io::DType dtype);  // of weights: F32, F16 or BF16

// Converts n values of type `from` in `in` to n values of type `to` in `out`. Both may be
// unaligned. Rounds to nearest, ties to even; overflow gives infinity.
void convert(std::span<const std::byte> in, io::DType from, std::span<std::byte> out, io::DType to);

// Returns the index of the first value of type `dtype` in `bytes` that is NaN or infinite.
std::optional<size_t> find_non_finite(std::span<const std::byte> bytes, io::DType dtype);

// Output folder of all ranks. All functions except path() and ranks() are collectives.
class SharedFolder {
 public:
  // Throws UserError on all ranks if StagedFolder does, or if a rank does not see the folder.
  SharedFolder(const std::filesystem::path& out, bool force, distributed::Comm& ranks);

  const std::filesystem::path& path() const { return path_; }  // the staged folder
  distributed::Comm& ranks() const { return ranks_; }
  // Run `body`, which calls no collective, on rank 0 or on all ranks. All ranks throw if one does.
  void run_on_first_rank(const std::function<void()>& body) const;
  void run_on_all_ranks(const std::function<void()>& body) const;
  void commit();  // waits until all ranks have written

 private:
  distributed::Comm& ranks_;
  std::unique_ptr<io::StagedFolder> staged_;  // on rank 0
  std::filesystem::path path_;
};

// Waits for `mark`, a file made by rank 0 in `folder`, which network file systems may show late.
// Throws UserError after `seconds`.
void await_mark(const std::filesystem::path& folder, const std::string& mark, int64_t rank,
                double seconds);

// A tensor of a checkpoint as it is stored, and its values.
struct FolderTensor {
  io::TensorInfo info;
  at::Tensor values;  // f32; undefined if another process holds them
  // Set if each rank holds a part: `values` is flat and starts at this element of the tensor.
  std::optional<int64_t> begin = {};
};

// Writes the files of io::write_tensors(). A collective, with equal lists of TensorInfo: every rank
// writes the tensors and parts that it holds. Throws UserError on all ranks if one fails.
void write_tensors(const SharedFolder& folder, const std::vector<FolderTensor>& tensors,
                   uint64_t shard_bytes);

}  // namespace moe::model
