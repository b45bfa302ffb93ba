// An option of training that is added from outside, by the recipe "Adding an option" of
// core/README.md: declared once, it has a flag, a range, a key of settings.toml and a check on
// resume.

#include "core/train/config/settings.h"
#include "tests/support/train_world.h"

using namespace moe;

namespace {

double loss_to_stop_at = 0;

void add_stop_at_loss() {
  static const bool is_added = [] {
    train::add_train_option({.name = "stop-at-loss",
                             .member = &loss_to_stop_at,
                             .group = group::kOptimizer,
                             .help = "stop after a step with at most this loss",
                             .range = number_from(0)});
    return true;
  }();
  CHECK(is_added);
}

// Returns the number of steps of a run with the option.
size_t steps_with(double loss, test::TrainWorld& world) {
  loss_to_stop_at = loss;
  size_t steps = 0;
  double last = INFINITY;
  train::TrainCallbacks callbacks;
  callbacks.on_step = [&](const train::StepRecord& record) {
    last = record.loss;
    ++steps;
  };
  callbacks.stop_requested = [&] { return last <= loss_to_stop_at; };
  try {
    train::train(world.settings, callbacks);
  } catch (const Interrupted&) {
  }
  return steps;
}

}  // namespace

TEST_CASE("an added option has a flag, a range, and a key of settings.toml") {
  add_stop_at_loss();
  train::TrainSettings settings;
  const Options options = train::train_options(settings);
  const auto added = std::ranges::find_if(
      options, [](const Option& option) { return std::string(option.name) == "stop-at-loss"; });
  REQUIRE(added != options.end());
  CHECK(flag_name(*added) == "--stop-at-loss");
  CHECK(help_line(*added).find("stop after a step") != std::string::npos);
  loss_to_stop_at = -1;
  CHECK_THROWS_AS(check_ranges(options), UserError);
  CHECK(set_value(added->member, "2.5"));
  CHECK(toml_lines(options).find("stop-at-loss = 2.5\n") != std::string::npos);
}

TEST_CASE("an added option changes a run, and a run is not resumed with another value") {
  add_stop_at_loss();
  test::TrainWorld world;
  CHECK(steps_with(0, world) == 12);
  world.settings.run = world.dir / "stopped";
  const double early = 3;
  const size_t steps = steps_with(early, world);
  CHECK(steps > 1);
  CHECK(steps < 12);
  CHECK_THROWS_AS(steps_with(early - 1, world), UserError);
}
