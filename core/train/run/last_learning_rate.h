#pragma once
// The learning rate of the last step that a model folder was trained with, where moe knows it: a
// run that goes on far above it unlearns (core/train/plan/known_failures.h).

#include <filesystem>
#include <optional>

namespace moe::train {

// Of a checkpoint (its history.json), of RUN/final (the last line of RUN/metrics.jsonl), or of a
// mixture that was made of either (its upcycle.json). Nothing where none of them says it, and where
// the file is damaged: what is said for people alone stops no run.
std::optional<double> last_learning_rate(const std::filesystem::path& model);

}  // namespace moe::train
