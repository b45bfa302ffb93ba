#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::contains_text;
using test::run_moe;
using test::TempDir;
using Words = std::vector<std::string>;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Returns the "warning:" lines of upcycle.json as moe prints them.
std::string warning_lines(const Json& report) {
  std::string lines;
  for (const auto& warning : report["warnings"]) {
    lines += "warning: " + warning.get<std::string>() + "\n";
  }
  return lines;
}

// Upcycles the model in recipes/tiny, which has a tokenizer, into `folder`/out.
test::RunResult upcycle_tiny(const TempDir& folder, const Words& flags) {
  return run_moe(joined({"upcycle", (moe::test::source_folder() / "recipes/tiny/model").string(),
                         "-o", (folder / "out").string(), "--force", "--quiet"},
                        flags));
}

TEST_CASE("moe upcycle writes a folder and describes it on stdout", "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const auto run = run_moe({"upcycle", dense, "-o", out, "--experts", "4", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK_THAT(run.out, contains_text("layers 0, 2 of 3") && contains_text("4 experts") &&
                          contains_text("router top2:cf=inf") && contains_text("moe train " + out));
  CHECK_THAT(run.out, !contains_text("advice "));
  CHECK(names_in(folder / "out") == std::vector<std::string>{".moe-output", "config.json",
                                                             "model.safetensors", "upcycle.json"});
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense", "out"});
}

TEST_CASE("moe upcycle --json prints the report of upcycle.json", "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const auto run = run_moe({"upcycle",      (folder / "dense").string(),
                            "-o",           (folder / "out").string(),
                            "--layers",     "all",
                            "--experts",    "4",
                            "--router",     "top1+ir",
                            "--cf",         "0.5",
                            "--ep-ranks",   "2",
                            "--router-std", "0.5",
                            "--seed",       "9",
                            "--dtype",      "bf16",
                            "--shard-size", "10KB",
                            "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "stdout");
  CHECK(json["router"] == "top1+ir:cf=0.5");
  CHECK(json["layers"] == Json({0, 1, 2}));
  CHECK(json["router_init"] == Json({{"std", 0.5}, {"seed", 9}}));
  CHECK(json["ep_ranks"] == 2);
  CHECK(json["dtype"] == "bfloat16");
  CHECK(json["shard_bytes"] == 10000);
  const Json stored = read_json(folder / "out/upcycle.json");
  for (const auto& [key, value] : stored.items()) {
    CHECK(json[key] == value);
  }
  CHECK(std::filesystem::exists(folder / "out/model.safetensors.index.json"));
}

TEST_CASE("moe upcycle --dry-run prints bytes, parameters and time, and writes nothing",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  auto run = run_moe({"upcycle", dense, "-o", out, "--router", "top1", "--dry-run", "--json"});
  const Json json = parse_json(run.out, "stdout");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
  run = run_moe({"upcycle", dense, "-o", out, "--router", "top1"});
  REQUIRE(run.exit_code == 0);
  CHECK_THAT(run.out, contains_text("\nadvice ") && contains_text("--lb-coef 0.01 to 0.001"));
  const Json done = read_json(folder / "out/upcycle.json");
  CHECK(json["tensor_bytes"] == done["tensor_bytes"]);
  CHECK(json["parameters"] == done["parameters"]);
  CHECK(json["estimated_seconds"].get<double>() > 0);
}

