// What the optimizer's settings do to a whole run: moments in bf16, decay, outliers.

#include "core/base/error.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/trainer.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using World = moe::test::TrainWorld;
namespace fs = std::filesystem;

TEST_CASE("the run's decay reaches embedding and head only where it is asked to", "[train]") {
  World world;
  world.settings.steps = 1;
  world.settings.lr = 1e-3;
  world.settings.schedule = ScheduleKind::kConstant;
  world.settings.adamw.weight_decay = 100;
  const auto weights = [&](const std::string& run, bool decay_embeddings) {
    world.settings.run = world.dir / run;
    world.settings.adamw.decay_embeddings = decay_embeddings;
    world.train();
    std::map<std::string, at::Tensor> all;
    for (const auto& parameter :
         model::Llama::load(io::Checkpoint(world.settings.run / "final")).parameters()) {
      all[parameter.name] = parameter.tensor;
    }
    return all;
  };
  const auto on = weights("on", true), off = weights("off", false);
  for (const auto& [name, tensor] : on) {
    CAPTURE(name);
    const bool is_embedding = name == "model.embed_tokens" || name == "lm_head";
    CHECK(at::equal(tensor, off.at(name)) != is_embedding);
  }
}

namespace {

// The loss at the end: the mean of the last 24 steps, four times through the rows.
double final_loss(World& world, const std::string& run) {
  world.settings.run = world.dir / run;
  const auto records = world.train();
  double sum = 0;
  for (size_t i = records.size() - 24; i < records.size(); ++i) {
    sum += records[i].loss;
  }
  return sum / 24;
}

}  // namespace

TEST_CASE("moments in bf16 end a run where another order of the data might have", "[train]") {
  World world("top2");
  world.settings.steps = 200;
  world.settings.lr = 3e-3;
  const double wide = final_loss(world, "fp32");
  double least = wide, most = wide;
  for (const uint64_t seed : {1, 2}) {
    world.settings.seed = seed;
    const double loss = final_loss(world, fmt::format("seed-{}", seed));
    least = std::min(least, loss);
    most = std::max(most, loss);
  }
  world.settings.seed = 0;
  world.settings.adamw.moments = io::DType::kBF16;
  const double narrow = final_loss(world, "bf16");
  CAPTURE(wide, narrow, least, most);
  CHECK(narrow != wide);
  // The rounding is noise without bias, a few per cent of each step; that of the order of the data
  // is as large as the steps themselves. So its effect stays within the spread of the latter.
  CHECK(std::abs(narrow - wide) < most - least);
}

TEST_CASE("a run with moments in bf16 goes on bit for bit and stores them as bf16", "[train]") {
  World world("top1+ir+fr");
  world.settings.adamw.moments = io::DType::kBF16;
  world.train();
  const fs::path whole = world.settings.run;
  const std::string weights = read_file(whole / "final" / "model.safetensors");
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
  AdamW optimizer(model.parameters(), {});
  const std::string message = test::user_error_of([&] { restore(checkpoint, model, optimizer); });
  INFO(message);
  CHECK(message.find("' is BF16, this run keeps it in F32; give the --optimizer-state that it was "
                     "saved with") != std::string::npos);
  world.settings.adamw.moments = io::DType::kF32;
  CHECK(test::user_error_of([&] {
          world.train();
        }).find("optimizer-state was \"bf16\", is \"fp32\"") != std::string::npos);
  world.settings.adamw.moments = io::DType::kBF16;
  world.train();
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
  CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
}

namespace {

constexpr int64_t kOrdinarySteps = 150;

// 150 steps of two rows that are all alike, then one of rows like no other, then `more` like the
// first.
void place_an_outlier(World& world, int64_t more) {
  std::string text;
  const auto add = [&](const std::vector<int>& ids) {
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  };
  for (int64_t row = 0; row < 2 * (kOrdinarySteps + 1 + more); ++row) {
    const bool is_absurd = row / 2 == kOrdinarySteps;
    add(is_absurd ? std::vector<int>{40, 50, 41, 60, 45, 63, 40, 58}
                  : std::vector<int>{5, 6, 7, 8, 5, 6, 7, 8 + static_cast<int>(row % 3)});
  }
  test::write_file(world.dir / "rows.jsonl", text);
  world.settings.shuffle = false;
  world.settings.micro_batch = 2;
  world.settings.steps = kOrdinarySteps + 1 + more;
  world.settings.lr = 3e-3;
  world.settings.schedule = ScheduleKind::kConstant;
}

}  // namespace

