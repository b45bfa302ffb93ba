#include "core/train/run/saver.h"

namespace moe::train {

Saver::Saver(const io::Checkpoint& parent, dist::World& world,
             std::function<void(const std::filesystem::path&)> on_saved)
    : parent_(parent), world_(world), on_saved_(std::move(on_saved)) {}

Saver::~Saver() {
  if (writing_.valid()) {
    writing_.wait();
  }
}

void Saver::save(Snapshot snapshot, const std::filesystem::path& out) {
  wait();
  out_ = out;
  std::filesystem::create_directories(out.parent_path());
  if (world_.layout.processes > 1) {
    snapshot.write(parent_, out, world_);
    on_saved_(out);
    return;
  }
  writing_ = std::async(std::launch::async, [this, kept = std::move(snapshot), out] {
    kept.write(parent_, out, world_);
  });
}

void Saver::wait() {
  if (!writing_.valid()) {
    return;
  }
  writing_.get();  // throws what the writer threw
  on_saved_(out_);
}

}  // namespace moe::train
