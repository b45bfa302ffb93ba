// Runs with bf16 moments and with skipped outliers, and the validation of state.json.

#include "core/base/error.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/trainer.h"
#include "tests/support/matchers.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using World = moe::test::TrainWorld;
namespace fs = std::filesystem;

TEST_CASE("a run with bf16 moments stores them as bf16 and resumes bit for bit", "[train]") {
  World world("top1+ir+fr");
  world.settings.adamw.moments = io::DType::kBF16;
  world.train();
  const fs::path whole = world.settings.run;
  world.settings.run = world.dir / "stopped";
  world.settings.save_every = 5;
  train_until(world, 3);
  train_until(world, 7);
  const fs::path checkpoint = world.settings.run / "checkpoints" / "step-7";
  const io::SafetensorsFile state(checkpoint / "state.safetensors");
  int64_t moments = 0;
  for (const auto& info : state.tensors()) {
    const bool is_moment = info.name.starts_with("exp_avg");
    moments += is_moment ? 1 : 0;
    CHECK(info.dtype == (is_moment ? io::DType::kBF16 : io::DType::kF32));
  }
  CHECK(moments > 0);
  auto model = model::Llama::load(io::Checkpoint(checkpoint));
  AdamW optimizer(held_slices(model.parameters()), {});
  CHECK_THAT(
      user_error_of([&] { restore(checkpoint, model, optimizer); }),
      contains_text("is BF16") && contains_text("F32") && contains_text("--optimizer-state"));
  world.settings.adamw.moments = io::DType::kF32;
  CHECK_THAT(user_error_of([&] { world.train(); }),
             contains_text("optimizer-state was \"bf16\", is \"fp32\""));
  world.settings.adamw.moments = io::DType::kBF16;
  check_resumes(world, whole, {});
  CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
}

TEST_CASE("--skip-outliers skips the step of an outlier, counts it and says why", "[train]") {
  constexpr int64_t kOrdinarySteps = 150;
  World world("relu:k=1");
  std::string text;
  for (int64_t row = 0; row < 2 * (kOrdinarySteps + 3); ++row) {
    const std::vector<int> ids =
        row / 2 == kOrdinarySteps
            ? std::vector<int>{40, 50, 41, 60, 45, 63, 40, 58}
            : std::vector<int>{5, 6, 7, 8, 5, 6, 7, 8 + static_cast<int>(row % 3)};
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(world.dir / "rows.jsonl", text);
  world.settings.shuffle = false;
  world.settings.micro_batch = 2;
  world.settings.steps = kOrdinarySteps + 3;
  world.settings.lr = 3e-3;
  world.settings.schedule = ScheduleKind::kConstant;
  world.settings.skip_outliers = 6;
  const auto records = world.train();
  for (const auto& one : records) {
    CHECK(one.skipped == (one.step == kOrdinarySteps + 1));
    CHECK(one.skipped_steps == (one.step > kOrdinarySteps ? 1 : 0));
    CHECK(*one.skipped_outliers == one.skipped_steps);
  }
  const auto& record = records[kOrdinarySteps];
  CHECK_FALSE(record.skipped_why.empty());
  const OrderedJson json = to_json(record);
  CHECK(json["skipped"] == "outlier");
  CHECK(json["skipped_why"] == record.skipped_why);
  CHECK(json["skipped_outliers"] == 1);
  CHECK_FALSE(to_json(records.back()).contains("skipped"));

  // A checkpoint saves the window: a resumed run skips the same step.
  const fs::path whole = world.settings.run;
  world.settings.run = world.dir / "stopped";
  world.settings.keep = 4;
  for (const int64_t stop : {int64_t{70}, kOrdinarySteps, kOrdinarySteps + 1, kOrdinarySteps + 2}) {
    train_until(world, stop);
  }
  const auto checkpoint = [&](int64_t step) {
    return world.settings.run / "checkpoints" / fmt::format("step-{}", step);
  };
  const TrainState state = read_train_state(checkpoint(kOrdinarySteps + 1));
  CHECK(state.outliers.losses.size() == 128);
  CHECK(state.outliers.in_a_row == 1);
  CHECK(state.skipped_outliers == 1);
  const auto weights = [&](int64_t step) {
    return read_file(checkpoint(step) / "state.safetensors");
  };
  CHECK(weights(kOrdinarySteps + 1) == weights(kOrdinarySteps));  // moments and counts too
  CHECK(weights(kOrdinarySteps + 2) != weights(kOrdinarySteps));
  check_resumes(world, whole, {});
  CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
}

TEST_CASE("an invalid value in state.json is refused with file and key", "[train]") {
  const TempDir dir;
  const Json valid = parse_json(
      R"({"format":1,"step":1,"total_tokens":1,"skipped_steps":0,"skipped_outliers":0,"lambda":0,
          "group_tokens":1,"cursor":{"epoch":0,"example":0,"offset":0}})",
      "");
  const auto error = [&](const char* key, const Json& value) {
    Json changed = valid;
    changed[key] = value;
    write_file(dir / "state.json", changed.dump());
    return user_error_of([&] { read_train_state(dir.path()); });
  };
  const auto file = contains_text((dir / "state.json").string());
  const std::string too_many = Json(std::vector<double>(129, 1.0)).dump();
  for (const auto& [outliers, fact] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "must be an object"},
           {R"({"losses":[1,"x"],"norms":[]})", "'losses'"},
           {R"({"losses":[1],"norms":3})", "'norms'"},
           {R"({"losses":)" + too_many + "}", "'losses'"},
           {R"({"losses":[1],"norms":[]})", "1 losses and 0 norms"},
           {R"({"losses":[],"norms":[],"in_a_row":17})", "'in_a_row' is 17"}}) {
    CHECK_THAT(error("outliers", parse_json(outliers, "")),
               file && contains_text("outliers: ") && contains_text(fact));
  }
  for (const char* key :
       {"step", "total_tokens", "skipped_steps", "skipped_outliers", "lambda", "group_tokens"}) {
    CHECK_THAT(error(key, -1), file && contains_text(fmt::format("'{}' is -1", key)));
  }
  CHECK(error("step", 1).empty());
}
