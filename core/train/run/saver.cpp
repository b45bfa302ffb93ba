#include "core/train/run/saver.h"

#include <chrono>

namespace moe::train {

Saver::Saver(const io::Checkpoint& parent, distributed::World& world,
             std::function<void(const std::filesystem::path&)> on_saved,
             std::function<void(bool)> on_saving)
    : parent_(parent),
      world_(world),
      on_saved_(std::move(on_saved)),
      on_saving_(std::move(on_saving)) {}

Saver::~Saver() {
  if (writing_.valid()) {
    writing_.wait();
  }
}

void Saver::save(Snapshot snapshot, const std::filesystem::path& out, AddFiles add_files) {
  wait();
  out_ = out;
  std::filesystem::create_directories(out.parent_path());
  if (world_.layout.processes > 1) {
    write(snapshot, out, add_files);
    on_saved_(out);
    return;
  }
  writing_ =
      std::async(std::launch::async, [this, kept = std::move(snapshot), out,
                                      add = std::move(add_files)] { write(kept, out, add); });
}

void Saver::write(const Snapshot& snapshot, const std::filesystem::path& out,
                  const AddFiles& add_files) {
  on_saving_(true);
  try {
    snapshot.write(parent_, out, world_, add_files);
  } catch (...) {
    on_saving_(false);
    throw;
  }
  on_saving_(false);
}

void Saver::wait() {
  if (!writing_.valid()) {
    return;
  }
  writing_.get();  // throws what the writer threw
  on_saved_(out_);
}

bool Saver::is_writing() const {
  return writing_.valid() &&
         writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace moe::train
