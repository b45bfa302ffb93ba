#include "core/base/error.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/report.h"
#include "core/upcycle/upcycle.h"
#include "tests/support/train_world.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using World = moe::test::TrainWorld;

TEST_CASE("training a dense folder lowers the loss and writes the run") {
  World world;
  world.settings.steps.reset();
  world.settings.epochs = 1.9;  // 24 rows, 4 a step: 11.4 steps
  const auto records = world.train();
  REQUIRE(records.size() == 12);
  CHECK(records.back().loss < 0.7 * records.front().loss);
  const fs::path run = world.settings.run;
  CHECK(fs::exists(run / "final" / "config.json"));
  CHECK(fs::exists(run / "settings.toml"));
  CHECK_FALSE(fs::exists(run / "checkpoints"));
  const auto lines = json_lines(read_file(run / "metrics.jsonl"));
  REQUIRE(lines.size() == records.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& json = lines[i];
    const StepRecord& record = records[i];
    CHECK(json["step"] == record.step);
    CHECK(json["loss"] == record.loss);
    CHECK(json["grad_norm"] == record.grad_norm);
    CHECK(json["tokens"].get<int64_t>() == record.tokens);
    CHECK_FALSE(json.contains("load_balance_loss"));
    CHECK(json.contains("data_wait_seconds"));
    CHECK(record.data_wait_seconds > 0);  // at least a lock
    CHECK(record.data_wait_seconds <= record.seconds);
  }
}

TEST_CASE("equal settings give equal losses and equal bytes") {
  World world("top1+ir+fr");
  const auto first = world.train();
  const std::string weights = final_weights(world.settings.run);
  CHECK(losses(world.train("again")) == losses(first));
  CHECK(final_weights(world.settings.run) == weights);
  world.settings.seed = 1;
  CHECK(losses(world.train("other")) != losses(first));
}

TEST_CASE("mixtures train with every router, and metrics.jsonl has their counters") {
  for (const char* router : {"top1", "top2:cf=inf", "top1+ir+fr", "topp:0.4", "relu:k=1"}) {
    INFO(router);
    World world(router);
    const auto records = world.train();
    CHECK(records.back().loss < 0.8 * records.front().loss);
    const auto& record = records.front();
    REQUIRE(record.layers.size() == 2);
    CHECK(record.moe_layers == std::vector<int64_t>{0, 2});
    CHECK(record.layers[0].tokens == record.tokens);
    const OrderedJson json = to_json(record);
    CHECK(json["layers"].size() == 2);
    CHECK(json["layers"][1]["layer"] == 2);
    CHECK(json["layers"][0]["load"].size() == 4);
    CHECK(json["experts_per_token"].get<double>() > 0);
    const bool is_relu = std::string(router).starts_with("relu");
    CHECK(json.contains("load_balance_loss") == !is_relu);
    CHECK(json.contains("lambda") == is_relu);
    CHECK(json.contains("target_sparsity") == is_relu);
  }
}

namespace {

// Returns the biases of the routers of a folder: [MoE layers][experts].
std::vector<std::vector<float>> router_biases(const fs::path& folder) {
  std::vector<std::vector<float>> all;
  for (const auto& bias : model::Llama::load(io::Checkpoint(folder)).router_biases()) {
    all.emplace_back(bias.data_ptr<float>(), bias.data_ptr<float>() + bias.numel());
  }
  return all;
}

}  // namespace

