#pragma once
// A checkpoint of a run (core/io/formats.md): a model folder, and the training state that makes a
// resumed run equal to an uninterrupted one bit for bit. No random state is saved: the order of the
// data and the rounding of bf16 moments are functions of the seed and the step.

#include <filesystem>
#include <functional>
#include <future>
#include <vector>

#include "core/data/batches.h"
#include "core/distributed/comm.h"
#include "core/model/llama/llama.h"
#include "core/train/step/optimizer.h"

namespace moe::train {

// State of a run between two steps.
struct TrainState {
  int64_t step = 0;  // number of steps done
  int64_t total_tokens = 0;
  int64_t skipped_steps = 0, skipped_outliers = 0;  // skipped_steps includes skipped_outliers
  int64_t steps_without_targets = 0;
  OutlierWindow outliers;    // empty if outliers are not skipped
  double lambda = 0;         // ReLU: of the next step
  int64_t group_tokens = 0;  // tokens of a full micro-batch, over which capacity is computed
  data::Cursor cursor;
  bool operator==(const TrainState&) const = default;
};

// Returns the path of state.json in `checkpoint`.
std::filesystem::path train_state_file(const std::filesystem::path& checkpoint);

using AddFiles = std::function<void(const std::filesystem::path& folder)>;

// Copy of this process's part of a checkpoint, which is written while training continues.
class Snapshot {
 public:
  // `optimizer` holds the slices that this process of model.layout() updates.
  Snapshot(const model::Llama& model, const AdamW& optimizer, const model::RoutingOptions& routing,
           const model::LossCoefficients& coefficients, const TrainState& state);

  // Writes the folder OUT atomically, replacing an existing one. `parent` provides the tokenizer
  // files and the other keys of the config. `add_files` adds files on rank 0 before the folder
  // appears. Collective over `world`: each process writes the parts that it updates, so that the
  // bytes do not depend on the number of processes. Throws UserError if the disk is full.
  void write(const io::Checkpoint& parent, const std::filesystem::path& out,
             distributed::World& world, const AddFiles& add_files = {}) const;

 private:
  model::Llama model_;
  std::vector<Slice> slices_;
  model::RoutingOptions routing_;
  model::LossCoefficients coefficients_;
  TrainState state_;
};

// Returns the state of a checkpoint. Throws UserError if its state.json is invalid.
TrainState read_train_state(const std::filesystem::path& folder);

// Loads a checkpoint into model and optimizer, which must have the same config; each process loads
// the parts that it holds and updates. Throws UserError, and changes nothing, if the folder has no
// training state or its tensors do not fit model and optimizer.
TrainState restore(const std::filesystem::path& folder, model::Llama& model, AdamW& optimizer);

// Writes checkpoints in the background, one at a time. With several processes, all of them write
// together and wait for each other.
class Saver {
 public:
  // `parent` and `world` outlive the saver. `on_saved` is called by save() or wait(). `on_saving`
  // is called before (true) and after (false) a checkpoint is written, on the thread that writes.
  Saver(const io::Checkpoint& parent, distributed::World& world,
        std::function<void(const std::filesystem::path&)> on_saved,
        std::function<void(bool)> on_saving);
  ~Saver();  // blocks until the checkpoint is written; ignores its exception

  // Blocks until the previous checkpoint is written, then begins to write `snapshot` as OUT
  // (Snapshot::write()). Throws the exception of the previous checkpoint.
  void save(Snapshot snapshot, const std::filesystem::path& out, AddFiles add_files = {});
  // Blocks until no checkpoint is being written. Throws its exception.
  void wait();
  bool is_writing() const;

 private:
  const io::Checkpoint& parent_;
  distributed::World& world_;
  std::function<void(const std::filesystem::path&)> on_saved_;
  std::function<void(bool)> on_saving_;
  std::filesystem::path out_;
  std::future<void> writing_;
};

}  // namespace moe::train
