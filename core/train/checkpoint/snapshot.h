#pragma once
// A checkpoint of a run: a model folder like any other, and beside it what going on bit for bit
// needs:
//
//   state.safetensors   weight.NAME [shape of NAME] f32, exp_avg.NAME and exp_avg_sq.NAME [the
//   same]
//                       f32 or bf16 as the run keeps them, updates.NAME [] f32, by the parameter
//                       names of model::Llama
//   state.json          step, tokens, lambda, window of outliers, place in the data
//   history.json        the run's log up to here (core/train/observe/metrics.h)
//   checksums.json      of every file, written last
//
// There is no random state: the order of the data, and the rounding of moments in bf16, follow from
// the seed and the step.

#include <filesystem>
#include <functional>
#include <future>
#include <vector>

#include "core/data/batches.h"
#include "core/distributed/world.h"
#include "core/model/llama/llama.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/updater.h"

namespace moe::train {

// Where a run stands between two steps.
struct Position {
  int64_t step = 0;  // steps done
  int64_t total_tokens = 0;
  int64_t skipped_steps = 0, skipped_outliers = 0;  // the former counts both kinds
  OutlierWindow outliers;                           // empty where none are looked for
  double lambda = 0;                                // ReLU: of the next step
  int64_t group_tokens = 0;  // of a full micro-batch: what capacity is counted over
  data::Cursor cursor;
  bool operator==(const Position&) const = default;
};

// Returns the name of the file of `checkpoint` that holds its Position.
std::filesystem::path position_file(const std::filesystem::path& checkpoint);

using AddFiles = std::function<void(const std::filesystem::path& folder)>;

// A copy of all that a checkpoint holds of this process, so that it can be written while training
// goes on.
class Snapshot {
 public:
  // `optimizer`: of the slices that this process of `layout` updates.
  Snapshot(const model::Llama& model, const AdamW& optimizer, const model::RoutingOptions& routing,
           const model::LossCoefficients& coefficients, const Position& position);

  // The folder OUT, whole or not at all; one that is there is replaced. `parent` gives the
  // tokenizer files and the config's other keys. UserError when the disk is full.
  //
  // `add_files` puts further files into the folder that it is given, on rank 0, before the folder
  // appears: what it has brought to the disk elsewhere is there whenever the checkpoint is.
  //
  // Every process of `world` calls it and writes what it updates, each tensor under its name and
  // expert in the whole model: the bytes do not tell how many processes there were.
  void write(const io::Checkpoint& parent, const std::filesystem::path& out,
             distributed::World& world, const AddFiles& add_files = {}) const;

 private:
  model::Llama model_;
  std::vector<Slice> state_;
  model::RoutingOptions routing_;
  model::LossCoefficients coefficients_;
  Position position_;
};

// Where the run of a checkpoint stood. UserError when the folder says it in no way of ours.
Position read_position(const std::filesystem::path& folder);

// Puts what `folder` holds into model and optimizer; both were made for the same config. UserError:
// the folder is a model folder without a state, or its state is of another model or keeps its
// moments in another type.
// Of a process of several: what it holds and updates, whoever wrote the folder.
Position restore(const std::filesystem::path& folder, model::Llama& model, AdamW& optimizer);

// Writes checkpoints beside training: the run hands over a copy and goes on. One at a time: a
// run that saves faster than its disk writes waits for it. Several processes write theirs together,
// and wait for each other.

class Saver {
 public:
  // `parent` and `world` outlive the saver. `on_saved` is called from save() or wait(), never from
  // another thread. `on_saving` is called with true before a checkpoint is written and with false
  // after it, from the thread that writes.
  Saver(const io::Checkpoint& parent, distributed::World& world,
        std::function<void(const std::filesystem::path&)> on_saved,
        std::function<void(bool)> on_saving);
  ~Saver();  // waits; a failure that nobody asked for is lost with it
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Waits for the one before, then begins to write `snapshot` as OUT, with `add_files` as
  // Snapshot::write has it, which may run on another thread. Throws what the one before failed
  // with.
  void save(Snapshot snapshot, const std::filesystem::path& out, AddFiles add_files = {});
  // Until nothing is being written. Throws what it failed with.
  void wait();
  bool is_writing() const;

 private:
  void write(const Snapshot& snapshot, const std::filesystem::path& out, const AddFiles& add_files);

  const io::Checkpoint& parent_;
  distributed::World& world_;
  std::function<void(const std::filesystem::path&)> on_saved_;
  std::function<void(bool)> on_saving_;
  std::filesystem::path out_;
  std::future<void> writing_;
};

}  // namespace moe::train
