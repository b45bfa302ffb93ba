#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::run_moe;
using test::TempDir;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("moe upcycle writes a folder, says so on stdout, and stays quiet when asked",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const auto run = run_moe({"upcycle", dense, "-o", out, "--experts", "4", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(run.out.find("layers 0, 2 of 3 become mixtures of 4 experts, router top2:cf=inf\n") == 0);
  CHECK(run.out.find("next         moe train " + out) != std::string::npos);
  CHECK(run.out.find("advice ") == std::string::npos);
  CHECK(names_in(folder / "out") == std::vector<std::string>{".moe-output", "config.json",
                                                             "model.safetensors", "upcycle.json"});
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense", "out"});
}

TEST_CASE("moe upcycle --json prints what upcycle.json holds", "[cli][upcycle]") {
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

TEST_CASE("moe upcycle --dry-run says bytes, parameters and time, and writes nothing",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  auto run = run_moe({"upcycle", dense, "-o", out, "--dry-run"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("(dry run: nothing was written)") != std::string::npos);
  run = run_moe({"upcycle", dense, "-o", out, "--router", "top1", "--dry-run", "--json"});
  const Json json = parse_json(run.out, "stdout");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
  run = run_moe({"upcycle", dense, "-o", out, "--router", "top1"});
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("\nadvice       ") != std::string::npos);
  CHECK(
      run.out.find("--lr up to the parent's highest; --lb-coef 0.01 to 0.001; 1,024 tokens or more "
                   "a logical rank") != std::string::npos);
  const Json done = read_json(folder / "out/upcycle.json");
  CHECK(json["tensor_bytes"] == done["tensor_bytes"]);
  CHECK(json["parameters"] == done["parameters"]);
  CHECK(json["estimated_seconds"].get<double>() > 0);
}

TEST_CASE("moe upcycle --shared-expert keeps the dense feed-forward, and every command runs it",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const auto dry = run_moe({"upcycle", dense, "-o", out, "--shared-expert", "--dry-run", "--json"});
  const auto run = run_moe({"upcycle", dense, "-o", out, "--shared-expert", "--router",
                            "top1:cf=0.25", "--verify", "--quiet"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("layers 0, 2 of 3 become mixtures of 8 experts beside the dense feed-forward, "
                     "router top1:cf=0.25\n") == 0);
  CHECK(run.out.find("certificate  identical to the dense model") != std::string::npos);
  CHECK(run.out.find("the shared expert is the dense feed-forward") != std::string::npos);
  const Json stored = read_json(folder / "out/upcycle.json");
  CHECK(stored["certificate"]["max_abs_logit_difference"] == 0.0);
  CHECK(stored["certificate"]["preserves_function"] == true);
  CHECK(parse_json(dry.out, "stdout")["parameters"]["total"] == stored["parameters"]["total"]);
  const auto inspected = run_moe({"inspect", out});
  CHECK(inspected.out.find("8 experts of width 24, beside a shared one of width 24") !=
        std::string::npos);
  CHECK(inspected.out.find("function      identical to the dense model") != std::string::npos);
}

TEST_CASE("moe upcycle --verify puts the equality certificate into upcycle.json",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const auto run = run_moe(
      {"upcycle", (folder / "dense").string(), "-o", (folder / "out").string(), "--verify"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("certificate  ") != std::string::npos);
  const Json stored = read_json(folder / "out/upcycle.json");
  REQUIRE(stored.contains("certificate"));
  CHECK(stored["certificate"]["max_abs_logit_difference"].get<double>() < 1e-4);
  CHECK(stored["certificate"]["tokens"].get<int64_t>() > 0);
}

// Upcycles the model in recipes/tiny, which has a tokenizer, with `flags`.
test::RunResult upcycle_tiny(const TempDir& folder, std::vector<std::string> flags) {
  std::vector<std::string> words = {
      "upcycle", (moe::test::source_folder() / "recipes/tiny/model").string(),
      "-o",      (folder / "out").string(),
      "--force", "--quiet"};
  words.insert(words.end(), flags.begin(), flags.end());
  return run_moe(words);
}

TEST_CASE("--gate-scale auto measures, stores and shows the difference it makes",
          "[cli][upcycle]") {
  const TempDir folder;
  for (const char* router : {"topp:0.4", "relu:k=1"}) {
    CAPTURE(router);
    const auto run = upcycle_tiny(folder, {"--router", router, "--gate-scale", "auto", "--verify"});
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.out.find("gate scale   the weights of a token sum to ") != std::string::npos);
    CHECK(run.out.find(": router " + std::string(router) + ", gate_scale ") != std::string::npos);
    CHECK(run.out.find("\ncertificate  ") != std::string::npos);
    CHECK(run.out.find("\nwithout it   different from the dense model") != std::string::npos);
    CHECK(run.out.find(": router " + std::string(router) + ", gate_scale 1: ") !=
          std::string::npos);
    const Json stored = read_json(folder / "out/upcycle.json");
    const Json& with = stored["certificate"];
    CHECK(stored["gate_scale"] == read_json(folder / "out/config.json")["moe"]["gate_scale"]);
    // A ReLU router's sums vary too much from token to token for one factor to be sure to help.
    if (std::string(router) == "topp:0.4") {
      CHECK(with["mean_kl"] < with["without_gate_scale"]["mean_kl"]);
    }
    CHECK(stored["calibration"]["text"] == "the embedded text");
  }
}

TEST_CASE("--gate-scale auto says that weights which sum to 1 need none", "[cli][upcycle]") {
  const TempDir folder;
  const auto run = upcycle_tiny(folder, {"--router", "top1+ir", "--gate-scale", "auto"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("gate scale   the weights of top1+ir sum to 1 already: gate_scale is 1\n") !=
        std::string::npos);
  CHECK(read_json(folder / "out/config.json")["model_type"] == "qwen2_moe");
}

TEST_CASE("experts that start dead are warned of on standard error and in upcycle.json",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_file(folder / "text.txt",
                   "a");  // a token or two leave experts without a positive one
  const auto run = upcycle_tiny(folder, {"--router", "relu:k=1", "--gate-scale", "auto",
                                         "--calibration", (folder / "text.txt").string()});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json warnings = read_json(folder / "out/upcycle.json")["warnings"];
  REQUIRE_FALSE(warnings.empty());
  std::string lines;
  for (const auto& warning : warnings) {
    lines += "warning: " + warning.get<std::string>() + "\n";
  }
  CHECK(run.err == lines);
  CHECK(run.err.find("start dead, without a positive logit on any of the ") != std::string::npos);
}

TEST_CASE("a bad --gate-scale or --calibration is refused", "[cli][upcycle]") {
  const TempDir folder;
  const auto refused = [&](std::vector<std::string> flags) {
    const auto run = upcycle_tiny(folder, std::move(flags));
    CHECK(run.exit_code == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
    return run.err;
  };
  CHECK(refused({"--gate-scale", "big"}) ==
        "moe: --gate-scale 'big' is neither a positive number nor auto\n");
  CHECK(refused({"--gate-scale", "0"}) ==
        "moe: --gate-scale 0: must be a positive number, or auto\n");
  CHECK(refused({"--calibration", "text.txt"}) ==
        "moe: --calibration text.txt: only --gate-scale auto and the --router-entropy of a random "
        "router read it; add one of them, or leave it out\n");
  CHECK(refused({"--router", "topp:0.4", "--gate-scale", "auto", "--calibration", "none.txt"}) ==
        "moe: none.txt: no such file; --calibration needs a text file\n");
}

TEST_CASE("moe upcycle --granularity writes the real number of experts and of the chosen ones",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string out = (folder / "out").string();
  std::vector<std::string> flags = {"--experts", "4", "--granularity", "4", "--router", "top2+ir"};
  auto run = upcycle_tiny(folder, flags);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.out.find("mixtures of 16 experts (4 feed-forwards cut into 4), router top8+ir\n") !=
        std::string::npos);
  CHECK(run.out.find("function     not preserved for a token that capacity drops: +ir gives it one "
                     "of the 4 slices") != std::string::npos);
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

  flags.insert(flags.end(), {"--router", "top2:cf=inf", "--verify", "--json"});
  flags.erase(flags.begin() + 4, flags.begin() + 6);
  run = upcycle_tiny(folder, flags);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json report = parse_json(run.out, "stdout");
  CHECK(report["granularity"] == 4);
  CHECK(report["router"] == "top8:cf=inf");
  CHECK(report["certificate"]["preserves_function"] == true);
  CHECK(report["certificate"]["max_abs_logit_difference"].get<double>() < 1e-4);

  std::filesystem::remove_all(out);
  flags = {"--experts", "4", "--granularity", "4", "--dry-run", "--json"};
  run = upcycle_tiny(folder, flags);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(parse_json(run.out, "stdout")["tensor_bytes"] == report["tensor_bytes"]);
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("a --granularity that cannot be is one sentence, and nothing is left", "[cli][upcycle]") {
  const TempDir folder;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--granularity", "0"}, "--granularity 0: the feed-forward is"},
      {{"--granularity", "7"}, "cannot be cut into so many equal parts; give a divisor of"},
      {{"--granularity", "2", "--experts", "65536"}, "a layer has 1 to 65536 experts in all"},
      {{"--granularity", "2", "--experts", "4", "--router", "top8"},
       "router 'top8' asks for 8 experts per token, the layers have 4"},
      {{"--granularity", "11"}, "give a power of two, or --dtype fp32"}};
  for (const auto& [flags, sentence] : cases) {
    CAPTURE(flags);
    const auto run = upcycle_tiny(folder, flags);
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(sentence) != std::string::npos);
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
    CHECK(names_in(folder.path()).empty());
  }
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

TEST_CASE("what the user can mend is one sentence and exit code 2, and nothing is left",
          "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  std::filesystem::create_directory(folder / "there");
  const std::string dense = (folder / "dense").string(), out = (folder / "out").string();
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "upcycle");
    const auto run = run_moe(arguments);
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
    return run.err;
  };
  CHECK(refused({dense, "-o", (folder / "there").string()}) ==
        "moe: " + (folder / "there").string() +
            ": exists already; give another output folder, or --force to replace it\n");
  CHECK(refused({dense, "-o", out, "--experts", "1"}) ==
        "moe: router 'top2:cf=inf' asks for 2 experts per token, the layers have 1: give a smaller "
        "k or more experts\n");
  CHECK(refused({dense, "-o", out, "--layers", "0,7"}) ==
        "moe: --layers 0,7: layer 7 does not exist; the model has layers 0 to 2\n");
  CHECK(refused({dense, "-o", out, "--shard-size", "huge"}).find("--shard-size") !=
        std::string::npos);
  CHECK(refused({dense, "-o", out, "--dtype", "fp8"}).find("fp8") != std::string::npos);
  CHECK(refused({dense, "-o", out, "--router-std", "-1"}).find("--router-std") !=
        std::string::npos);
  CHECK(refused({dense, "-o", out, "--router", "top1:cf=2", "--cf", "3"}).find("--cf 3") !=
        std::string::npos);
  CHECK(refused({dense, "-o", out, "--expert", "4", "--layrs", "odd"}).find("did you mean") !=
        std::string::npos);
  CHECK(refused({dense}).find("--out") != std::string::npos);
  CHECK(refused({out, "-o", out}).find(out) != std::string::npos);
  CHECK(refused({dense, "-o", out, "--verify-text", "text.txt"}) ==
        "moe: " + dense +
            ": no tokenizer, so --verify-text cannot be tokenised; leave it out to verify on "
            "ids\n");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense", "there"});
}

TEST_CASE("a full disk is a sentence and leaves nothing", "[cli][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.hidden = 64, .intermediate = 256});
  // Files may have 64 x 512 bytes; the signal for more is ignored, so that write() fails as on a
  // full disk.
  const auto run =
      run_moe({"upcycle", (folder / "dense").string(), "-o", (folder / "out").string()},
              "trap '' XFSZ; ulimit -f 64;");
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("disk full") != std::string::npos);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
}

TEST_CASE("a killed upcycle leaves no output or a whole one, and the next run heals",
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

// The line of moe inspect that says what the function of a folder is.
std::string inspected_function(const std::string& folder) {
  const auto run = run_moe({"inspect", folder});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const size_t at = run.out.find("\nfunction      ");
  REQUIRE(at != std::string::npos);
  return run.out.substr(at + 15, run.out.find('\n', at + 1) - at - 15);
}

TEST_CASE("a verdict is stored with the weights it was measured on, and falls with them",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string out = (folder / "out").string();
  REQUIRE(upcycle_tiny(folder, {"--router", "top2:cf=inf"}).exit_code == 0);
  CHECK(inspected_function(out).starts_with("not measured: moe upcycle --verify"));
  REQUIRE(upcycle_tiny(folder, {"--router", "top2:cf=inf", "--verify"}).exit_code == 0);
  CHECK(inspected_function(out).starts_with("identical to the dense model, but for rounding"));
  const Json certificate = read_json(folder / "out/upcycle.json")["certificate"];
  CHECK(certificate["max_abs_logit_difference"].get<double>() <=
        certificate["tolerance"].get<double>());

  const auto edited = [&](const char* name, const std::function<void()>& edit) {
    CAPTURE(name);
    std::filesystem::remove_all(folder / "copy");
    std::filesystem::copy(out, folder / "copy");
    CHECK(inspected_function((folder / "copy").string()).starts_with("identical"));
    edit();
    return inspected_function((folder / "copy").string());
  };
  // One byte, far from the first ones of its tensor.
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

  // Training writes no verdict, and that of its parent put beside it is not believed.
  const auto tiny = moe::test::source_folder() / "recipes/tiny";
  const auto trained = run_moe({"train", out, "-o", (folder / "run").string(), "--data",
                                (tiny / "instruct.jsonl").string(), "--steps", "1", "--seq-len",
                                "64", "--global-batch", "1", "--quiet"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string final_model = (folder / "run/final").string();
  CHECK(inspected_function(final_model).starts_with("not measured: no upcycle.json here"));
  std::filesystem::copy(folder / "out/upcycle.json", folder / "run/final/upcycle.json");
  std::filesystem::copy(folder / "out/config.json", folder / "run/final/config.json",
                        std::filesystem::copy_options::overwrite_existing);
  CHECK(inspected_function(final_model).starts_with("not measured for these weights: the weights"));
}

TEST_CASE("moe upcycle --verify says how different a mixture is, and why", "[cli][upcycle]") {
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
    auto words = flags;
    words.insert(words.end(), {"--verify", "--json", "--layers", "all"});
    const auto run = upcycle_tiny(folder, words);
    CAPTURE(flags, run.err, run.out);
    REQUIRE(run.exit_code == 0);
    const Json certificate = parse_json(run.out, "stdout")["certificate"];
    CHECK(certificate["verdict"] == verdict);
    CHECK(certificate["preserves_function"] == (verdict == "identical"));
    CHECK(certificate["words"].get<std::string>().starts_with(verdict));
    CHECK(certificate["words"].get<std::string>().find(why) != std::string::npos);
    CHECK(inspected_function((folder / "out").string()).starts_with(verdict));
  }
}

TEST_CASE("moe upcycle refuses weights that are not finite, by the tensor's name",
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
    std::vector<std::string> words = {"upcycle", (folder / "dense").string(), "-o",
                                      (folder / "out").string(), "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    const auto run = run_moe(words);
    CAPTURE(tensor, run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find("tensor '" + tensor + "' has a weight that is NaN or infinite") !=
          std::string::npos);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"dense"});
  }
  // Training takes the parent as a mixture while it reads it.
  test::write_training_rows(folder / "rows.jsonl", 8);
  const auto trained = run_moe({"train", (folder / "dense").string(), "--upcycle", "2", "--data",
                                (folder / "rows.jsonl").string(), "-o", (folder / "run").string(),
                                "--steps", "1", "--seq-len", "8", "--micro-batch", "1", "--quiet"});
  CAPTURE(trained.err);
  CHECK(trained.exit_code == 2);
  CHECK(trained.err.find("' has a weight that is NaN or infinite") != std::string::npos);
}

TEST_CASE("moe upcycle mixes parents and varies copies, and says what it cost", "[cli][upcycle]") {
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
  CHECK(certificate["words"].get<std::string>().find(
            "not preserved: the experts come from other parents, which training has to reconcile, "
            "and the copies are varied by --vary drop:0.5") != std::string::npos);
  CHECK(certificate["verdict"] != "identical");
  CHECK(certificate["mean_kl"].get<double>() > 0);
  CHECK(certificate["parent_perplexity"].get<double>() > 1);
  CHECK(certificate["perplexity"] != certificate["parent_perplexity"]);

  run = run_moe({"inspect", out, "--against", code});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("mean cosines, 1 being alike, against " + code) != std::string::npos);
  run = run_moe({"inspect", out, "--against", code, "--json"});
  const Json against = parse_json(run.out, "stdout")["against"];
  REQUIRE(against["layers"].size() == 2);
  CHECK(against["layers"][1]["layer"] == 2);
  CHECK(against["layers"][1]["cosine_between_experts"].get<double>() < 1);
  CHECK(against["layers"][1]["cosine_of_router_rows_to_other"].is_null());
}

TEST_CASE("parents and variations that cannot be are refused, and nothing is left behind",
          "[cli][upcycle]") {
  const TempDir folder;
  const std::string base = (folder / "base").string(), wide = (folder / "wide").string(),
                    out = (folder / "out").string();
  test::write_tiny_checkpoint(base);
  test::write_tiny_checkpoint(wide, {.hidden = 32});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--expert", wide + ":2"}, "hidden_size is 32, but 16"},
      {{"--expert", (folder / "nosuch:2").string()}, "nosuch"},
      {{"--expert", base + ":0"}, "the number of copies"},
      {{"--expert", base, "--experts", "8"}, "--experts 8: the --expert folders make 1"},
      {{"--rest", "mean"}, "--rest mean: is the mean of --expert folders"},
      {{"--vary", "drop:1"}, "--vary drop:1: the share"},
      {{"--vary", "drop:0"}, "--vary drop:0: the share"},
      {{"--vary", "drop:0.01"}, "--vary drop:0.01: less than one of 24 dimensions"},
      {{"--vary", "stir"}, "--vary 'stir': is none of"}};
  for (const auto& [words, sentence] : cases) {
    std::vector<std::string> command = {"upcycle", base, "-o", out};
    command.insert(command.end(), words.begin(), words.end());
    const auto run = run_moe(command);
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(sentence) != std::string::npos);
    CHECK(run.err.find('\n') + 1 == run.err.size());
    CHECK(names_in(folder.path()) == std::vector<std::string>{"base", "wide"});
  }
}

