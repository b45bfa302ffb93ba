#include "core/train/config/settings.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;

namespace {

TrainSettings with_data() {
  TrainSettings settings;
  settings.model = "model";
  settings.run = "run";
  settings.data = {"a.jsonl"};
  return settings;
}

model::ModelConfig config_of(int64_t positions) {
  model::ModelConfig config;
  config.max_position_embeddings = positions;
  return config;
}

data::Examples rows(bool all_rows) {
  data::Examples examples;
  examples.all_rows = all_rows;
  return examples;
}

}  // namespace

TEST_CASE("settings that are not given get defaults from the papers, the model and the data",
          "[train]") {
  const auto settings = resolve(with_data(), config_of(512), rows(false));
  CHECK(settings.seq_len == 512);
  CHECK(resolve(with_data(), config_of(4096), rows(false)).seq_len == 2048);
  CHECK(settings.micro_batch == 8);
  CHECK(settings.global_batch == 8);
  CHECK(settings.min_lr.value() == Approx(1e-6));
  CHECK(settings.epochs == 1);
  CHECK(settings.pack == data::Pack::kStream);
  CHECK(resolve(with_data(), config_of(512), rows(true)).pack == data::Pack::kNone);
}

TEST_CASE("the micro-batch is the largest divisor of the global batch up to 8", "[train]") {
  TrainSettings settings = with_data();
  settings.global_batch = 36;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 6);
  settings.global_batch = 7;
  CHECK(resolve(settings, config_of(512), rows(false)).micro_batch == 7);
  settings.micro_batch = 2;
  CHECK_THAT(test::user_error_of([&] { resolve(settings, config_of(512), rows(false)); }),
             test::contains_text("--global-batch 7 is no multiple of --micro-batch 2"));
}

TEST_CASE("a number out of range is refused with its flag and value", "[train]") {
  using S = TrainSettings;
  struct Case {
    const char* facts;
    void (*change)(S& settings);
  };
  const Case cases[] = {
      {"--steps 0:", [](S& s) { s.steps = 0; }},
      {"--steps and --epochs", [](S& s) { s.steps = 1, s.epochs = 1; }},
      {"--epochs -1:", [](S& s) { s.epochs = -1; }},
      {"--micro-batch -2:", [](S& s) { s.micro_batch = -2; }},
      {"--seq-len 1:", [](S& s) { s.seq_len = 1; }},
      {"--seq-len 513: the model was made for 512 positions", [](S& s) { s.seq_len = 513; }},
      {"--warmup -1:", [](S& s) { s.warmup = -1; }},
      {"--lr -1:", [](S& s) { s.lr = -1; }},
      {"--min-lr 0.01 is above --lr 0.001", [](S& s) { s.lr = 1e-3, s.min_lr = 1e-2; }},
      {"--beta2 1:", [](S& s) { s.adamw.beta2 = 1; }},
      {"--clip nan:", [](S& s) { s.clip = std::nan(""); }},
      {"--skip-outliers 0:", [](S& s) { s.skip_outliers = 0; }},
      {"--skip-outliers 0.5:", [](S& s) { s.skip_outliers = 0.5; }},
      {"--skip-outliers -6:", [](S& s) { s.skip_outliers = -6; }},
      {"--skip-outliers nan:", [](S& s) { s.skip_outliers = std::nan(""); }},
      {"--save-every 0:", [](S& s) { s.save_every = 0; }},
      {"--keep 0:", [](S& s) { s.keep = 0; }},
      {"--lora -1:", [](S& s) { s.lora.rank = -1; }},
      {"--lora-alpha without --lora", [](S& s) { s.lora.alpha = 2; }},
      {"--lora-alpha -1:",
       [](S& s) {
         s.lora = {4, -1, {"ffn"}};
       }},
      {"--lora-on 'mlp' is unknown; known: attention, ffn",
       [](S& s) {
         s.lora = {4, 0, {"mlp"}};
       }},
      {"--precision tf32:", [](S& s) { s.compute.precision = model::Precision::kTf32; }}};
  for (const auto& [facts, change] : cases) {
    TrainSettings settings = with_data();
    change(settings);
    CHECK_THAT(test::user_error_of([&] { resolve(settings, config_of(512), rows(false)); }),
               test::contains_text(facts));
  }
}

