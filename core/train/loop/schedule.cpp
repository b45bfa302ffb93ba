#include "core/train/loop/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace moe::train {

namespace {

struct Name {
  ScheduleKind kind;
  const char* name;
};
constexpr Name kNames[] = {{ScheduleKind::kCosine, "cosine"},
                           {ScheduleKind::kLinear, "linear"},
                           {ScheduleKind::kConstant, "constant"},
                           {ScheduleKind::kWsd, "wsd"}};

// How far `step` is on the way from `first` (0) to `last` (1); 0 when there is no way to go.
double progress(int64_t step, int64_t first, int64_t last) {
  return last <= first
             ? 0.0
             : std::clamp(static_cast<double>(step - first) / static_cast<double>(last - first),
                          0.0, 1.0);
}

}  // namespace

ScheduleKind parse_schedule(const std::string& name) {
  for (const auto& known : kNames) {
    if (name == known.name) {
      return known.kind;
    }
  }
  throw UserError("--schedule '{}' is unknown; known: cosine, linear, constant, wsd", name);
}

const char* schedule_name(ScheduleKind kind) {
  for (const auto& known : kNames) {
    if (kind == known.kind) {
      return known.name;
    }
  }
  fail_check("a schedule is in the table", __FILE__, __LINE__, "");
}

double Schedule::at(int64_t step) const {
  if (step < warmup) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  const int64_t last = steps - 1;
  switch (kind) {
    case ScheduleKind::kCosine:
      return min_lr + (lr - min_lr) * 0.5 *
                          (1.0 + std::cos(std::numbers::pi * progress(step, warmup, last)));
    case ScheduleKind::kLinear:
      return lr + (min_lr - lr) * progress(step, warmup, last);
    case ScheduleKind::kWsd: {
      const auto decay =
          static_cast<int64_t>(std::ceil(decay_fraction * static_cast<double>(steps)));
      return lr + (min_lr - lr) * progress(step, std::max(warmup, last - decay), last);
    }
    default:
      return lr;
  }
}

}  // namespace moe::train