TEST_CASE("moe upcycle starts routers from prompts or clusters, and says how each layer starts",
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
  const std::vector<std::vector<std::string>> ways = {
      {"--router-init", prompts, "--expert", town, "--expert", food},
      {"--router-init", prompts, "--expert", town, "--expert", food, "--router-entropy", "0.4"},
      {"--router-init", "cluster:" + (folder / "text.txt").string(), "--experts", "4"},
      {"--router-init", "cluster:" + (folder / "questions.jsonl").string(), "--experts", "4",
       "--verify"},
      {"--router-entropy", "0.4"},
      {"--router-entropy", "0.4", "--calibration", (folder / "text.txt").string()}};
  for (const auto& flags : ways) {
    CAPTURE(flags);
    const auto run = upcycle_tiny(folder, flags);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    const bool asks = std::find(flags.begin(), flags.end(), "--router-entropy") != flags.end();
    const Json stored = read_json(folder / "out/upcycle.json");
    const Json& layers = stored["router_init"]["layers"];
    REQUIRE(layers.size() == stored["layers"].size());
    for (const auto& layer : layers) {
      CHECK(layer["entropy"].get<double>() == Approx(asks ? 0.4 : 0.7).margin(2e-4));
      CHECK(run.out.find("router start " + layer["words"].get<std::string>() + "\n") !=
            std::string::npos);
    }
    std::string lines;
    for (const auto& warning : stored["warnings"]) {
      lines += "warning: " + warning.get<std::string>() + "\n";
    }
    CHECK(run.err == lines);
    CHECK(run_moe({"inspect", (folder / "out").string()}).exit_code == 0);
  }
}

