#pragma once
// Writes checkpoints beside training: the run hands over a copy and goes on. One at a time: a
// run that saves faster than its disk writes waits for it. Several processes write theirs together,
// and wait for each other.

#include <filesystem>
#include <functional>
#include <future>

#include "core/train/run/snapshot.h"

namespace moe::train {

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
