#include "core/distributed/own_work.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/distributed/roll_call.h"

namespace moe::distributed {
namespace {

class Telling : public LongOperation {
 public:
  Telling(RollCall& roll, double pause_s)
      : roll_(roll), pause_(pause_s), thread_([this] { tell(); }) {}

  ~Telling() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  // Work that is short is not told.
  void tell() {
    std::unique_lock lock(mutex_);
    try {
      while (!changed_.wait_for(lock, pause_, [this] { return is_over_; })) {
        roll_.tell_own_work();
      }
    } catch (
        const std::exception&) {  // the store is gone: the next operation finds out who with it
    }
  }

  RollCall& roll_;
  Seconds pause_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<LongOperation> tell_of_own_work(RollCall& roll, double pause_s) {
  return std::make_unique<Telling>(roll, pause_s);
}

}  // namespace moe::distributed