TEST_CASE("routers that cannot start so are refused, and nothing is left behind",
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
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--router-init", "kmeans:" + few}, "is none of random, prompts:FILE and cluster:FILE"},
      {{"--router-init", "prompts:" + two}, "says nothing of expert 2; each of the 8 experts"},
      {{"--router-init", "prompts:" + broken}, broken + ": "},
      {{"--router-init", "prompts:" + empty}, empty + ": "},
      {{"--router-init", "prompts:" + none}, none + ": "},
      {{"--router-init", "cluster:" + none}, none + ": "},
      {{"--router-init", "cluster:" + few, "--experts", "64"}, "are fewer than the 64 experts"},
      {{"--router-init", "prompts:" + alike, "--experts", "2"}, "are too alike on"},
      {{"--router-entropy", "1.5"}, "--router-entropy 1.5: must lie between 0"},
      {{"--router-entropy", "0.5", "--router", "relu:k=1"}, "are no softmax"},
      {{"--router-entropy", "0.5", "--router-std", "0"}, "are too alike on"},
      {{"--router-init", "prompts:" + two, "--experts", "2", "--router-std", "0.1"},
       "--router-std 0.1: only a random router is drawn"},
      {{"--router-init", "prompts:" + two, "--experts", "2", "--calibration", few},
       "only --gate-scale auto and the --router-entropy of a random router read it"}};
  const auto before = names_in(folder.path());
  for (const auto& [flags, sentence] : cases) {
    CAPTURE(flags);
    const auto run = upcycle_tiny(folder, flags);
    INFO(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(sentence) != std::string::npos);
    CHECK(run.err.find('\n') + 1 == run.err.size());
    CHECK(names_in(folder.path()) == before);
  }
}

}  // namespace
}  // namespace moe
