// A command that needs more memory than available is refused before it loads a model. RLIMIT_DATA
// is the limit of memory; the model of several GB is a sparse file.

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

constexpr int64_t kVocab = int64_t{1} << 18, kWidth = int64_t{1} << 13;  // 8 GiB of embeddings
constexpr int64_t kHeads = 64;
const char* const kLimit = "ulimit -d 130000;";  // KiB

void write_large_model(const fs::path& folder, int64_t inner = 64) {
  write_sparse_checkpoint(folder, {.hidden = kWidth,
                                   .intermediate = inner,
                                   .layers = 1,
                                   .heads = kHeads,
                                   .kv_heads = kHeads,
                                   .vocab = kVocab,
                                   .max_positions = int64_t{1} << 20,
                                   .tied = true});
  fs::copy_file(tiny("model/tokenizer.model"), folder / "tokenizer.model");
}

// One request of about `tokens` tokens.
std::string long_request(int64_t tokens) {
  std::string context = "a";
  for (int64_t i = 1; i < tokens; ++i) {
    context += " a";
  }
  return R"({"context": ")" + context + R"(", "continuation": " b"})";
}

// 4 x (4 x 3 x 2816 x 1024 + 2.5 x 1024^2) + 2 x 1024 x 1024 numbers: 302 MB in bf16.
const char* const kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
  "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "initializer_range": 0.05})";
const char* const kMixtureLimit = "ulimit -d 150000;";  // KiB

}  // namespace

TEST_CASE("each command refuses a model larger than memory before loading it", "[cli]") {
  const TempDir dir;
  const std::string model = dir / "large", out = dir / "out";
  write_large_model(model);
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  write_file(dir / "asked.jsonl", long_request(3000));
  const std::string rows = dir / "rows.jsonl", asked = dir / "asked.jsonl";
  for (const auto& [words, fact] : std::vector<std::pair<Words, std::string>>{
           {{"generate", model, "--prompt", "a", "--max-tokens", "1000000"},
            "generating with " + model + " takes about"},
           {{"eval", model, "--requests", asked}, "evaluating " + model + " takes about"},
           {{"train", model, "--data", rows, "-o", out, "--steps", "1", "--micro-batch", "1"},
            "training " + model + " takes about"},
           {{"upcycle", model, "-o", out, "--verify"},
            "running " + model + " and its mixture takes"},
           {{"upcycle", model, "-o", out, "--router", "topp:0.5", "--gate-scale", "auto"},
            "running " + model + " takes about"},
           {{"bench", "train", model, "--rows", "1", "--seq-len", "4"},
            "training " + model + " takes"}}) {
    const auto run = run_moe(words, kLimit);
    CAPTURE(words);
    check_refused(run, "moe: " + fact);
    check_has(run.err, {", ulimit -d leaves 0.", "--force-memory tries it"});
    CHECK_FALSE(fs::exists(out));
  }
}

TEST_CASE("an evaluation with --upcycle refuses slices of experts larger than memory", "[cli]") {
  const TempDir dir;
  const std::string model = dir / "large", asked = dir / "asked.jsonl";
  write_large_model(model, 1 << 13);  // slices of 0.8 GB
  write_file(asked, long_request(1));
  const auto refused = run_moe({"eval", model, "--requests", asked, "--upcycle", "2",
                                "--granularity", "2", "--router", "top1:cf=inf"},
                               kLimit);
  check_refused(refused, "moe: taking " + model + " as a mixture takes about 0.8 GB");
}

TEST_CASE("the memory need of all ranks of a host is added up", "[cli]") {
  const TempDir dir;
  write_large_model(dir / "large");
  write_file(dir / "asked.jsonl", long_request(500'000));  // 200 GB at once
  check_refused({"eval", dir / "large", "--requests", dir / "asked.jsonl", "--ranks", "2", "-q"},
                "of memory in 2 processes, ");
}

TEST_CASE("a ulimit is a limit of memory, and --force-memory overrides it", "[cli]") {
  const TempDir dir;
  fs::copy(tiny("model"), dir / "m");
  Json config = read_json(dir / "m" / "config.json");
  config["max_position_embeddings"] = 1 << 20;
  write_file(dir / "m" / "config.json", config.dump());
  // Keys and values of so many tokens would take 2 GB; EOS comes after some twenty.
  const Words words = {"generate",     dir / "m", "--prompt",  "Question: a",
                       "--max-tokens", "1000000", "--threads", "1"};
  const std::string limit = "ulimit -v 1500000; timeout 300";
  const auto refused = run_moe(words, limit);
  check_refused(refused, "of memory, ulimit -v leaves ");
  check_has(refused.err, {"--max-tokens"});
  CHECK(succeed(joined(words, {"--force-memory"}), limit).out.size() > 10);
}

TEST_CASE("a dry run notes that memory is short and succeeds", "[cli]") {
  const TempDir dir;
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const auto run =
      succeed({"train", tiny("model"), "--data", dir / "rows.jsonl", "--steps", "1",
               "--micro-batch", "1000000000", "--seq-len", "64", "--pack", "stream", "--dry-run"});
  check_has(run.err,
            {"a smaller --micro-batch, --recompute layer, --lora 8, --optimizer-state bf16 "
             "take less"});
}

// Models larger than memory, whose limit is RLIMIT_DATA.

TEST_CASE("a mixture larger than memory is evaluated and generates text", "[cli]") {
  const TempDir dir;
  write_file(dir / "config.json", kConfig);
  const std::string folder = dir / "m";
  succeed({"init", dir / "config.json", "--experts", "4", "--router", "top2", "-o", folder,
           "--tokenizer", tiny("model"), "-q"});
  std::string requests;
  for (int number = 0; number < 20; ++number) {
    requests += fmt::format(
        "{{\"context\": \"Lily has {} dogs\", \"continuation\": \" and cats\"}}\n", number);
  }
  write_file(dir / "requests.jsonl", requests);

  const Words generate = {"generate",     folder, "--prompt",  "Once upon a time",
                          "--max-tokens", "5",    "--threads", "1"};
  // A group of 16,384 tokens would not fit; the request is smaller.
  const Words eval = {"eval", folder, "--requests", dir / "requests.jsonl", "--threads", "1", "-q"};
  for (const auto& command : {generate, eval}) {
    const auto limited = succeed(command, kMixtureLimit);
    CHECK(limited.out.size() > 20);
    CHECK(limited.out == succeed(command).out);
  }
  // A copy of the weights does not fit below the limit.
  check_refused(run_moe({"bench", "load", folder, "--repeats", "1"}, kMixtureLimit),
                "takes about 0.6 GB of memory, ulimit -d leaves 0.1 GB");
}
