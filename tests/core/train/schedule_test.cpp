#include "core/train/config/options.h"
#include "tests/support/catch.h"

using namespace moe::train;

namespace {

Schedule schedule(ScheduleKind kind, int64_t warmup, int64_t steps) {
  return {kind, 1e-3, 1e-4, warmup, steps};
}

}  // namespace

TEST_CASE("cosine falls from lr to min_lr along half a wave", "[train]") {
  const auto cosine = schedule(ScheduleKind::kCosine, 0, 101);
  CHECK(cosine.at(0) == Approx(1e-3));
  CHECK(cosine.at(25) == Approx(1e-4 + 9e-4 * 0.5 * (1 + 0.70710678118654752)));  // cos 45 degrees
  CHECK(cosine.at(50) == Approx(5.5e-4));
  CHECK(cosine.at(100) == Approx(1e-4));
  CHECK(cosine.at(500) == Approx(1e-4));
}

TEST_CASE("linear falls evenly and constant stays", "[train]") {
  const auto linear = schedule(ScheduleKind::kLinear, 0, 10);
  for (int64_t step = 0; step < 10; ++step) {
    CHECK(linear.at(step) == Approx(1e-3 - 1e-4 * static_cast<double>(step)));
    CHECK(schedule(ScheduleKind::kConstant, 0, 10).at(step) == 1e-3);
  }
}

TEST_CASE("wsd is flat until the last tenth and then falls evenly", "[train]") {
  const auto wsd = schedule(ScheduleKind::kWsd, 0, 101);
  CHECK(wsd.at(0) == 1e-3);
  CHECK(wsd.at(89) == 1e-3);  // 100 - ceil(10.1) = 89
  CHECK(wsd.at(100) == Approx(1e-4));
  CHECK(wsd.at(95) == Approx(1e-3 - 9e-4 * 6 / 11));
}

TEST_CASE("warm-up rises evenly to lr and the fall begins after it", "[train]") {
  for (const auto kind : {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kConstant,
                          ScheduleKind::kWsd}) {
    const auto warm = schedule(kind, 4, 20);
    CHECK(warm.at(0) == Approx(2.5e-4));
    CHECK(warm.at(1) == Approx(5e-4));
    CHECK(warm.at(3) == Approx(1e-3));
    CHECK(warm.at(4) == Approx(1e-3));
    CHECK(warm.at(19) == Approx(kind == ScheduleKind::kConstant ? 1e-3 : 1e-4));
  }
}

TEST_CASE("runs of one step and runs that are all warm-up have a rate", "[train]") {
  for (const auto kind : {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kConstant,
                          ScheduleKind::kWsd}) {
    CHECK(schedule(kind, 0, 1).at(0) == Approx(1e-3));
    CHECK(schedule(kind, 8, 4).at(3) == Approx(5e-4));
  }
}

TEST_CASE("schedules have names", "[train]") {
  TrainSettings settings;
  for (const auto& option : train_options(settings)) {
    if (option.name != std::string("schedule")) {
      continue;
    }
    for (const char* name : {"cosine", "linear", "constant", "wsd"}) {
      CHECK(moe::set_value(option.member, name));
      CHECK(moe::value_text(option.member) == name);
    }
  }
  CHECK(settings.schedule == ScheduleKind::kWsd);
}