TEST_CASE("the bias of each expert follows the requests of each step and is saved") {
  World world("top2:bias=0.01");
  world.settings.global_batch = 8;  // two micro-batches a step
  const auto records = world.train();
  std::vector<std::vector<float>> expected(2, std::vector<float>(4, 0));
  for (const auto& record : records) {
    float largest = 0;
    for (const auto& layer : expected) {
      for (const float bias : layer) {
        largest = std::max(largest, std::abs(bias));
      }
    }
    CHECK(*record.bias_max == largest);
    for (size_t layer = 0; layer < 2; ++layer) {
      const auto& requests = record.layers.at(layer).requests_per_expert;
      REQUIRE(requests.size() == 4);
      int64_t sum = 0;
      for (const int64_t load : requests) {
        sum += load;
      }
      CHECK(sum == 2 * record.tokens);
      for (size_t expert = 0; expert < 4; ++expert) {
        expected[layer][expert] += 4 * requests[expert] < sum   ? 0.01F
                                   : 4 * requests[expert] > sum ? -0.01F
                                                                : 0;
      }
    }
  }
  const fs::path trained = world.settings.run / "final";
  CHECK((router_biases(trained) == expected));
  const Json config = read_json(trained / "config.json");
  CHECK(config["model_type"] == "moe_biased");
  CHECK(config["moe"]["router"]["bias_rate"] == 0.01);
  const OrderedJson line = to_json(records[3]);
  CHECK(line["bias_max"].get<double>() > 0);
  CHECK(line["layers"][1]["requests_per_expert"].size() == 4);
  const io::Checkpoint folder(trained);
  CHECK(folder.info("model.layers.0.mlp.gate.e_score_correction_bias").dtype == io::DType::kF32);

  // A run from this folder continues with its biases. bias=0 keeps them, a router without bias
  // drops them.
  world.settings.model = trained;
  world.settings.steps = 2;
  CHECK(world.train("on")[0].bias_max > 0);
  CHECK_FALSE((router_biases(world.dir / "on/final") == expected));
  world.settings.router.router = "top2:bias=0";
  world.train("still");
  CHECK((router_biases(world.dir / "still/final") == expected));
  world.settings.router.router = "";
  world.settings.trained = {"experts"};
  world.train("frozen");
  CHECK((router_biases(world.dir / "frozen/final") == expected));
  world.settings.trained.clear();
  world.settings.router.router = "top2";
  CHECK_FALSE(world.train("without")[0].bias_max);
  CHECK(router_biases(world.dir / "without/final").empty());
  CHECK(read_json(world.dir / "without/final/config.json")["model_type"] == "qwen2_moe");
}

TEST_CASE("adding a bias to a router starts at zero and turns the load-balance loss off") {
  World world("top2");
  const auto stored = [&](const char* run) {
    const Json config = read_json(world.dir / run / "final/config.json");
    CHECK(config["moe"]["lb_coef"] == config["router_aux_loss_coef"]);
    return config["router_aux_loss_coef"].get<double>();
  };
  world.settings.steps = 3;
  world.settings.lb_coef = 0.03;
  world.train("other");
  CHECK(stored("other") == 0.03);
  world.settings.lb_coef.reset();
  const auto plain = world.train("run");
  CHECK(stored("run") == 0.01);
  world.settings.router.router = "top2:bias=0";
  world.settings.lb_coef = 0.01;
  CHECK(losses(world.train("still")) == losses(plain));
  CHECK(stored("still") == 0.01);
  world.settings.router.router = "top2:bias=0.125";
  world.settings.lb_coef.reset();
  const auto moved = world.train("moves");
  CHECK(moved[0].loss == plain[0].loss);
  CHECK(*moved[0].bias_max == 0);
  CHECK(*moved[1].bias_max == 0.125);
  CHECK(*moved[0].auxiliary == 0);
  CHECK(stored("moves") == 0);
}

TEST_CASE("a skipped step and a router that does not train change no bias") {
  World world("top2:bias=0.125");
  world.settings.trained = {"model.layers.0.*"};  // MoE layers are 0 and 2
  world.settings.steps = 3;                       // odd: a sum of steps of one size is not 0
  world.train();
  const auto biases = router_biases(world.settings.run / "final");
  REQUIRE(biases.size() == 2);
  CHECK_FALSE(biases[0] == std::vector<float>(4, 0));
  CHECK(biases[1] == std::vector<float>(4, 0));

  world.settings.run = world.dir / "skipped";
  world.settings.steps = 4;
  world.settings.trained.clear();
  world.settings.lr = 1e30;  // the loss of the second step is not finite
  world.settings.clip = 0;
  std::vector<StepRecord> records;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
  try {
    train::train(world.settings, callbacks);
  } catch (const std::runtime_error&) {  // after several skipped steps
  }
  REQUIRE(records.size() >= 3);
  REQUIRE(records[1].skipped);
  CHECK(*records[1].bias_max == 0.125);
  CHECK(*records[2].bias_max == 0.125);
}

