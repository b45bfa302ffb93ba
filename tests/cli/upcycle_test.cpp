// moe upcycle: output folder, reports, certificates and invalid flags. --upcycle of moe train
// and moe eval.

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

// Returns the "warning:" lines of upcycle.json as moe prints them.
std::string warning_lines(const Json& report) {
  std::string lines;
  for (const auto& warning : report["warnings"]) {
    lines += "warning: " + warning.get<std::string>() + "\n";
  }
  return lines;
}

// Upcycles the model in recipes/tiny, which has a tokenizer, into `folder`/out.
RunResult upcycle_tiny(const TempDir& folder, const Args& flags) {
  return succeed(
      joined({"upcycle", tiny("model"), "-o", folder / "out", "--force", "--quiet"}, flags));
}

struct Fixture : TrainingFixture {
  // Trains "dense" with the flags `opened` and `flags`, and the model `written` with `flags` only.
  // Checks that the final models are equal.
  void check_equal(const Args& opened, const std::string& written, const Args& flags) const {
    CAPTURE(opened, flags);
    const Args all = joined(flags, {"--lr", "1e-2", "--quiet", "--force"});
    succeed(training(joined(opened, all), "dense", "opened"));
    succeed(training(all, written, "plain"));
    CHECK(weights("opened") == weights("plain"));
    CHECK(read("opened/final/config.json") == read("plain/final/config.json"));
  }
};

const Args kOpened = {"--upcycle",      "4", "--layers", "all",
                      "--upcycle-seed", "3", "--router", "top1+ir+fr"};

TEST_CASE("moe upcycle writes a model folder and prints a summary") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const std::string dense = folder / "dense", out = folder / "out";
  const auto run = succeed({"upcycle", dense, "-o", out, "--experts", "4", "--quiet"});
  CHECK(run.err.empty());
  check_contains(run.out,
                 {"layers 0, 2 of 3", "4 experts", "router top2:cf=inf", "moe train " + out});
  CHECK_THAT(run.out, !contains_text("advice "));
  CHECK(names_in(folder / "out") ==
        Args{".moe-output", "config.json", "model.safetensors", "upcycle.json"});
  CHECK(names_in(folder.path()) == Args{"dense", "out"});
}

TEST_CASE("moe upcycle --dry-run prints size, parameters and time, and writes nothing") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const std::string dense = folder / "dense", out = folder / "out";
  const Args args = {"upcycle", dense, "-o", out, "--router", "top1", "--shard-size", "10KB"};
  const Json dry = parse_json(succeed(joined(args, {"--dry-run", "--json"})).out, "stdout");
  CHECK(names_in(folder.path()) == Args{"dense"});
  check_contains(succeed(args).out, {"\nadvice ", "--lb-coef 0.01 to 0.001"});
  CHECK(fs::exists(folder / "out/model.safetensors.index.json"));
  const Json done = read_json(folder / "out/upcycle.json");
  CHECK(dry["tensor_bytes"] == done["tensor_bytes"]);
  CHECK(dry["parameters"] == done["parameters"]);
  CHECK(dry["estimated_seconds"].get<double>() > 0);
}

TEST_CASE("moe upcycle --shared-expert keeps the dense feed-forward, and moe inspect shows it") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const std::string dense = folder / "dense", out = folder / "out";
  const auto run = succeed({"upcycle", dense, "-o", out, "--shared-expert", "--router",
                            "top1:cf=0.25", "--verify", "--quiet"});
  check_contains(run.out, {"router top1:cf=0.25", "identical"});
  const Json stored = read_json(folder / "out/upcycle.json");
  CHECK(stored["certificate"]["max_abs_logit_difference"] == 0.0);
  CHECK(stored["certificate"]["preserves_function"] == true);
  check_contains(succeed({"inspect", out}).out,
                 {"8 experts of width 24", "shared expert of width 24", "identical"});
}

TEST_CASE("--gate-scale auto measures and stores a scale, and prints its effect") {
  const TempDir folder;
  const auto run =
      upcycle_tiny(folder, {"--router", "topp:0.4", "--gate-scale", "auto", "--verify"});
  check_contains(run.out, {"gate scale ", "\ncertificate ", "\nunscaled     different",
                           "router topp:0.4, gate_scale 1: "});
  const Json stored = read_json(folder / "out/upcycle.json");
  const Json& with = stored["certificate"];
  CHECK(stored["gate_scale"] == read_json(folder / "out/config.json")["moe"]["gate_scale"]);
  CHECK(with["mean_kl"] < with["without_gate_scale"]["mean_kl"]);
  CHECK(stored["calibration"]["text"] == "the embedded text");
}

