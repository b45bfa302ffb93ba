#pragma once
// Sources of the weights of a new mixture, streamed in blocks: feed-forwards of dense parents,
// their slices and varied copies, means over parents, random numbers and constants.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/io/safetensors.h"
#include "core/model/config/config.h"

namespace moe::model {

// --expert FOLDER[:N]: N experts of each MoE layer are copies of the feed-forward of FOLDER in that
// layer (Branch-Train-MiX, Sukhbaatar et al. 2024; mergekit).
struct ExpertParent {
  std::filesystem::path folder;
  int64_t copies = 1;
};

// An existing path is a folder even if it ends in ":N". Throws UserError if N is not in 1..65536.
ExpertParent parse_expert_parent(const std::string& text);
// Returns the number of experts that the parents provide, before granularity.
int64_t count_copies(const std::vector<ExpertParent>& parents);

// Dense parent of each expert. Each folder is opened, checked and mapped once.
class ExpertParents {
 public:
  // Every copy of `parents` provides `granularity` experts; without parents `base`, which must
  // outlive this object, provides all. Throws UserError if a parent is no dense folder like `base`.
  ExpertParents(const io::Checkpoint& base, const ModelConfig& config,
                const std::vector<ExpertParent>& parents, int64_t granularity = 1);

  const io::Checkpoint& parent(int64_t expert) const {
    return parents_.empty() ? *base_ : *parents_.at(expert);
  }
  // Returns each parent folder once, without `base` unless it is a parent.
  const std::vector<std::unique_ptr<io::Checkpoint>>& checkpoints() const { return opened_; }
  // Returns the indices of the experts that come from `parent`, one of checkpoints().
  std::vector<int64_t> experts(const io::Checkpoint& parent) const;

 private:
  std::vector<std::unique_ptr<io::Checkpoint>> opened_;
  std::vector<const io::Checkpoint*> parents_;  // of each expert
  const io::Checkpoint* base_;
};

// Writes the mean over `parents` of the tensor `info.name`. Sums are f64; the mean is rounded to
// f32, then to `info.dtype`.
void write_mean(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                const std::vector<std::unique_ptr<io::Checkpoint>>& parents);

// Returns tensor `info`: that of `parent`, which must outlive it, with the mean of rows 0 .. begin
// - 1 (as by write_mean()) in rows begin .. end - 1, which `parent` may lack.
io::TensorSource extended_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                                 int64_t begin, int64_t end);

// Writes tensor `name` of `parent`, converted to info.dtype.
void write_converted(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                     const io::Checkpoint& parent, const std::string& name);

// Check of weights for NaN and infinity (UserError). Reads each tensor once.
class FiniteWeights {
 public:
  void check(const io::Checkpoint& parent, const std::string& name);

 private:
  std::set<std::pair<const io::SafetensorsFile*, std::string>> checked_;
};

// Throws UserError if `granularity` does not divide `width` or if `granularity` times `experts`
// exceeds `max_experts`. With granularity G each feed-forward is cut along its intermediate
// dimensions into a group of G experts (core/upcycle/README.md; virtual groups of He et al. 2024).
void check_granularity(int64_t granularity, int64_t experts, int64_t max_experts, int64_t width);

// Overload of route::preserves_function() for mixtures with granularity. A router that can send a
// token to some slices of a group and not to others does not preserve the function.
route::FunctionPreservation preserves_function(const MoeConfig& moe, double gate_scale);

// Matrix of one expert as a view of its parent's mapped file.
struct ExpertMatrix {
  io::TensorInfo info;                        // name, shape and dtype of the output
  const io::SafetensorsFile* file = nullptr;  // of the parent
  std::span<const std::byte> bytes;  // the parent's matrix from the expert's first value on
  io::DType from = io::DType::kF32;  // dtype of the parent's matrix
  int64_t row_step = 0;              // stride between rows, in values
  float factor = 1;                  // every value is multiplied by it
};

// Returns slice `slice` of `granularity` slices of matrix `name` of `parent`, with its name and
// dtype: rows of gate_proj and up_proj, or columns of down_proj with factor `granularity`.
ExpertMatrix expert_slice(const io::Checkpoint& parent, const std::string& name, int64_t slice,
                          int64_t granularity);

// Fills `values` from row-major index `begin` of the matrix on, in f32 times the factor. Returns
// the mapped bytes that were read, which the caller may drop (MappedFile::drop()).
std::span<const std::byte> read_values(const ExpertMatrix& matrix, int64_t begin,
                                       std::span<float> values);

// Writes the matrix. Throws UserError if a product with the factor exceeds the range of F16.
void write_matrix(io::SafetensorsWriter& writer, const ExpertMatrix& matrix);

// Perturbation of the experts: equal copies diverge slowly in training. The mixture no longer
// computes the parent's function.
struct Variation {
  enum class Kind {
    kNone,
    // Drop-Upcycling (Nakamura et al. 2025, section 3): redraws floor(share * F) of the F
    // intermediate dimensions of an expert from N(mean, std^2), with mean and std of the replaced
    // values of each matrix. gate, up and down use the same dimensions unless `separate`.
    kDrop,
    kNoise,  // adds N(0, (share * std of the matrix)^2) to every weight
  };
  Kind kind = Kind::kNone;
  double share = 0;  // of dimensions (kDrop), or of the standard deviation (kNoise)
  bool separate = false;

  explicit operator bool() const { return kind != Kind::kNone; }
};

// Parses "none", "drop:0.5", "drop:0.5,separate" or "noise:0.01". Throws UserError for other texts,
// a share of dimensions outside (0, 1), or noise that is not positive.
Variation parse_variation(const std::string& text);
std::string to_string(const Variation& variation);
// Throws UserError if kDrop would redraw none of the `width` dimensions of an expert.
void check_variation(const Variation& variation, int64_t width);

// Writes the varied matrix. Reads the parent's matrix twice, first for its moments. Random values
// depend on `seed` and `matrix.info.name`, such as model.layers.3.mlp.experts.7.up_proj.weight.
void write_varied(io::SafetensorsWriter& writer, const ExpertMatrix& matrix,
                  const Variation& variation, uint64_t seed);

// Writes N(0, std^2) as f32, rounded to the dtype of `info`. Values depend only on `seed` and
// `stream`: the name of the tensor, or a common name for tensors that must be equal.
void write_normal(io::SafetensorsWriter& writer, const io::TensorInfo& info, double std,
                  uint64_t seed, const std::string& stream);

io::TensorSource constant_tensor(const io::TensorInfo& info, float value);

}  // namespace moe::model