TEST_CASE("lambda of a ReLU router follows the sparsity of each step and is saved") {
  World world("relu:k=1");
  double lambda = 1e-8;
  for (const auto& record : world.train()) {
    CHECK(*record.lambda == lambda);
    lambda = record.sparsity < 0.75 ? lambda * 1.2 : lambda / 1.2;
  }
  world.settings.model = world.settings.run / "final";
  CHECK(read_json(world.settings.model / "config.json")["moe"]["lambda"].get<double>() == lambda);
  world.settings.steps = 2;
  CHECK(*world.train("on").front().lambda == lambda);
  world.settings.lambda = 0.25;
  world.settings.trained = {"experts"};
  for (const auto& record : world.train("no router trains")) {
    CHECK(*record.lambda == 0.25);
  }
  CHECK(read_json(world.settings.run / "final/config.json")["moe"]["lambda"] == 0.25);
}

TEST_CASE("a run that needed --force for its gate resumes without it") {
  World world("top2");
  world.settings.router.router = "top2:gate=none";
  CHECK_THAT(user_error_of([&] { world.train(); }), contains_text("--force"));
  world.settings.force = true;
  train_until(world, 3);
  world.settings.force = false;
  CHECK(world.train().size() == 9);  // steps 4 to 12
}

TEST_CASE("metrics, config.json and settings.toml name z-loss and sequence balance only if on") {
  World world("top2+ir");
  world.settings.steps = 1;
  const auto moe_of = [&] {
    return read_json(world.settings.run / "final" / "config.json")["moe"];
  };
  const auto off = world.train();
  for (const char* key : {"z_loss", "sequence_balance_loss"}) {
    CHECK_FALSE(to_json(off[0]).contains(key));
  }
  CHECK_FALSE((moe_of().contains("z_coef") || moe_of().contains("seq_lb_coef")));

  world.settings.z_coef = 0.125;
  world.settings.seq_lb_coef = 0.0625;
  world.settings.router = {"top2+ir+fr", "", 4};
  const auto records = world.train("both");
  const OrderedJson line = to_json(records[0]);
  CHECK(line["z_loss"].get<double>() > 0);
  CHECK(line["sequence_balance_loss"].get<double>() > 0);
  CHECK(*records[0].auxiliary == Approx(0.01 * *records[0].load_balance + 0.125 * *records[0].z +
                                        0.0625 * *records[0].sequence_balance));
  const Json moe = moe_of();
  CHECK((moe["lb_coef"] == 0.01 && moe["z_coef"] == 0.125 && moe["seq_lb_coef"] == 0.0625));
  CHECK((moe["router"]["fr"] == true && moe["ep_ranks"] == 4));
  const std::string toml = read_file(world.settings.run / "settings.toml");
  CHECK(toml.find("lb-coef = 0.01\n") != std::string::npos);
  CHECK(toml.find("z-coef = 0.125\nseq-lb-coef = 0.0625\n") != std::string::npos);

  // A run from this folder takes its coefficients unless flags give others.
  world.settings.model = world.settings.run / "final";
  world.settings.z_coef.reset();
  world.settings.seq_lb_coef = 0;
  const auto on = world.train("on");
  CHECK(on[0].z);
  CHECK_FALSE(on[0].sequence_balance);
  CHECK((moe_of()["z_coef"] == 0.125 && !moe_of().contains("seq_lb_coef")));
}