TEST_CASE("moe upcycle --shared-expert keeps the dense feed-forward, and moe inspect shows it",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const auto dry = run_moe({"upcycle", dense, "-o", out, "--shared-expert", "--dry-run", "--json"});
  const auto run = run_moe({"upcycle", dense, "-o", out, "--shared-expert", "--router",
                            "top1:cf=0.25", "--verify", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK_THAT(run.out, contains_text("router top1:cf=0.25") && contains_text("identical"));
  const Json stored = read_json(folder / "out/upcycle.json");
  CHECK(stored["certificate"]["max_abs_logit_difference"] == 0.0);
  CHECK(stored["certificate"]["preserves_function"] == true);
  CHECK(parse_json(dry.out, "stdout")["parameters"]["total"] == stored["parameters"]["total"]);
  CHECK_THAT(run_moe({"inspect", out}).out, contains_text("8 experts of width 24") &&
                                                contains_text("shared expert of width 24") &&
                                                contains_text("identical"));
}

TEST_CASE("--gate-scale auto measures and stores a scale, and shows its effect", "[cli][upcycle]") {
  const TempDir folder;
  for (const char* router : {"topp:0.4", "relu:k=1"}) {
    CAPTURE(router);
    const auto run = upcycle_tiny(folder, {"--router", router, "--gate-scale", "auto", "--verify"});
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK_THAT(run.out, contains_text("gate scale ") && contains_text("\ncertificate ") &&
                            contains_text("\nwithout it   different") &&
                            contains_text("router " + std::string(router) + ", gate_scale 1: "));
    const Json stored = read_json(folder / "out/upcycle.json");
    const Json& with = stored["certificate"];
    CHECK(stored["gate_scale"] == read_json(folder / "out/config.json")["moe"]["gate_scale"]);
    // The sums of a ReLU router vary too much between tokens for one factor to help reliably.
    if (std::string(router) == "topp:0.4") {
      CHECK(with["mean_kl"] < with["without_gate_scale"]["mean_kl"]);
    }
    CHECK(stored["calibration"]["text"] == "the embedded text");
  }
}

TEST_CASE("dead experts have a warning on standard error and in upcycle.json", "[cli][upcycle]") {
  const TempDir folder;
  test::write_file(folder / "text.txt", "a");  // too few tokens to reach every expert
  const auto run = upcycle_tiny(folder, {"--router", "relu:k=1", "--gate-scale", "auto",
                                         "--calibration", (folder / "text.txt").string()});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err == warning_lines(read_json(folder / "out/upcycle.json")));
  CHECK_THAT(run.err, contains_text("dead"));
}

TEST_CASE("moe upcycle --granularity multiplies experts and experts per token", "[cli][upcycle]") {
  const TempDir folder;
  const std::string out = (folder / "out").string();
  const Words flags = {"--experts", "4", "--granularity", "4"};
  auto run = upcycle_tiny(folder, joined(flags, {"--router", "top2+ir"}));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK_THAT(run.out, contains_text("16 experts") && contains_text("router top8+ir") &&
                          contains_text("not preserved") && contains_text("4 slices"));
  const Json config = read_json(folder / "out/config.json");
  CHECK(config["num_experts"] == 16);
  CHECK(config["num_experts_per_tok"] == 8);
  CHECK(config["moe"]["granularity"] == 4);
  CHECK(config["moe"]["ep_ranks"] == 4);
  const auto inspected = run_moe({"inspect", out, "--json"});
  const Json inspection = parse_json(inspected.out, "stdout")["moe"];
  CHECK(inspection["preserves_function"].get<std::string>().starts_with("not measured"));
  CHECK(inspection["function"]["state"] == "not measured");
  CHECK(inspection["function"]["verdict"].is_null());

  run = upcycle_tiny(folder, joined(flags, {"--router", "top2:cf=inf", "--verify", "--json"}));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json report = parse_json(run.out, "stdout");
  CHECK(report["granularity"] == 4);
  CHECK(report["router"] == "top8:cf=inf");
  CHECK(report["certificate"]["preserves_function"] == true);
  CHECK(report["certificate"]["max_abs_logit_difference"].get<double>() < 1e-4);

  std::filesystem::remove_all(out);
  run = upcycle_tiny(folder, joined(flags, {"--dry-run", "--json"}));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(parse_json(run.out, "stdout")["tensor_bytes"] == report["tensor_bytes"]);
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("the real stories260K gets a certificate below 1e-4", "[cli][upcycle]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const auto run = run_moe({"upcycle", (test::shared_data() / "stories260K-hf").string(), "-o",
                            (folder / "out").string(), "--layers", "even", "--experts", "8",
                            "--router", "top2:cf=inf", "--verify"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json certificate = read_json(folder / "out/upcycle.json")["certificate"];
  CHECK(certificate["max_abs_logit_difference"].get<double>() < 1e-4);
  CHECK(certificate["mean_kl"].get<double>() < 1e-6);
}

// Checks that a command ended with exit code 2 and a one-line message that has `fact`.
void check_refused(const test::RunResult& run, const std::string& fact) {
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, contains_text(fact));
  CHECK(run.err.find('\n') + 1 == run.err.size());
}

TEST_CASE("moe upcycle refuses invalid flags of a folder without tokenizer and writes nothing",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  test::write_tiny_checkpoint(folder / "wide", {.hidden = 32});
  std::filesystem::create_directory(folder / "there");
  const std::string dense = (folder / "dense").string(), wide = (folder / "wide").string(),
                    there = (folder / "there").string(), out = (folder / "out").string();
  const auto before = names_in(folder.path());
  for (const auto& [words, fact] : std::vector<std::pair<Words, std::string>>{
           {{dense, "-o", there}, there + ": exists already"},
           {{dense}, "--out"},
           {{out, "-o", out}, out},
           {{dense, "-o", out, "--experts", "1"}, "'top2:cf=inf' asks for 2 experts"},
           {{dense, "-o", out, "--layers", "0,7"}, "--layers 0,7: layer 7"},
           {{dense, "-o", out, "--shard-size", "huge"}, "--shard-size"},
           {{dense, "-o", out, "--dtype", "fp8"}, "fp8"},
           {{dense, "-o", out, "--router-std", "-1"}, "--router-std"},
           {{dense, "-o", out, "--router", "top1:cf=2", "--cf", "3"}, "--cf 3"},
           {{dense, "-o", out, "--expert", "4", "--layrs", "odd"}, "did you mean"},
           {{dense, "-o", out, "--verify-text", "text.txt"}, dense + ": no tokenizer"},
           {{dense, "-o", out, "--expert", wide + ":2"}, "hidden_size is 32, but 16"},
           {{dense, "-o", out, "--expert", (folder / "nosuch:2").string()}, "nosuch"},
           {{dense, "-o", out, "--expert", dense + ":0"}, "number of copies"},
           {{dense, "-o", out, "--expert", dense, "--experts", "8"}, "--experts 8"},
           {{dense, "-o", out, "--rest", "mean"}, "--rest mean"},
           {{dense, "-o", out, "--vary", "drop:1"}, "--vary drop:1: the share"},
           {{dense, "-o", out, "--vary", "drop:0"}, "--vary drop:0: the share"},
           {{dense, "-o", out, "--vary", "drop:0.01"}, "--vary drop:0.01: less than one of 24"},
           {{dense, "-o", out, "--vary", "stir"}, "--vary 'stir'"}}) {
    CAPTURE(words);
    check_refused(run_moe(joined({"upcycle"}, words)), fact);
    CHECK(names_in(folder.path()) == before);
  }
}

TEST_CASE("moe upcycle refuses invalid gate scales, granularities and routers and writes nothing",
          "[cli][upcycle]") {
  const TempDir folder;
  const auto file = [&](const char* name, const std::string& text) {
    test::write_file(folder / name, text);
    return (folder / name).string();
  };
  const std::string none = (folder / "nosuch").string();
  const std::string two = file("two.json", R"({"0": ["a"], "1": ["b"]})");
  const std::string broken = file("broken.json", R"({"0": ["a")");
  const std::string alike = file("alike.json", R"({"0": ["a cup"], "1": ["a cup"]})");
  const std::string few = file("few.txt", "a\n");
  const std::string empty = file("empty.txt", "");
  const auto before = names_in(folder.path());
  for (const auto& [flags, fact] : std::vector<std::pair<Words, std::string>>{
           {{"--gate-scale", "big"}, "--gate-scale 'big'"},
           {{"--gate-scale", "0"}, "--gate-scale 0"},
           {{"--calibration", "text.txt"}, "--calibration text.txt"},
           {{"--router", "topp:0.4", "--gate-scale", "auto", "--calibration", none}, none},
           {{"--granularity", "0"}, "--granularity 0"},
           {{"--granularity", "7"}, "give a divisor of"},
           {{"--granularity", "2", "--experts", "65536"}, "1 to 65536 experts"},
           {{"--granularity", "2", "--experts", "4", "--router", "top8"},
            "'top8' asks for 8 experts"},
           {{"--granularity", "11"}, "power of two"},
           {{"--router-init", "kmeans:" + few}, "random, prompts:FILE and cluster:FILE"},
           {{"--router-init", "prompts:" + two}, "expert 2"},
           {{"--router-init", "prompts:" + broken}, broken + ": "},
           {{"--router-init", "prompts:" + empty}, empty + ": "},
           {{"--router-init", "prompts:" + none}, none + ": "},
           {{"--router-init", "cluster:" + none}, none + ": "},
           {{"--router-init", "cluster:" + few, "--experts", "64"}, "fewer than the 64 experts"},
           {{"--router-init", "prompts:" + alike, "--experts", "2"}, "too alike"},
           {{"--router-entropy", "1.5"}, "--router-entropy 1.5"},
           {{"--router-entropy", "0.5", "--router", "relu:k=1"}, "softmax"},
           {{"--router-entropy", "0.5", "--router-std", "0"}, "too alike"},
           {{"--router-init", "prompts:" + two, "--experts", "2", "--router-std", "0.1"},
            "--router-std 0.1"},
           {{"--router-init", "prompts:" + two, "--experts", "2", "--calibration", few},
            "--gate-scale auto"}}) {
    CAPTURE(flags);
    check_refused(upcycle_tiny(folder, flags), fact);
    CHECK(names_in(folder.path()) == before);
  }
}

TEST_CASE("a full disk ends moe upcycle with exit code 2 and leaves no folder", "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.hidden = 64, .intermediate = 256});
  // A file may have 64 x 512 bytes. SIGXFSZ is ignored, so that write() fails as on a full disk.
  const auto run =
      run_moe({"upcycle", (folder / "dense").string(), "-o", (folder / "out").string()},
              "trap '' XFSZ; ulimit -f 64;");
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("disk full") != std::string::npos);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
}

