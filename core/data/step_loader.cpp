#include "core/data/step_loader.h"

#include "core/base/error.h"

namespace moe::data {

StepLoader::StepLoader(BatchStream stream, int64_t batches, size_t steps_ahead)
    : stream_(std::move(stream)), batches_(batches), steps_ahead_(steps_ahead) {
  MOE_CHECK(batches > 0 && steps_ahead > 0);
  thread_ = std::thread([this] { work(); });
}

StepLoader::~StepLoader() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

StepBatches StepLoader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || error_ != nullptr; });
  if (ready_.empty()) {
    std::rethrow_exception(error_);
  }
  StepBatches step = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return step;
}

void StepLoader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stops_ || ready_.size() < steps_ahead_; });
    if (stops_) {
      return;
    }
    lock.unlock();
    StepBatches step;
    std::exception_ptr error;
    try {
      for (int64_t batch = 0; batch < batches_; ++batch) {
        step.batches.push_back(stream_.next());
      }
      step.cursor = stream_.cursor();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      error_ = error;
      changed_.notify_all();
      return;
    }
    ready_.push_back(std::move(step));
    changed_.notify_all();
  }
}

}  // namespace moe::data