TEST_CASE("moe upcycle refuses invalid flags by name and writes nothing") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  fs::create_directory(folder / "there");
  const std::string dense = folder / "dense", there = folder / "there", out = folder / "out",
                    none = folder / "nosuch";
  const auto before = names_in(folder.path());
  for (const auto& [args, fact] : std::vector<std::pair<Args, std::string>>{
           {{dense, "-o", there}, there + ": exists already"},
           {{out, "-o", out}, out},
           {{dense, "-o", out, "--router", "top1:cf=2", "--cf", "3"}, "--cf 3"},
           {{dense, "-o", out, "--verify-text", "text.txt"}, dense + ": no tokenizer"},
           {{dense, "-o", out, "--expert", dense, "--experts", "8"}, "--experts 8"},
           {{tiny("model"), "-o", out, "--router", "topp:0.4", "--gate-scale", "auto",
             "--calibration", none},
            none},
           {{tiny("model"), "-o", out, "--router-init", "cluster:" + none}, none + ": "}}) {
    check_refused(joined({"upcycle"}, args), fact);
    CHECK(names_in(folder.path()) == before);
  }
}

// Returns the text of the line "function" of moe inspect.
std::string inspected_function(const std::string& folder) {
  const auto run = succeed({"inspect", folder});
  const size_t at = run.out.find("\nfunction      ");
  REQUIRE(at != std::string::npos);
  return run.out.substr(at + 15, run.out.find('\n', at + 1) - at - 15);
}

TEST_CASE("a certificate is valid only for the weights and config that were measured") {
  const TempDir folder;
  const std::string out = folder / "out";
  upcycle_tiny(folder, {"--router", "top2:cf=inf", "--verify"});
  CHECK(inspected_function(out).starts_with("identical"));
  const Json certificate = read_json(folder / "out/upcycle.json")["certificate"];
  CHECK(certificate["max_abs_logit_difference"].get<double>() <=
        certificate["tolerance"].get<double>());
  CHECK(certificate["tokens"].get<int64_t>() > 0);

  const auto edited = [&](const char* name, const std::function<void()>& edit) {
    CAPTURE(name);
    fs::remove_all(folder / "copy");
    fs::copy(out, folder / "copy");
    edit();
    const std::string function = inspected_function((folder / "copy").string());
    UNSCOPED_INFO(function);
    return function;
  };
  // One byte near the end of a tensor.
  CHECK(edited("weight", [&] {
          std::fstream file(folder / "copy/model.safetensors",
                            std::ios::in | std::ios::out | std::ios::binary);
          file.seekp(-1000, std::ios::end);
          file.put('x');
        }).starts_with("not measured for these weights: the weights changed"));
  CHECK(edited("config", [&] {
          OrderedJson config = OrderedJson::parse(read_file(folder / "copy/config.json"));
          config["moe"]["router"]["capacity_factor"] = 0.25;
          write_file(folder / "copy/config.json", config.dump());
        }).starts_with("not measured for these weights: config.json changed"));
  CHECK(edited("older certificate", [&] {
          OrderedJson report = OrderedJson::parse(read_file(folder / "copy/upcycle.json"));
          report["certificate"].erase("measured_on");
          write_file(folder / "copy/upcycle.json", report.dump());
        }).starts_with("not known: "));
  CHECK(edited("broken report", [&] {
          write_file(folder / "copy/upcycle.json", "[");
        }).starts_with("not known: "));

  // Training writes no certificate, and a copy of the parent's certificate is not valid.
  succeed({"train", out, "-o", folder / "run", "--data", tiny("instruct.jsonl"), "--steps", "1",
           "--seq-len", "64", "--global-batch", "1", "--quiet"});
  const std::string final_model = folder / "run/final";
  CHECK(inspected_function(final_model).starts_with("not measured"));
  for (const char* name : {"upcycle.json", "config.json"}) {
    fs::copy(folder / "out" / name, folder / "run/final" / name,
             fs::copy_options::overwrite_existing);
  }
  CHECK(inspected_function(final_model).starts_with("not measured for these weights: the weights"));
}