TEST_CASE("a killed moe upcycle leaves no folder or a complete one, and the next run succeeds",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense",
                              {.hidden = 256, .intermediate = 1024, .layers = 6, .heads = 4});
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const std::vector<std::string> command = {"upcycle",   dense, "-o",     out,
                                            "--experts", "16",  "--quiet"};
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(run_moe(command).exit_code == 0);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  int killed = 0;
  for (int step = 1; step <= 8; ++step) {
    std::filesystem::remove_all(out);
    const auto run = run_moe(command, fmt::format("timeout -s KILL {:.3f}", seconds * step / 8));
    if (run.exit_code == 0) {
      continue;
    }
    ++killed;
    if (std::filesystem::exists(out)) {  // killed between the last rename and the end
      CHECK(run_moe({"inspect", out}).exit_code == 0);
    }
  }
  CHECK(killed > 0);
  std::filesystem::remove_all(out);
  CHECK(run_moe(command).exit_code == 0);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense", "out"});
}

// Returns the line "function" of moe inspect.
std::string inspected_function(const std::string& folder) {
  const auto run = run_moe({"inspect", folder});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const size_t at = run.out.find("\nfunction      ");
  REQUIRE(at != std::string::npos);
  return run.out.substr(at + 15, run.out.find('\n', at + 1) - at - 15);
}

