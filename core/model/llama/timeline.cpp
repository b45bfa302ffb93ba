// A part's forward is its user scope; its backward is the autograd node that the same source makes,
// told by the name of its class. What a part does inside another counts for the outer one.

#include "core/model/llama/timeline.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace moe::model {

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr std::array<std::pair<const char*, const char*>, 9> kNodes = {{
    {"GroupedSwiglu", "experts"},
    {"GroupedLinear", "experts"},
    {"GatherRows", "permute"},
    {"CombineRows", "combine"},
    {"CausalAttention", "attention"},
    {"ScaledDotProduct", "attention"},
    {"RmsNorm", "norm"},
    {"Gates", "routing"},
    {"Linear", "projections"},
}};

std::string part_of_node(const std::string& name) {
  const auto found = std::find_if(kNodes.begin(), kNodes.end(), [&](const auto& entry) {
    return name.find(entry.first) != std::string::npos;
  });
  return found == kNodes.end() ? "backward, other" : found->second;
}

std::map<std::string, double> parts_of(const std::vector<profiler::KinetoEvent>& events) {
  std::vector<const profiler::KinetoEvent*> named;
  for (const auto& event : events) {
    const auto scope = static_cast<at::RecordScope>(event.scope());
    if (scope == at::RecordScope::USER_SCOPE || scope == at::RecordScope::BACKWARD_FUNCTION) {
      named.push_back(&event);
    }
  }
  std::sort(named.begin(), named.end(), [](const auto* a, const auto* b) {
    return std::pair(a->startThreadId(), a->startNs()) <
           std::pair(b->startThreadId(), b->startNs());
  });
  std::map<std::string, double> seconds;
  std::map<uint64_t, uint64_t> busy_until;  // by thread
  for (const auto* event : named) {
    uint64_t& until = busy_until[event->startThreadId()];
    if (event->startNs() < until) {
      continue;
    }
    until = event->startNs() + event->durationNs();
    const bool is_user = event->scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE);
    seconds[is_user ? event->name() : part_of_node(event->name())] +=
        static_cast<double>(event->durationNs()) / 1e9;
  }
  return seconds;
}

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
  if (runs_) {
    profiler::disableProfiler();
  }
}

std::map<std::string, double> Timeline::finish(const std::filesystem::path& file) {
  runs_ = false;
  const auto result = profiler::disableProfiler();
  if (!file.empty()) {
    result->save(file.string());
    if (!std::filesystem::exists(file)) {
      throw std::runtime_error("cannot write the trace to " + file.string());
    }
  }
  return parts_of(result->events());
}

}  // namespace moe::model