TEST_CASE("settings.toml holds all settings of the run as a recipe", "[train]") {
  TrainSettings settings = with_data();
  settings.data = {"a \"b\".jsonl", "c.jsonl"};
  settings.steps = 20;
  settings.router = {"top1+ir:cf=1.5", "1.5", 8};
  settings.lb_coef = 0.01;
  settings.seed = 7;
  settings.lr = 1e-3;
  settings.format = data::Format::kPairs;
  settings.text_template = "{instruction}\\n{response}";
  settings.loss_on = data::LossOn::kLast;
  settings.compute.recompute = model::Recompute::kLayer;
  settings.lora = {8, 16, {"ffn"}};
  const std::string toml = to_toml(resolve(settings, config_of(512), rows(false)));
  CHECK(toml ==
        "# moe 0.1.0: again with `moe train --config FILE --force`, or another -o\n[train]\nmodel "
        "= \"model\"\nout = \"run\"\n"
        "data = [\"a \\\"b\\\".jsonl\", \"c.jsonl\"]\nformat = \"pairs\"\ntemplate = "
        "\"{instruction}\\\\n"
        "{response}\"\nloss-on = \"last\"\nobjective = \"instruct\"\npack = "
        "\"stream\"\npack-mask = \"causal\"\nshuffle = \"on\"\n"
        "seq-len = 512\nmicro-batch = 8\nglobal-batch = 8\nsteps = 20\nprecision = "
        "\"fp32\"\nrecompute = \"layer\"\nlora = 8\nlora-alpha = 16\nlora-on = "
        "[\"ffn\"]\nlr = 0.001\nmin-lr = "
        "0.0001\nschedule = \"cosine\"\n"
        "warmup = 0\nweight-decay = 0\n"
        "decay-embeddings = \"on\"\nbeta1 = 0.9\nbeta2 = 0.999\neps = 1e-08\nclip = 1\n"
        "optimizer-state = \"fp32\"\n"
        "router = \"" +
            settings.router.router +
            "\"\ncf = \"1.5\"\nep-ranks = 8\nlb-coef = 0.01\nkeep = 2\nseed = 7\n");
}

TEST_CASE("schedules warm up to lr and fall to min_lr", "[train]") {
  using enum ScheduleKind;
  struct Case {
    ScheduleKind kind;
    int64_t warmup, steps, step;
    double lr;
  };
  for (const auto& [kind, warmup, steps, step, lr] : std::vector<Case>{
           {kCosine, 0, 101, 0, 1e-3},
           {kCosine, 0, 101, 25, 1e-4 + 9e-4 * 0.5 * (1 + 0.70710678118654752)},  // cos 45 degrees
           {kCosine, 0, 101, 50, 5.5e-4},
           {kCosine, 0, 101, 100, 1e-4},
           {kCosine, 0, 101, 500, 1e-4},
           {kWsd, 0, 101, 0, 1e-3},
           {kWsd, 0, 101, 89, 1e-3},  // 100 - ceil(10.1) = 89
           {kWsd, 0, 101, 95, 1e-3 - 9e-4 * 6 / 11},
           {kWsd, 0, 101, 100, 1e-4}}) {
    CAPTURE(static_cast<int>(kind), step);
    CHECK(Schedule{kind, 1e-3, 1e-4, warmup, steps}.at(step) == Approx(lr));
  }
  for (int64_t step = 0; step < 10; ++step) {
    CHECK(Schedule{kLinear, 1e-3, 1e-4, 0, 10}.at(step) ==
          Approx(1e-3 - 1e-4 * static_cast<double>(step)));
    CHECK(Schedule{kConstant, 1e-3, 1e-4, 0, 10}.at(step) == 1e-3);
  }
  for (const auto kind : {kCosine, kLinear, kConstant, kWsd}) {
    CAPTURE(static_cast<int>(kind));
    const Schedule warm{kind, 1e-3, 1e-4, 4, 20};
    for (const auto& [step, lr] :
         {std::pair(0, 2.5e-4), std::pair(1, 5e-4), std::pair(3, 1e-3), std::pair(4, 1e-3),
          std::pair(19, kind == kConstant ? 1e-3 : 1e-4)}) {
      CHECK(warm.at(step) == Approx(lr));
    }
    CHECK(Schedule{kind, 1e-3, 1e-4, 0, 1}.at(0) == Approx(1e-3));  // one step
    CHECK(Schedule{kind, 1e-3, 1e-4, 8, 4}.at(3) == Approx(5e-4));  // only warm-up
  }
}