TEST_CASE("a verdict is valid only for the weights and the config it was measured on",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string out = (folder / "out").string();
  REQUIRE(upcycle_tiny(folder, {"--router", "top2:cf=inf"}).exit_code == 0);
  CHECK(inspected_function(out).starts_with("not measured"));
  REQUIRE(upcycle_tiny(folder, {"--router", "top2:cf=inf", "--verify"}).exit_code == 0);
  CHECK(inspected_function(out).starts_with("identical"));
  const Json certificate = read_json(folder / "out/upcycle.json")["certificate"];
  CHECK(certificate["max_abs_logit_difference"].get<double>() <=
        certificate["tolerance"].get<double>());
  CHECK(certificate["tokens"].get<int64_t>() > 0);

  const auto edited = [&](const char* name, const std::function<void()>& edit) {
    CAPTURE(name);
    std::filesystem::remove_all(folder / "copy");
    std::filesystem::copy(out, folder / "copy");
    CHECK(inspected_function((folder / "copy").string()).starts_with("identical"));
    edit();
    return inspected_function((folder / "copy").string());
  };
  // One byte, not among the first of its tensor.
  CHECK(edited("weight", [&] {
          std::fstream file(folder / "copy/model.safetensors",
                            std::ios::in | std::ios::out | std::ios::binary);
          file.seekp(-1000, std::ios::end);
          file.put('x');
        }).starts_with("not measured for these weights: the weights changed"));
  CHECK(edited("config", [&] {
          OrderedJson config = OrderedJson::parse(test::read_file(folder / "copy/config.json"));
          config["moe"]["router"]["capacity_factor"] = 0.25;
          test::write_file(folder / "copy/config.json", config.dump());
        }).starts_with("not measured for these weights: config.json changed"));
  CHECK(edited("older certificate", [&] {
          OrderedJson report = OrderedJson::parse(test::read_file(folder / "copy/upcycle.json"));
          report["certificate"].erase("measured_on");
          test::write_file(folder / "copy/upcycle.json", report.dump());
        }).starts_with("not known: "));
  CHECK(edited("broken report", [&] {
          test::write_file(folder / "copy/upcycle.json", "[");
        }).starts_with("not known: "));

  // Training writes no verdict, and a copied verdict of the parent is not valid.
  const auto tiny = moe::test::source_folder() / "recipes/tiny";
  const auto trained = run_moe({"train", out, "-o", (folder / "run").string(), "--data",
                                (tiny / "instruct.jsonl").string(), "--steps", "1", "--seq-len",
                                "64", "--global-batch", "1", "--quiet"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string final_model = (folder / "run/final").string();
  CHECK(inspected_function(final_model).starts_with("not measured"));
  std::filesystem::copy(folder / "out/upcycle.json", folder / "run/final/upcycle.json");
  std::filesystem::copy(folder / "out/config.json", folder / "run/final/config.json",
                        std::filesystem::copy_options::overwrite_existing);
  CHECK(inspected_function(final_model).starts_with("not measured for these weights: the weights"));
}

TEST_CASE("moe upcycle --verify prints the verdict and its reason", "[cli][upcycle]") {
  const TempDir folder;
  for (const auto& [flags, verdict, why] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"--router", "top2:cf=inf"}, "identical", "no token is dropped"},
           {{"--router", "top2:cf=inf", "--vary", "noise:0.001"}, "close", "the copies are varied"},
           {{"--router", "top2:cf=inf", "--vary", "drop:0.5"},
            "different",
            "the copies are varied"},
           {{"--router", "top1:cf=0.5"}, "different", "+ir or cf=inf serve every token"},
           {{"--router", "topp:0.4"}, "different", "--gate-scale auto corrects the mean"}}) {
    const auto run = upcycle_tiny(folder, joined(flags, {"--verify", "--json", "--layers", "all"}));
    CAPTURE(flags, run.err, run.out);
    REQUIRE(run.exit_code == 0);
    const Json certificate = parse_json(run.out, "stdout")["certificate"];
    CHECK(certificate["verdict"] == verdict);
    CHECK(certificate["preserves_function"] == (verdict == "identical"));
    CHECK(certificate["words"].get<std::string>().starts_with(verdict));
    CHECK_THAT(certificate["words"].get<std::string>(), contains_text(why));
    CHECK(inspected_function((folder / "out").string()).starts_with(verdict));
  }
}

