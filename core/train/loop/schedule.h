#pragma once
// The learning rate of every step in closed form: nothing to save, nothing to resume.

#include <cstdint>
#include <string>

namespace moe::train {

enum class ScheduleKind { kCosine, kLinear, kConstant, kWsd };

ScheduleKind parse_schedule(const std::string& name);  // UserError listing the known names
const char* schedule_name(ScheduleKind kind);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-5;             // highest; of Rectify-Router, as is min_lr
  double min_lr = 1e-6;         // of the last step; kConstant never falls
  int64_t warmup = 0;           // steps that rise linearly to lr, the first being lr / warmup
  int64_t steps = 1;            // of the whole run
  double decay_fraction = 0.1;  // kWsd: the last part of the run, which falls linearly (MiniCPM
                                // 2024, section 4.3: 10 %)

  // Of step 0 .. steps-1. The first step after the warm-up has `lr`, the last step has `min_lr`
  // (where it falls at all).
  double at(int64_t step) const;
};

}  // namespace moe::train
