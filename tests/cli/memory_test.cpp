// Commands that need more memory than is available are refused before a model is loaded. The tests
// limit memory by RLIMIT_DATA; large models are sparse files.

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

// With 4 experts: 4 x (4 x 3 x 2816 x 1024 + 2.5 x 1024^2) + 2 x 1024 x 1024 parameters, 302 MB in
// bf16.
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
  write_file(dir / "requests.jsonl", long_request(3000));
  const std::string rows = dir / "rows.jsonl", requests = dir / "requests.jsonl";
  for (const auto& [args, fact] : std::vector<std::pair<Args, std::string>>{
           {{"generate", model, "--prompt", "a", "--max-tokens", "1000000"},
            "generating with " + model + " takes about"},
           {{"eval", model, "--requests", requests}, "evaluating " + model + " takes about"},
           {{"train", model, "--data", rows, "-o", out, "--steps", "1", "--micro-batch", "1"},
            "training " + model + " takes about"},
           {{"upcycle", model, "-o", out, "--verify"},
            "running " + model + " and its mixture takes"},
           {{"upcycle", model, "-o", out, "--router", "topp:0.5", "--gate-scale", "auto"},
            "running " + model + " takes about"},
           {{"bench", "train", model, "--rows", "1", "--seq-len", "4"},
            "training " + model + " takes"}}) {
    const auto run = run_moe(args, kLimit);
    CAPTURE(args);
    check_refused(run, "moe: " + fact);
    check_contains(run.err, {", ulimit -d leaves 0.", "--force-memory tries it"});
    CHECK_FALSE(fs::exists(out));
  }
}

TEST_CASE("eval --upcycle --granularity refuses experts larger than memory", "[cli]") {
  const TempDir dir;
  const std::string model = dir / "large", requests = dir / "requests.jsonl";
  write_large_model(model, 1 << 13);  // 0.8 GB of experts, which are copied
  write_file(requests, long_request(1));
  const auto refused = run_moe({"eval", model, "--requests", requests, "--upcycle", "2",
                                "--granularity", "2", "--router", "top1:cf=inf"},
                               kLimit);
  check_refused(refused, "moe: upcycling " + model + " in memory takes about 0.8 GB");
}

TEST_CASE("the memory estimate includes all ranks of a host", "[cli]") {
  const TempDir dir;
  write_large_model(dir / "large");
  write_file(dir / "requests.jsonl", long_request(500'000));  // 200 GB of activations
  check_refused({"eval", dir / "large", "--requests", dir / "requests.jsonl", "--ranks", "2", "-q"},
                "of memory in 2 processes, ");
}

TEST_CASE("ulimit -v limits memory, and --force-memory ignores the estimate", "[cli]") {
  const TempDir dir;
  fs::copy(tiny("model"), dir / "m");
  Json config = read_json(dir / "m" / "config.json");
  config["max_position_embeddings"] = 1 << 20;
  write_file(dir / "m" / "config.json", config.dump());
  // The KV cache of 1,000,000 tokens needs 2 GB; the model generates EOS after about 20.
  const Args args = {"generate",     dir / "m", "--prompt",  "Question: a",
                     "--max-tokens", "1000000", "--threads", "1"};
  const std::string limit = "ulimit -v 1500000; timeout 300";
  const auto refused = run_moe(args, limit);
  check_refused(refused, "of memory, ulimit -v leaves ");
  check_contains(refused.err, {"--max-tokens"});
  CHECK(succeed(joined(args, {"--force-memory"}), limit).out.size() > 10);
}

TEST_CASE("a dry run notes that memory is short and succeeds", "[cli]") {
  const TempDir dir;
  write_file(dir / "rows.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const auto run =
      succeed({"train", tiny("model"), "--data", dir / "rows.jsonl", "--steps", "1",
               "--micro-batch", "1000000000", "--seq-len", "64", "--pack", "stream", "--dry-run"});
  check_contains(run.err,
                 {"a smaller --micro-batch, --recompute layer, --lora 8, --optimizer-state bf16 "
                  "take less"});
}

// A model larger than RLIMIT_DATA, whose weights are used in place from mapped files.

TEST_CASE("eval and generate run a mixture larger than memory", "[cli]") {
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

  const Args generate = {"generate",     folder, "--prompt",  "Once upon a time",
                         "--max-tokens", "5",    "--threads", "1"};
  // A routing group of 16,384 tokens would not fit, but the estimate is for these short requests.
  const Args eval = {"eval", folder, "--requests", dir / "requests.jsonl", "--threads", "1", "-q"};
  for (const auto& command : {generate, eval}) {
    const auto limited = succeed(command, kMixtureLimit);
    CHECK(limited.out.size() > 20);
    CHECK(limited.out == succeed(command).out);
  }
  // moe bench load copies the weights, which exceeds the limit.
  check_refused(run_moe({"bench", "load", folder, "--repeats", "1"}, kMixtureLimit),
                "takes about 0.6 GB of memory, ulimit -d leaves 0.1 GB");
}