TEST_CASE("moe upcycle refuses weights that are not finite and names the tensor",
          "[cli][upcycle]") {
  const TempDir folder;
  const auto write_with = [&](const std::string& tensor, float value) {
    std::filesystem::remove_all(folder / "dense");
    test::write_tiny_checkpoint(folder / "dense");
    const std::filesystem::path file = folder / "dense/model.safetensors";
    const std::string text = test::read_file(file);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
    const Json header = Json::parse(text.substr(8, header_bytes));
    const auto end = header[tensor]["data_offsets"][1].get<uint64_t>();
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(8 + header_bytes + end - sizeof value));
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [tensor, value, flags] :
       std::vector<std::tuple<std::string, float, std::vector<std::string>>>{
           {"model.layers.0.mlp.down_proj.weight", infinity, {}},
           {"model.layers.2.mlp.up_proj.weight", std::nanf(""), {"--granularity", "2"}},
           {"model.layers.1.self_attn.q_proj.weight", -infinity, {"--dtype", "bf16"}},
           {"model.norm.weight", std::nanf(""), {"--vary", "drop:0.5"}},
           {"model.embed_tokens.weight", infinity, {"--router-entropy", "0.7"}},
           {"model.layers.0.mlp.gate_proj.weight", infinity, {"--shared-expert"}}}) {
    write_with(tensor, value);
    check_refused(run_moe(joined({"upcycle", (folder / "dense").string(), "-o",
                                  (folder / "out").string(), "--quiet"},
                                 flags)),
                  "tensor '" + tensor + "'");
    CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
  }
  // moe train --upcycle reads the same parent.
  test::write_training_rows(folder / "rows.jsonl", 8);
  const auto trained = run_moe({"train", (folder / "dense").string(), "--upcycle", "2", "--data",
                                (folder / "rows.jsonl").string(), "-o", (folder / "run").string(),
                                "--steps", "1", "--seq-len", "8", "--micro-batch", "1", "--quiet"});
  CHECK(trained.exit_code == 2);
  CHECK_THAT(trained.err, contains_text("NaN or infinite"));
}