TEST_CASE("moe upcycle refuses weights that are not finite and names the tensor") {
  const TempDir folder;
  const auto write_with = [&](const std::string& tensor, float value) {
    fs::remove_all(folder / "dense");
    write_tiny_checkpoint(folder / "dense");
    const fs::path file = folder / "dense/model.safetensors";
    const std::string text = read_file(file);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
    const Json header = Json::parse(text.substr(8, header_bytes));
    const auto end = header[tensor]["data_offsets"][1].get<uint64_t>();
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(8 + header_bytes + end - sizeof value));
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [tensor, value, flags] : std::vector<std::tuple<std::string, float, Args>>{
           {"model.layers.0.mlp.down_proj.weight", infinity, {}},
           {"model.layers.2.mlp.up_proj.weight", std::nanf(""), {"--granularity", "2"}},
           {"model.layers.1.self_attn.q_proj.weight", -infinity, {"--dtype", "bf16"}},
           {"model.embed_tokens.weight", infinity, {"--router-entropy", "0.7"}}}) {
    write_with(tensor, value);
    check_refused(
        run_moe(joined({"upcycle", folder / "dense", "-o", folder / "out", "--quiet"}, flags)),
        "tensor '" + tensor + "'");
    CHECK(names_in(folder.path()) == Args{"dense"});
  }
  // moe train --upcycle refuses the parent, too. With sharded weights each rank checks its part.
  write_training_rows(folder / "rows.jsonl", 8);
  for (const Args& flags :
       {Args{"--micro-batch", "1"}, {"--micro-batch", "2", "--ranks", "2", "--shard", "weights"}}) {
    const auto trained = run_moe(
        joined({"train", folder / "dense", "--upcycle", "2", "--data", folder / "rows.jsonl", "-o",
                folder / ("run" + flags[1]), "--steps", "1", "--seq-len", "8", "--quiet"},
               flags));
    CHECK(trained.exit_code == 2);
    CHECK_THAT(trained.err, contains_text("NaN or infinite"));
  }
}

TEST_CASE("moe upcycle mixes parents and varies copies, and --verify measures the difference") {
  const TempDir folder;
  const std::string base = folder / "base", code = folder / "code", out = folder / "out";
  write_tiny_checkpoint(base);
  write_tiny_checkpoint(code, {.seed = 2});
  const auto run = succeed({"upcycle", base, "-o", out, "--expert", base, "--expert", code + ":3",
                            "--rest", "mean", "--vary", "drop:0.5", "--verify", "--json"});
  const Json json = parse_json(run.out, "stdout");
  const Json stored = read_json(folder / "out/upcycle.json");
  for (const auto& [key, value] : stored.items()) {
    CHECK(json[key] == value);
  }
  CHECK(json["experts"] == 4);
  CHECK(json["experts_from"][1]["experts"] == Json({1, 2, 3}));
  CHECK(json["rest"] == "mean");
  CHECK(json["vary"] == "drop:0.5");
  const Json& certificate = json["certificate"];
  CHECK(certificate["preserves_function"] == false);
  check_contains(certificate["words"], {"not preserved", "other parents", "--vary drop:0.5"});
  CHECK(certificate["verdict"] != "identical");
  CHECK(certificate["mean_kl"].get<double>() > 0);
  CHECK(certificate["parent_perplexity"].get<double>() > 1);
  CHECK(certificate["perplexity"] != certificate["parent_perplexity"]);

  CHECK_THAT(succeed({"inspect", out, "--against", code}).out,
             contains_text("compared with " + code));
}

