#include "core/model/llama/timeline.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/ops/device.h"

namespace moe::model {
namespace {

// The forward of a part is its user scope. Its backward is an autograd node, identified by the name
// of its class. A part inside another one counts as the outer one.

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr std::array<std::pair<const char*, const char*>, 10> kNodes = {{
    {"GroupedSwiglu", "experts"},
    {"GroupedLinear", "experts"},
    {"Permute", "permute"},
    {"Unpermute", "combine"},
    {"CausalAttention", "attention"},
    {"ScaledDotProduct", "attention"},
    {"RmsNorm", "norm"},
    {"Gates", "routing"},
    {"PlanGateWeights", "routing"},
    {"Linear", "projections"},
}};

std::string part_name(const std::string& name, at::RecordScope scope) {
  if (scope == at::RecordScope::USER_SCOPE) {
    return name;
  }
  const auto node = std::ranges::find_if(
      kNodes, [&](const auto& entry) { return name.find(entry.first) != std::string::npos; });
  return node == kNodes.end() ? "backward, other" : node->second;
}

std::map<std::string, double> sum_parts(const std::vector<profiler::KinetoEvent>& events) {
  std::vector<const profiler::KinetoEvent*> parts;
  for (const auto& event : events) {
    const auto scope = static_cast<at::RecordScope>(event.scope());
    if (scope == at::RecordScope::USER_SCOPE || scope == at::RecordScope::BACKWARD_FUNCTION) {
      parts.push_back(&event);
    }
  }
  std::ranges::sort(parts, {}, [](const auto* event) {
    return std::pair(event->startThreadId(), event->startNs());
  });
  std::map<std::string, double> seconds;
  std::map<uint64_t, uint64_t> busy_until;  // per thread
  for (const auto* event : parts) {
    uint64_t& until = busy_until[event->startThreadId()];
    if (event->startNs() < until) {
      continue;
    }
    until = event->startNs() + event->durationNs();
    const auto scope = static_cast<at::RecordScope>(event->scope());
    seconds[part_name(event->name(), scope)] += event->durationNs() / 1e9;
  }
  return seconds;
}

// The events before and after a part on a GPU. Not used for a part inside another one.
struct GpuPart : at::ObserverContext {
  explicit GpuPart(c10::DeviceType type)
      : begin(type, c10::EventFlag::BACKEND_DEFAULT), end(type, c10::EventFlag::BACKEND_DEFAULT) {}
  bool is_outermost = false;
  c10::Event begin, end;
};

// Records events around parts during its lifetime. Callbacks of LibTorch are plain functions, which
// find this object by a static pointer.
class GpuParts {
 public:
  explicit GpuParts(c10::Device device) : device_(device) {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin, &end)
            .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~GpuParts() {
    at::removeCallback(handle_);
    current() = nullptr;
  }

  // Waits for the GPU and returns the seconds of each part.
  std::map<std::string, double> seconds() {
    guard_.synchronizeDevice(device_.index());
    std::map<std::string, double> seconds;
    for (const auto& [name, begin, end] : parts_) {
      seconds[name] += begin.elapsedTime(end) / 1e3;
    }
    return seconds;
  }

 private:
  struct Timed {
    std::string name;
    c10::Event begin, end;
  };

  static GpuParts*& current() {
    static GpuParts* running = nullptr;
    return running;
  }
  // Returns the nesting depth of parts in this thread; backward has its own threads.
  static int& depth() {
    static thread_local int parts = 0;
    return parts;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& /*function*/) {
    auto part = std::make_unique<GpuPart>(current()->device_.type());
    part->is_outermost = depth()++ == 0;
    if (part->is_outermost) {
      part->begin.record(current()->stream());
    }
    return part;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    auto& part = static_cast<GpuPart&>(*context);
    --depth();
    if (!part.is_outermost) {
      return;
    }
    GpuParts& own = *current();
    part.end.record(own.stream());
    const std::lock_guard lock(own.mutex_);
    own.parts_.push_back(
        {part_name(function.name(), function.scope()), std::move(part.begin), std::move(part.end)});
  }

  c10::Stream stream() const { return guard_.getStream(device_); }

  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_{device_.type()};
  at::CallbackHandle handle_ = 0;
  std::mutex mutex_;  // guards parts_
  std::vector<Timed> parts_;
};

}  // namespace

Timeline::Timeline() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (at::hasCUDA()) {
    activities.insert(ActivityType::CUDA);
  }
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

Timeline::~Timeline() {
  if (is_recording_) {
    profiler::disableProfiler();
  }
}

std::map<std::string, double> Timeline::finish(const std::filesystem::path& file) {
  is_recording_ = false;
  const auto result = profiler::disableProfiler();
  if (!file.empty()) {
    result->save(file.string());
    if (!std::filesystem::exists(file)) {
      throw std::runtime_error("cannot write the trace to " + file.string());
    }
  }
  return sum_parts(result->events());
}

std::map<std::string, double> part_seconds(const std::function<void()>& work, c10::Device device) {
  if (!kernels::device_traits(device).has_streams) {
    Timeline timeline;
    work();
    return timeline.finish({});
  }
  GpuParts parts(device);
  work();
  return parts.seconds();
}

}  // namespace moe::model
