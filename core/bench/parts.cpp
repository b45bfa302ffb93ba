// A callback at each part's beginning and end keeps a stack of those that run: what a part takes is
// taken from the one that called it. LibTorch calls plain functions, so they find the record by a
// static pointer.

#include "core/bench/parts.h"

#include <ATen/record_function.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/bench/timing.h"

namespace moe::bench {

namespace {

class PartRecord {
 public:
  PartRecord() : thread_(std::this_thread::get_id()) {
    current() = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::USER_SCOPE}));
  }
  ~PartRecord() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  PartRecord(const PartRecord&) = delete;
  PartRecord& operator=(const PartRecord&) = delete;

  std::map<std::string, Part> parts() && { return std::move(parts_); }

 private:
  struct Running {
    Part* part;
    double begin_s, inside_s;  // of which parts that it called
  };

  static PartRecord*& current() {
    static PartRecord* recording = nullptr;
    return recording;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    PartRecord& own = *current();
    if (std::this_thread::get_id() == own.thread_) {
      Part& part = own.parts_[function.name()];
      ++part.calls;
      if (!function.inputs().empty() && function.inputs().front().isDouble()) {
        part.flop += function.inputs().front().toDouble();
      }
      own.running_.push_back({&part, clock_now_s(), 0});
    }
    return nullptr;
  }

  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
    PartRecord& own = *current();
    if (std::this_thread::get_id() != own.thread_ || own.running_.empty()) {
      return;
    }
    const Running done = own.running_.back();
    own.running_.pop_back();
    const double seconds = clock_now_s() - done.begin_s;
    done.part->seconds += seconds - done.inside_s;
    if (!own.running_.empty()) {
      own.running_.back().inside_s += seconds;
    }
  }

  std::thread::id thread_;
  at::CallbackHandle handle_ = 0;
  std::map<std::string, Part> parts_;  // whose elements stay where they are
  std::vector<Running> running_;
};

}  // namespace

std::map<std::string, Part> own_parts(const std::function<void()>& work) {
  PartRecord record;
  work();
  return std::move(record).parts();
}

}  // namespace moe::bench