TEST_CASE("moe upcycle initializes routers from prompts or clusters and describes each layer") {
  const TempDir folder;
  const std::string town = folder / "town", food = folder / "food";
  for (const auto& parent : {town, food}) {
    fs::copy(tiny("model"), parent, fs::copy_options::recursive);
  }
  write_file(folder / "prompts.json", R"({"town": ["Where does Ada live?"],
    "1": {"positive": ["What does Ada eat?"], "negative": ["Where does Ada live?"]}})");
  write_file(folder / "questions.jsonl",
             R"({"instruction": "Where does Ada live?", "input": "", "output": "Arden"})"
             "\n");
  for (const Args& flags :
       {Args{"--router-init", "prompts:" + (folder / "prompts.json").string(), "--expert", town,
             "--expert", food, "--router-entropy", "0.4"},
        Args{"--router-init", "cluster:" + (folder / "questions.jsonl").string(), "--experts",
             "4"}}) {
    CAPTURE(flags);
    const auto run = upcycle_tiny(folder, flags);
    const Json stored = read_json(folder / "out/upcycle.json");
    const Json& layers = stored["router_init"]["layers"];
    REQUIRE(layers.size() == stored["layers"].size());
    for (const auto& layer : layers) {
      CHECK(layer["entropy"].get<double>() ==
            Approx(flags.back() == "0.4" ? 0.4 : 0.7).margin(2e-4));
      CHECK_THAT(run.out,
                 contains_text("router init  " + layer["words"].get<std::string>() + "\n"));
    }
    CHECK(run.err == warning_lines(stored));
  }
}

// --upcycle N of moe train and eval: results equal those with a model written by moe upcycle.

TEST_CASE("train --upcycle gives bitwise the result of training the upcycled model") {
  const Fixture fixture;
  fixture.upcycle("written", {"--layers", "all", "--seed", "3", "--router", "top1+ir+fr"});
  fixture.check_equal(kOpened, "written", {"--steps", "2", "--pack", "none", "--lora", "2"});
  fixture.check_equal(kOpened, "written", {"--steps", "2", "--ranks", "2"});
  check_contains(fixture.read("opened/settings.toml"),
                 {"upcycle = 4\n", "layers = \"all\"\n", "upcycle-seed = 3\n"});
}

TEST_CASE("--shard weights gives bitwise the result of unsharded weights") {
  const Fixture fixture;
  const Args flags = {"--steps", "2", "--micro-batch", "2", "--global-batch", "4",
                      "--ranks", "2", "--replicas",    "2", "--quiet"};
  fixture.upcycle("moe", {"--router", "top1+ir+fr"});
  succeed(fixture.training(flags, "moe", "whole"));
  succeed(fixture.training(joined(flags, {"--shard", "weights"}), "moe", "sharded"));
  CHECK(fixture.weights("sharded") == fixture.weights("whole"));
  check_refused(fixture.train({"--shard", "experts"}),
                "--shard 'experts' is unknown; known: optimizer, weights");
}

TEST_CASE("train --upcycle --shared-expert equals training the upcycled model") {
  const Fixture fixture;
  fixture.upcycle("shared", {"--shared-expert", "--router", "top1+ir+fr"});
  fixture.check_equal({"--upcycle", "4", "--shared-expert", "--router", "top1+ir+fr"}, "shared",
                      {"--steps", "2", "--ranks", "2"});
  CHECK_THAT(fixture.read("opened/settings.toml"), contains_text("shared-expert = true\n"));
  check_refused(fixture.train({"--steps", "1", "--shared-expert"}, "shared"),
                "--shared-expert: needs a dense folder");
  CHECK_FALSE(fs::exists(fixture.dir / "run"));
  const auto parameters = [&](const Args& more) {
    const auto bench =
        succeed(joined({"bench", "train", fixture.path("dense"), "--upcycle", "4", "--repeats", "1",
                        "--rows", "1", "--seq-len", "8", "--threads", "1", "--json"},
                       more));
    return parse_json(bench.out, "bench").at("parameters").get<int64_t>();
  };
  // Two layers, three matrices [16, 24] and the gate [16] of the shared expert.
  CHECK(parameters({"--shared-expert"}) - parameters({}) == 2 * (3 * 16 * 24 + 16));
}