TEST_CASE("moe upcycle mixes parents and varies copies, and --verify measures the difference",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string base = (folder / "base").string(), code = (folder / "code").string(),
                    out = (folder / "out").string();
  test::write_tiny_checkpoint(base);
  test::write_tiny_checkpoint(code, {.seed = 2});
  auto run = run_moe({"upcycle", base, "-o", out, "--expert", base, "--expert", code + ":3",
                      "--rest", "mean", "--vary", "drop:0.5", "--verify", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "stdout");
  CHECK(json["experts"] == 4);
  CHECK(json["experts_from"][1]["experts"] == Json({1, 2, 3}));
  CHECK(json["rest"] == "mean");
  CHECK(json["vary"] == "drop:0.5");
  const Json& certificate = json["certificate"];
  CHECK(certificate["preserves_function"] == false);
  CHECK_THAT(certificate["words"].get<std::string>(), contains_text("not preserved") &&
                                                          contains_text("other parents") &&
                                                          contains_text("--vary drop:0.5"));
  CHECK(certificate["verdict"] != "identical");
  CHECK(certificate["mean_kl"].get<double>() > 0);
  CHECK(certificate["parent_perplexity"].get<double>() > 1);
  CHECK(certificate["perplexity"] != certificate["parent_perplexity"]);

  run = run_moe({"inspect", out, "--against", code});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK_THAT(run.out, contains_text("compared with " + code));
  run = run_moe({"inspect", out, "--against", code, "--json"});
  const Json against = parse_json(run.out, "stdout")["against"];
  REQUIRE(against["layers"].size() == 2);
  CHECK(against["layers"][1]["layer"] == 2);
  CHECK(against["layers"][1]["cosine_between_experts"].get<double>() < 1);
  CHECK(against["layers"][1]["cosine_of_router_rows_to_other"].is_null());
}

TEST_CASE("moe upcycle starts routers from prompts or clusters and describes each layer",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string town = (folder / "town").string(), food = (folder / "food").string();
  const auto tiny = moe::test::source_folder() / "recipes/tiny/model";
  for (const auto& parent : {town, food}) {
    std::filesystem::copy(tiny, parent, std::filesystem::copy_options::recursive);
  }
  test::write_file(folder / "prompts.json", R"({"town": ["Where does Ada live?"],
    "1": {"positive": ["What does Ada eat?"], "negative": ["Where does Ada live?"]}})");
  test::write_file(folder / "text.txt", "Ada lives in Arden.\n<|endoftext|>\nBela eats soup.\n");
  test::write_file(folder / "questions.jsonl",
                   R"({"instruction": "Where does Ada live?", "input": "", "output": "Arden"})"
                   "\n");
  const std::string prompts = "prompts:" + (folder / "prompts.json").string();
  const std::vector<Words> starts = {
      {"--router-init", prompts, "--expert", town, "--expert", food},
      {"--router-init", prompts, "--expert", town, "--expert", food, "--router-entropy", "0.4"},
      {"--router-init", "cluster:" + (folder / "text.txt").string(), "--experts", "4"},
      {"--router-init", "cluster:" + (folder / "questions.jsonl").string(), "--experts", "4",
       "--verify"},
      {"--router-entropy", "0.4"},
      {"--router-entropy", "0.4", "--calibration", (folder / "text.txt").string()}};
  for (const auto& flags : starts) {
    CAPTURE(flags);
    const auto run = upcycle_tiny(folder, flags);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    const bool has_entropy =
        std::find(flags.begin(), flags.end(), "--router-entropy") != flags.end();
    const Json stored = read_json(folder / "out/upcycle.json");
    const Json& layers = stored["router_init"]["layers"];
    REQUIRE(layers.size() == stored["layers"].size());
    for (const auto& layer : layers) {
      CHECK(layer["entropy"].get<double>() == Approx(has_entropy ? 0.4 : 0.7).margin(2e-4));
      CHECK(run.out.find("router start " + layer["words"].get<std::string>() + "\n") !=
            std::string::npos);
    }
    CHECK(run.err == warning_lines(stored));
    CHECK(run_moe({"inspect", (folder / "out").string()}).exit_code == 0);
  }
}

}  // namespace
}  // namespace moe