TEST_CASE("an absurd batch moves no weight when outliers are skipped, and is counted and explained",
          "[train]") {
  World world;
  place_an_outlier(world, 1);
  world.settings.skip_outliers = 6;
  world.settings.save_every = 1;
  world.settings.keep = 3;
  const auto records = world.train();
  const auto& record = records[kOrdinarySteps];
  INFO(record.skipped_why);
  CHECK(record.skipped);
  CHECK(record.skipped_kind == "outlier");
  CHECK(record.skipped_why.find("standard deviations above the mean") != std::string::npos);
  for (const auto& one : records) {
    CHECK(one.skipped == (one.step == kOrdinarySteps + 1));
    CHECK(one.skipped_steps == (one.step > kOrdinarySteps ? 1 : 0));
    CHECK(*one.skipped_outliers == one.skipped_steps);
  }
  const OrderedJson json = to_json(record);
  CHECK(json["skipped"] == "outlier");
  CHECK(json["skipped_why"] == record.skipped_why);
  CHECK(json["skipped_outliers"] == 1);
  CHECK_FALSE(to_json(records.back()).contains("skipped"));
  const auto weights = [&](int64_t step) {
    return read_file(world.settings.run / "checkpoints" / fmt::format("step-{}", step) /
                     "state.safetensors");
  };
  CHECK(weights(kOrdinarySteps + 1) == weights(kOrdinarySteps));  // moments and counts too
  CHECK(weights(kOrdinarySteps + 2) != weights(kOrdinarySteps));
  world.settings.skip_outliers.reset();
  world.settings.run = world.dir / "all";
  const auto all = world.train();
  CHECK_FALSE(all[kOrdinarySteps].skipped);
  CHECK_FALSE(to_json(all.back()).contains("skipped_outliers"));
  CHECK(weights(kOrdinarySteps + 1) != weights(kOrdinarySteps));
}

TEST_CASE("the window of outliers is saved: a run that was stopped skips what the other skips",
          "[train]") {
  World world("relu:k=1");
  place_an_outlier(world, 5);
  world.settings.skip_outliers = 6;
  const auto records = world.train();
  CHECK(records.back().skipped_outliers == 1);
  const fs::path whole = world.settings.run;
  const std::string weights = read_file(whole / "final" / "model.safetensors");
  world.settings.run = world.dir / "stopped";
  for (const int64_t stop : {int64_t{70}, kOrdinarySteps, kOrdinarySteps + 1}) {
    train_until(world, stop);
  }
  const fs::path checkpoint =
      world.settings.run / "checkpoints" / fmt::format("step-{}", kOrdinarySteps + 1);
  const TrainState position = read_train_state(checkpoint);
  CHECK(position.outliers.losses.size() == 128);
  CHECK(position.outliers.in_a_row == 1);
  CHECK(position.skipped_outliers == 1);
  world.train();
  CHECK(read_file(world.settings.run / "final" / "model.safetensors") == weights);
  CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
}

TEST_CASE("a window of outliers that is none is refused by file and key", "[train]") {
  const TempDir dir;
  const auto error_of = [&](const std::string& outliers) {
    test::write_file(dir / "state.json",
                     R"({"format":1,"step":1,"total_tokens":1,"lambda":0,"outliers":)" + outliers +
                         R"(,"cursor":{"epoch":0,"example":0,"offset":0}})");
    return test::user_error_of([&] { read_train_state(dir.path()); });
  };
  const std::string file = (dir / "state.json").string();
  CHECK(error_of("[]") == file + ": outliers: must be an object");
  CHECK(error_of(R"({"losses":[1,"x"],"norms":[]})") ==
        file + ": outliers: 'losses' must be at most 128 finite numbers");
  CHECK(error_of(R"({"losses":[1],"norms":3})") ==
        file + ": outliers: 'norms' must be at most 128 finite numbers");
  const Json many = std::vector<double>(129, 1.0);
  CHECK(error_of(R"({"losses":)" + many.dump() + "}") ==
        file + ": outliers: 'losses' must be at most 128 finite numbers");
  CHECK(error_of(R"({"losses":[1],"norms":[]})") ==
        file + ": outliers: 1 losses and 0 norms are not of the same steps");
  CHECK(error_of(R"({"losses":[],"norms":[],"in_a_row":17})") ==
        file + ": outliers: 'in_a_row' is 17, 0 to 16 are possible");
}

TEST_CASE("a state of training with numbers below zero is refused by file and key", "[train]") {
  const TempDir dir;
  const Json state = parse_json(
      R"({"format":1,"step":1,"total_tokens":1,"skipped_steps":0,"skipped_outliers":0,"lambda":0,
          "group_tokens":1,"cursor":{"epoch":0,"example":0,"offset":0}})",
      "");
  for (const char* key :
       {"step", "total_tokens", "skipped_steps", "skipped_outliers", "lambda", "group_tokens"}) {
    Json changed = state;
    changed[key] = -1;
    test::write_file(dir / "state.json", changed.dump());
    const std::string error = test::user_error_of([&] { read_train_state(dir.path()); });
    CHECK(error == fmt::format("{}: '{}' is -1, it must not be negative",
                               (dir / "state.json").string(), key));
  }
  test::write_file(dir / "state.json", state.dump());
  CHECK(read_train_state(dir.path()).step == 1);
}