TEST_CASE("train --upcycle --granularity equals training the upcycled model, and resumes") {
  const Fixture fixture;
  const Args flags = {"--layers", "all",       "--granularity", "2",
                      "--router", "top2:cf=1", "--ep-ranks",    "2"};
  fixture.upcycle("fine", joined({"--seed", "3"}, flags));
  const Args opened = joined({"--upcycle", "4", "--upcycle-seed", "3"}, flags);
  fixture.check_equal(opened, "fine", {"--steps", "4", "--save-every", "2"});
  check_contains(fixture.read("opened/settings.toml"),
                 {"granularity = 2\n", "router = \"top2:", "cf=1,"});
  const auto compared = [&](const std::string& model) {
    return parse_json(
        succeed({"inspect", fixture.path(model), "--json", "--against", fixture.path("dense")}).out,
        "stdout");
  };
  const Json trained = compared("opened/final");
  CHECK(trained["moe"]["granularity"] == 2);
  CHECK(trained["moe"]["experts"] == 8);
  // The copies are equal at the start and diverge in training.
  const auto cosine = [](const Json& json) {
    return json["against"]["layers"][0]["cosine_between_experts"].get<double>();
  };
  CHECK(cosine(trained) < 0.9999);
  CHECK(cosine(compared("fine")) == Approx(1).margin(1e-12));

  const std::string whole = fixture.weights("opened");
  succeed({"train", "--config", fixture.path("opened/settings.toml"), "-o", fixture.path("copy"),
           "--quiet"});
  CHECK(fixture.weights("copy") == whole);
  fs::remove_all(fixture.dir / "opened/final");
  fs::remove_all(fixture.dir / "opened/checkpoints/step-4");
  Args again = joined(opened, {"--steps", "4", "--save-every", "2", "--lr", "1e-2", "--quiet"});
  succeed(fixture.training(again, "dense", "opened"));
  CHECK(fixture.weights("opened") == whole);
  again[1] = "2";
  again[7] = "4";
  const auto refused = fixture.train(again, "dense", "opened");
  CHECK(refused.exit_code == 2);
  check_contains(refused.err, {"upcycle was 4, is 2", "granularity was 2, is 4"});
}

TEST_CASE("eval --upcycle evaluates a dense model as a mixture and stores it in results.json") {
  const TempDir dir;
  const std::string dense = tiny("model"), moe = dir / "moe", requests = dir / "r.jsonl";
  write_file(requests, R"({"context": "The opposite of", "continuation": " big"})"
                       "\n"
                       R"({"context": "One two", "continuation": " three four"})"
                       "\n");
  const Args flags = {"--router", "top2+ir+fr:cf=0.5", "--ep-ranks", "2", "--granularity", "4"};
  succeed(joined({"upcycle", dense, "-o", moe, "--quiet"}, flags));
  const Args eval = {"--requests", requests, "--quiet", "--bos", "on"};
  const auto written = succeed(joined({"eval", moe}, eval));
  const auto opened = succeed(joined({"eval", dense, "--upcycle", "8"}, joined(eval, flags)));
  CHECK(std::count(opened.out.begin(), opened.out.end(), '\n') == 2);
  CHECK(opened.out == written.out);
  succeed({"eval", dense, "--upcycle", "8", "--tasks", tiny("quiz.jsonl"), "--limit", "1", "-o",
           dir / "scores", "--quiet"});
  CHECK_THAT(read_file(dir / "scores/results.json"), contains_text("\"upcycle\""));
}

TEST_CASE("the entropy of random routers is measured without the BOS of the text") {
  const TempDir dir;
  const std::string text = "The number before 31 is 30.", file = dir / "text.txt";
  write_file(file, text);
  succeed({"upcycle", tiny("model"), "-o", dir / "moe", "--experts", "4", "--router-entropy", "0.5",
           "--calibration", file, "--quiet"});
  const Json ids = Json::parse(succeed({"tokenize", tiny("model"), text, "--json"}).out)["ids"];
  CHECK(read_json(dir / "moe/upcycle.json")["router_init"]["tokens"] == ids.size());
}

TEST_CASE("--upcycle refuses mixtures and unsuitable settings") {
  const Fixture fixture;
  fixture.upcycle("written");
  for (const auto& [model, flags, fact] : std::vector<std::tuple<std::string, Args, std::string>>{
           {"written", {"--upcycle", "4"}, "is a mixture of experts already"},
           {"dense",
            {"--upcycle", "2", "--granularity", "2", "--router", "top4"},
            "asks for 4 experts per token, the layers have 2"}}) {
    CAPTURE(model, flags);
    check_refused(fixture.train(flags, model), fact);
    CHECK_FALSE(fs::exists(fixture.dir / "run"));
  }
}

}  // namespace
}  // namespace moe
