// A command that needs more memory than there is says so before it loads anything. A limit on what
// a process may have for itself (RLIMIT_DATA) makes every machine too small for a model of
// gigabytes, which are zeros in a file that has no blocks on the disk.

#include <fmt/format.h>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using moe::test::contains_text;
using moe::test::run_moe;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kVocab = int64_t{1} << 18, kWidth = int64_t{1} << 13;  // 8 GiB of embeddings
constexpr int64_t kHeads = 64;
const char* const kLimit = "ulimit -d 130000;";  // KiB

void write_large_model(const fs::path& folder, int64_t inner = 64) {
  test::TinyCheckpoint shape;
  shape.hidden = kWidth;
  shape.intermediate = inner;
  shape.layers = 1;
  shape.heads = shape.kv_heads = kHeads;
  shape.vocab = kVocab;
  shape.max_positions = int64_t{1} << 20;
  shape.tied = true;
  write_file(folder / "config.json", test::tiny_config(shape).dump());
  OrderedJson header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& dims) {
    int64_t bytes = 4;
    for (const int64_t dim : dims) {
      bytes *= dim;
    }
    header[name] = {{"dtype", "F32"}, {"shape", dims}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  add("model.embed_tokens.weight", {kVocab, kWidth});
  add("model.norm.weight", {kWidth});
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
    add(layer + name + ".weight", {kWidth});
  }
  for (const char* name : {"q", "k", "v", "o"}) {
    add(layer + "self_attn." + name + "_proj.weight", {kWidth, kWidth});
  }
  add(layer + "mlp.gate_proj.weight", {inner, kWidth});
  add(layer + "mlp.up_proj.weight", {inner, kWidth});
  add(layer + "mlp.down_proj.weight", {kWidth, inner});
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string size(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    size[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  }
  write_file(folder / "model.safetensors", size + text);
  fs::resize_file(folder / "model.safetensors", 8 + text.size() + static_cast<uint64_t>(end));
  fs::copy_file(test::source_folder() / "recipes/tiny/model/tokenizer.model",
                folder / "tokenizer.model");
}

// One request of about `tokens` tokens.
std::string long_request(int64_t tokens) {
  std::string context = "a";
  for (int64_t i = 1; i < tokens; ++i) {
    context += " a";
  }
  return R"({"context": ")" + context + R"(", "continuation": " b"})";
}

fs::path tiny_model() { return test::source_folder() / "recipes/tiny/model"; }

}  // namespace

TEST_CASE("no command begins to load a model that memory cannot hold", "[cli]") {
  const TempDir dir;
  const std::string model = (dir / "large").string(), out = (dir / "out").string();
  write_large_model(model);
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  write_file(dir / "asked.jsonl", long_request(3000));
  const std::string rows = (dir / "rows.jsonl").string(), asked = (dir / "asked.jsonl").string();
  // What is only asked stays where the file is mapped: it is the tokens at a time that do not fit.
  const std::vector<std::pair<std::vector<std::string>, std::string>> commands = {
      {{"generate", model, "--prompt", "a", "--max-tokens", "1000000"},
       "generating with " + model + " takes about"},
      {{"eval", model, "--requests", asked}, "evaluating " + model + " takes about"},
      {{"train", model, "--data", rows, "-o", out, "--steps", "1", "--micro-batch", "1"},
       "training " + model + " takes about"},
      {{"upcycle", model, "-o", out, "--verify"}, "running " + model + " and its mixture takes"},
      {{"upcycle", model, "-o", out, "--router", "topp:0.5", "--gate-scale", "auto"},
       "running " + model + " takes about"},
      {{"bench", "load", model}, "loading " + model + " takes about"},
      {{"bench", "eval", model}, "evaluating " + model + " takes about"},
      {{"bench", "train", model, "--rows", "1", "--seq-len", "4"}, "training " + model + " takes"},
  };
  for (const auto& [words, sentence] : commands) {
    const auto run = run_moe(words, kLimit);
    CAPTURE(words, run.err);
    CHECK(run.exit_code == 2);
    CHECK_THAT(run.err, contains_text("moe: " + sentence));
    CHECK_THAT(run.err, contains_text(", ulimit -d leaves 0."));
    CHECK_THAT(run.err, contains_text("--force-memory tries it"));
    CHECK(run.err.find('\n') + 1 == run.err.size());  // one sentence, and nothing was begun
    CHECK_FALSE(fs::exists(out));
  }
}

TEST_CASE("slices that memory cannot hold are not made, but with --force-memory", "[cli]") {
  const TempDir dir;
  const std::string model = (dir / "large").string(), asked = (dir / "asked.jsonl").string();
  write_large_model(model, 1 << 13);  // slices of 0.8 GB
  write_file(asked, long_request(1));
  std::vector<std::string> words = {"eval",      model,        "--requests",    asked,
                                    "--upcycle", "2",          "--granularity", "2",
                                    "--router",  "top1:cf=inf"};
  const auto refused = run_moe(words, kLimit);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err,
             contains_text("moe: taking " + model + " as a mixture takes about 0.8 GB") &&
                 contains_text("--force-memory tries it"));
  words.emplace_back("--force-memory");
  const auto forced = run_moe(words, kLimit);
  INFO(forced.err);
  CHECK(forced.exit_code == 0);  // this machine has them, outside of what the limit counts
}

TEST_CASE("the ranks of a host are counted together", "[cli]") {
  const TempDir dir;
  write_large_model(dir / "large");
  write_file(dir / "asked.jsonl", long_request(1'000'000));  // 400 GB at once
  const auto run = run_moe({"eval", (dir / "large").string(), "--requests",
                            (dir / "asked.jsonl").string(), "--ranks", "2", "-q"});
  INFO(run.err);
  CHECK(run.exit_code == 2);
  CHECK_THAT(run.err, contains_text("of memory in 2 processes, "));
}

TEST_CASE("a ulimit is heeded and --force-memory goes on", "[cli]") {
  const TempDir dir;
  fs::copy(tiny_model(), dir / "m");
  Json config = read_json(dir / "m" / "config.json");
  config["max_position_embeddings"] = 1 << 20;
  write_file(dir / "m" / "config.json", config.dump());
  // Keys and values of so many tokens would take 2 GB; EOS comes after some twenty.
  std::vector<std::string> words = {
      "generate", (dir / "m").string(), "--prompt", "Question: a", "--max-tokens",
      "1000000",  "--threads",          "1"};
  const std::string limit = "ulimit -v 1500000; timeout 300";
  const auto refused = run_moe(words, limit);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err,
             contains_text("of memory, ulimit -v leaves ") && contains_text("--max-tokens"));
  words.push_back("--force-memory");
  const auto forced = run_moe(words, limit);
  INFO(forced.err);
  CHECK(forced.exit_code == 0);
  CHECK(forced.out.size() > 10);
}

TEST_CASE("a dry run notes what is short and goes on", "[cli]") {
  const TempDir dir;
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const auto run = run_moe({"train", tiny_model().string(), "--data", (dir / "rows.jsonl").string(),
                            "--steps", "1", "--micro-batch", "1000000000", "--seq-len", "64",
                            "--pack", "stream", "--dry-run"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  CHECK_THAT(run.err, contains_text("a smaller --micro-batch, --recompute layer, --lora 8, "
                                    "--optimizer-state bf16 take less"));
}
