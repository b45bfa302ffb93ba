#pragma once
// Several parents: the feed-forwards of a mixture's experts come from folders of their own, as in
// Branch-Train-MiX (Sukhbaatar et al. 2024) and mergekit; attention, norms, embeddings and the
// feed-forwards of dense layers from the folder that is upcycled, or from the mean of the parents.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/config/config.h"

namespace moe::model {

// --expert FOLDER[:N]: N experts of each MoE layer are copies of FOLDER's feed-forward there.
struct ExpertParent {
  std::filesystem::path folder;
  int64_t copies = 1;
};

// A folder whose name ends like a number of copies is that folder where it is there. UserError: a
// number of copies that is not at least 1.
ExpertParent parse_expert_parent(const std::string& text);
int64_t count_copies(const std::vector<ExpertParent>& parents);

// The parents' folders, opened and checked, each mapped once.
class ExpertParents {
 public:
  // UserError naming both folders where a parent is a mixture or has another shape or vocabulary
  // than `base`, which must outlive this. Without `parents` every expert is a copy of `base`. Each
  // copy of a feed-forward is `granularity` experts.
  ExpertParents(const io::Checkpoint& base, const ModelConfig& config,
                const std::vector<ExpertParent>& parents, int64_t granularity = 1);

  const io::Checkpoint& of_expert(int64_t expert) const {
    return of_expert_.empty() ? *base_ : *of_expert_.at(static_cast<size_t>(expert));
  }
  // Each folder once, however many copies it has; empty where none was given.
  const std::vector<std::unique_ptr<io::Checkpoint>>& folders() const { return opened_; }
  // The experts that are copies, or slices, of a folder's feed-forwards.
  std::vector<int64_t> experts_of(const io::Checkpoint& parent) const;

 private:
  std::vector<std::unique_ptr<io::Checkpoint>> opened_;
  std::vector<const io::Checkpoint*> of_expert_;
  const io::Checkpoint* base_;
};

// Sends the mean of the parents' tensors `info.name`, each parent counted once, summed in f64 and
// rounded to `info.dtype` once; holds a block of each.
void write_mean(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                const std::vector<std::unique_ptr<io::Checkpoint>>& parents);

}  // namespace moe::model