TEST_CASE("a loss that is not finite ends the run with step and reason") {
  World world;
  world.settings.save_every = 1;
  world.settings.lr = 1e30;
  world.settings.schedule = ScheduleKind::kConstant;
  world.settings.warmup = 4;  // step 1 with lr / 4 already overflows
  std::string message;
  try {
    world.train();
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  INFO(message);
  CHECK(message.rfind("step 2: the ", 0) == 0);
  int step = 0;
  for (const Json& json : json_lines(read_file(world.settings.run / "metrics.jsonl"))) {
    ++step;
    CHECK(json.contains("skipped") == (step > 1));
    CHECK(json["skipped_steps"] == step - 1);
    if (step > 1) {
      CHECK(json["skipped"] == "not finite");
      CHECK(message.find(json["skipped_why"].get<std::string>()) != std::string::npos);
    }
  }
  CHECK(message.find("no checkpoint was saved before") != std::string::npos);
  CHECK_FALSE(fs::exists(world.settings.run / "final"));
  CHECK_FALSE(fs::exists(world.settings.run / "checkpoints" / "step-1"));
}

TEST_CASE("a requested stop finishes the step, saves a checkpoint and names it") {
  World world;
  TrainCallbacks callbacks;
  callbacks.stop_requested = [] { return true; };  // while the data are read: no run is made
  CHECK_THROWS_AS(train::train(world.settings, callbacks), Interrupted);
  CHECK_FALSE(fs::exists(world.settings.run));
  int64_t done = 0;
  callbacks.on_step = [&](const StepRecord& record) { done = record.step; };
  callbacks.stop_requested = [&] { return done == 3; };
  std::string message;
  try {
    train::train(world.settings, callbacks);
  } catch (const Interrupted& stopped) {
    message = stopped.what();
  }
  const auto saved = world.settings.run / "checkpoints" / "step-3";
  CHECK_THAT(message, contains_text("step 3 of 12") && contains_text(saved.string()));
  CHECK(fs::exists(saved / "model.safetensors"));
  CHECK_FALSE(fs::exists(world.settings.run / "final"));
}

TEST_CASE("a user error is found before the run folder is made") {
  struct Case {
    const char* router;
    void (*change)(World& world);
    const char* fact;
  };
  const Case cases[] = {
      {"", [](World& w) { w.settings.router.router = "top1"; }, "--upcycle N"},
      {"top1", [](World& w) { w.settings.router.ep_ranks = 3; }, "--ep-ranks 3"},
      {"relu:k=1", [](World& w) { w.settings.router.router = "top1"; }, "ReLU and softmax logits"},
      {"", [](World& w) { w.settings.z_coef = 0.01; }, "--z-coef 0.01"},
      {"", [](World& w) { w.settings.seq_len = 10; },
       "rows.jsonl line 4: the example has 11 tokens"},
      {"", [](World& w) { w.settings.seq_len = 129; }, "--seq-len 129"},
      {"", [](World& w) { w.settings.model = w.dir / "nothing"; }, "nothing"},
      {"", [](World& w) { w.settings.evaluation.data.push_back(w.dir / "none.jsonl"); },
       "none.jsonl"},
      {"",
       [](World& w) {
         w.settings.evaluation.data.push_back(w.dir / "bad.jsonl");
         write_file(w.dir / "bad.jsonl", "{\"input_ids\": [99999], \"labels\": [1]}\n");
       },
       "bad.jsonl line 1"},
      {"",
       [](World& w) { write_file(w.dir / "rows.jsonl", R"({"instruction":"a","output":"b"})"); },
       "tokenizer.model"}};
  for (const auto& [router, change, fact] : cases) {
    World world(router);
    change(world);
    CHECK_THAT(user_error_of([&] { world.train(); }), contains_text(fact));
    CHECK_FALSE(fs::exists(world.settings.run));
  }
}

TEST_CASE("a stopped run resumes bit for bit with every router and loss") {
  for (const auto& [router, with_losses] :
       {std::pair("", false), std::pair("topp:0.4", true), std::pair("relu:k=1", false),
        std::pair("top2+ir+fr:bias=0.01", false)}) {
    INFO(router);
    World world(router);
    world.settings.steps = 8;
    world.settings.global_batch = 8;
    if (with_losses) {
      world.settings.z_coef = world.settings.seq_lb_coef = 0.1;
    }
    world.train();
    const fs::path whole = world.settings.run;
    world.settings.save_every = 5;
    check_resumes(world, whole, {3, 4, 7});  // one step after a resume, and past a checkpoint
    CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
  }
}

TEST_CASE("a run from a bf16 folder resumes from its f32 weights") {
  World world;
  const io::Checkpoint parent(world.dir / "dense");
  model::UpcycleSettings upcycle;
  upcycle.out = world.dir / "bf16";
  upcycle.experts = 2;
  upcycle.router = route::parse_router("top1+ir");
  upcycle.dtype = io::DType::kBF16;
  model::upcycle(parent, model::plan_upcycle(parent, upcycle), upcycle);
  world.settings.model = world.dir / "bf16";
  world.settings.steps = 4;
  world.train();
  check_resumes(world, world.settings.run, {2});
}

TEST_CASE("a damaged checkpoint is named and the one before it is used") {
  World world("relu:k=1");
  world.settings.save_every = 2;
  world.settings.keep = 3;
  world.train();
  for (const int step : {2, 4, 6, 8, 10, 12}) {
    CHECK(fs::exists(world.settings.run / "checkpoints" / fmt::format("step-{}", step)) ==
          (step > 6));
  }
  const std::string weights = final_weights(world.settings.run);
  world.settings.run = world.dir / "damaged";
  train_until(world, 9);
  const fs::path newest = world.settings.run / "checkpoints" / "step-9" / "state.safetensors";
  fs::resize_file(newest, fs::file_size(newest) - 1);
  std::vector<std::string> notes;
  int64_t first_step = 0;
  TrainCallbacks callbacks;
  callbacks.on_start = [&](const RunPlan& plan) {
    notes = plan.notes;
    first_step = plan.first_step;
  };
  train::train(world.settings, callbacks);
  CHECK(first_step == 8);
  REQUIRE(notes.size() == 2);
  CHECK_THAT(notes[0], contains_text("state.safetensors"));
  CHECK_THAT(notes[1], contains_text("step 8"));
  CHECK(final_weights(world.settings.run) == weights);
}

TEST_CASE("only the weights named by --train change, and such a run resumes") {
  for (const std::string word : {"experts", "router", "embeddings"}) {
    INFO(word);
    World world("top2");
    world.settings.trained = {word};
    world.settings.steps = 4;
    world.train();
    const io::Checkpoint before(world.settings.model), after(world.settings.run / "final");
    int64_t changed = 0;
    for (const auto& info : before.tensors()) {
      const auto old_bytes = before.bytes(info.name), new_bytes = after.bytes(info.name);
      if (!std::equal(old_bytes.begin(), old_bytes.end(), new_bytes.begin(), new_bytes.end())) {
        ++changed;
        const bool is_expert = info.name.find(".experts.") != std::string::npos;
        const bool is_router = info.name.ends_with(".mlp.gate.weight");
        const bool is_embedding =
            info.name == "model.embed_tokens.weight" || info.name == "lm_head.weight";
        CHECK((word == "experts" ? is_expert : word == "router" ? is_router : is_embedding));
      }
    }
    CHECK(changed > 0);
    check_resumes(world, world.settings.run, {2});
  }
}

TEST_CASE("LoRA adapters train in place of the weights and are merged into the saved folder") {
  World world("top2:cf=inf");
  world.settings.lora = {4, 8, {"attention", "ffn"}};
  world.settings.steps = 6;
  const auto records = world.train();
  CHECK(records.back().loss < records.front().loss);
  const io::Checkpoint before(world.settings.model), after(world.settings.run / "final");
  for (const auto& info : before.tensors()) {
    INFO(info.name);
    const auto old_bytes = before.bytes(info.name), new_bytes = after.bytes(info.name);
    const bool same = std::equal(old_bytes.begin(), old_bytes.end(), new_bytes.begin());
    const bool is_frozen = info.name.find("norm") != std::string::npos ||
                           info.name.find("embed") != std::string::npos ||
                           info.name.find("shared_expert") != std::string::npos ||
                           info.name == "lm_head.weight";
    CHECK(same == is_frozen);  // every matrix has an adapter, and the router trains
  }
  CHECK(before.tensors().size() == after.tensors().size());
  const fs::path whole = world.settings.run;
  check_resumes(world, whole, {2});
}

TEST_CASE("bf16 runs learn and resume bit for bit, with or without recomputation") {
  for (const char* router : {"", "top1+ir+fr"}) {
    INFO(router);
    World world(router);
    const auto in_f32 = losses(world.train());
    world.settings.compute.precision = model::Precision::kBf16;
    const auto in_bf16 = losses(world.train("bf16"));
    CHECK(in_bf16 != in_f32);
    CHECK(in_bf16.front() == Approx(in_f32.front()).epsilon(0.005));
    CHECK(in_bf16.back() < 0.8 * in_bf16.front());
    world.settings.compute.recompute = model::Recompute::kLayer;
    check_resumes(world, world.settings.run, {7});
  }
}

// Runs with bf16 moments and with skipped outliers, and the validation of state.json.

TEST_CASE("a run with bf16 moments stores them as bf16 and resumes bit for bit") {
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
  const at::Tensor weight = model.parameters().front().tensor.detach();
  weight.fill_(7);
  CHECK_THAT(
      user_error_of([&] { restore(checkpoint, model, optimizer); }),
      contains_text("is BF16") && contains_text("F32") && contains_text("--optimizer-state"));
  CHECK(weight.eq(7).all().item<bool>());  // a refused resume copies nothing
  world.settings.adamw.moments = io::DType::kF32;
  CHECK_THAT(user_error_of([&] { world.train(); }),
             contains_text("optimizer-state was \"bf16\", is \"fp32\""));
  world.settings.adamw.moments = io::DType::kBF16;
  check_resumes(world, whole, {});
  CHECK(steady_metrics(world.settings.run) == steady_metrics(whole));
}

TEST_CASE("--skip-outliers skips the step of an outlier, counts it and says why") {
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

TEST_CASE("a step without a target has no loss, is counted and is left out of the statistics") {
  World world;
  std::string text;
  for (int example = 0; example < 10; ++example) {  // four rows, a target in the last one
    std::vector<int> ids, labels;
    for (int t = 0; t < 40; ++t) {
      ids.push_back(5 + (example + t) % 7);
      labels.push_back(t < 35 ? -100 : ids.back());
    }
    text += OrderedJson{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
  }
  write_file(world.dir / "rows.jsonl", text);
  world.settings.shuffle = false;
  world.settings.pack = data::Pack::kStream;
  world.settings.seq_len = 10;
  world.settings.micro_batch = 1;
  world.settings.steps = 40;
  world.settings.skip_outliers = 6;
  world.settings.save_every = 40;
  std::vector<StepRecord> records;
  std::vector<std::string> warnings;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepRecord& record) { records.push_back(record); };
  callbacks.on_warning = [&](const std::string& sentence) { warnings.push_back(sentence); };
  train::train(world.settings, callbacks);
  for (const auto& record : records) {
    CHECK(record.has_loss() == (record.step % 4 == 0));
    CHECK(record.steps_without_targets == record.step - record.step / 4);
    CHECK(to_json(record)["loss"].is_null() == !record.has_loss());
    CHECK_FALSE(record.skipped);
  }
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], contains_text("step 1 has no token with loss"));
  const fs::path run = world.settings.run;
  const TrainState state = read_train_state(run / "checkpoints" / "step-40");
  CHECK(state.outliers.losses.size() == 10);
  CHECK(state.steps_without_targets == 30);
  CHECK(read_history(run).find_curve("loss")->first.step == 4);
  CHECK_THAT(report_page(run, read_history(run)), contains_text("30 of 40 steps had no token"));
}

TEST_CASE("an invalid value in state.json is refused with file and key") {
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
