#pragma once
// Tensors of a new mixture: copies, slices and varied copies of the feed-forwards of dense parents,
// means over parents, random numbers and constants. Weights are read and written in blocks.

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

// Disk space for the headers, config and tokenizer of an output folder.
inline constexpr uint64_t kSpaceMargin = uint64_t{1} << 20;

// --expert FOLDER[:N]: N experts of each MoE layer are copies of the feed-forward of FOLDER in that
// layer (Branch-Train-MiX, Sukhbaatar et al. 2024; mergekit).
struct ExpertParent {
  std::filesystem::path folder;
  int64_t copies = 1;
};

// Parses FOLDER[:N]. An existing path is a folder even if it ends in ":N". Throws UserError if N is
// not in 1..65536.
ExpertParent parse_expert_parent(const std::string& text);
// Returns the number of experts that the parents provide, before granularity.
int64_t count_copies(const std::vector<ExpertParent>& parents);

// Dense parent of each expert. Each folder is opened, checked and mapped once.
class ExpertParents {
 public:
  // Every copy of `parents` provides `granularity` experts. Without parents, `base` provides all
  // experts. `base` must outlive this object. Throws UserError if a parent is not a dense folder or
  // differs from `base` in sizes, RoPE, rms_norm_eps or sliding window.
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

// The functions that return a TensorSource describe an output tensor with the name, shape and dtype
// of `info`. Values are computed when it is written. Checkpoints must outlive the result.

// Returns the mean over `parents` of their tensors `info.name`. Sums are f64; the mean is rounded
// to f32, then to `info.dtype`.
io::TensorSource mean_tensor(const io::TensorInfo& info,
                             std::shared_ptr<const ExpertParents> parents);

// Returns the tensor of `parent`, in which rows begin .. end - 1 are the mean of rows 0 .. begin
// - 1. `parent` may have fewer than `end` rows.
io::TensorSource extended_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                                 int64_t begin, int64_t end);

// Returns a copy of tensor `source` of `parent`, converted to info.dtype.
io::TensorSource copied_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                               const std::string& source);

// Checks weights for NaN and infinity. Reads each tensor once.
class FiniteWeights {
 public:
  // Throws UserError that names the tensor.
  void check(const io::Checkpoint& parent, const std::string& name);

 private:
  std::set<std::pair<const io::SafetensorsFile*, std::string>> checked_;
};

// Throws UserError if `granularity` does not divide `width` or if `granularity` times `experts`
// exceeds `max_experts`. With granularity G each feed-forward is cut along its intermediate
// dimensions into a group of G experts (core/upcycle/README.md; virtual groups of He et al. 2024).
void check_granularity(int64_t granularity, int64_t experts, int64_t max_experts, int64_t width);

// Returns the config of a mixture with the sizes of `dense`. `layers` is the value of --layers;
// `experts` per layer and `router` are those before granularity.
MoeConfig mixture_config(const ModelConfig& dense, const std::string& layers, int64_t experts,
                         int64_t granularity, const route::RouterSettings& router);

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

// Returns the values of `matrix` with the variation. Random values depend on `seed` and
// `info.name`, such as model.layers.3.mlp.experts.7.up_proj.weight. Writing the tensor throws
// UserError if a product with the factor exceeds the range of F16.
io::TensorSource matrix_tensor(const io::TensorInfo& info, ExpertMatrix matrix,
                               const Variation& variation = {}, uint64_t seed = 0);

// Returns N(0, std^2) in f32, rounded to info.dtype. Values depend only on `seed` and `stream`: the
// name of the tensor, or a common name for tensors that must be equal.
io::TensorSource normal_tensor(const io::TensorInfo& info, double std, uint64_t seed,
                               const std::string& stream);

io::TensorSource constant_tensor(const io::TensorInfo& info, float value);

}  // namespace moe::model
