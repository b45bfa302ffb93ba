// Models larger than memory, whose limit is RLIMIT_DATA.

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

// 4 x (4 x 3 x 2816 x 1024 + 2.5 x 1024^2) + 2 x 1024 x 1024 numbers: 302 MB in bf16.
const char* const kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 1024, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
  "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "initializer_range": 0.05})";
const char* const kLimit = "ulimit -d 150000;";  // KiB

}  // namespace

TEST_CASE("a mixture larger than memory is evaluated and generates text", "[cli]") {
  const TempDir dir;
  write_file(dir / "config.json", kConfig);
  const std::string folder = (dir / "m").string();
  succeed({"init", (dir / "config.json").string(), "--experts", "4", "--router", "top2", "-o",
           folder, "--tokenizer", tiny("model"), "-q"});
  std::string requests;
  for (int number = 0; number < 20; ++number) {
    requests += fmt::format(
        "{{\"context\": \"Lily has {} dogs\", \"continuation\": \" and cats\"}}\n", number);
  }
  write_file(dir / "requests.jsonl", requests);

  const Words generate = {"generate",     folder, "--prompt",  "Once upon a time",
                          "--max-tokens", "5",    "--threads", "1"};
  // A group of 16,384 tokens would not fit; the request is smaller.
  const Words eval = {"eval",      folder, "--requests", (dir / "requests.jsonl").string(),
                      "--threads", "1",    "-q"};
  for (const auto& command : {generate, eval}) {
    const auto limited = succeed(command, kLimit);
    CHECK(limited.out.size() > 20);
    CHECK(limited.out == succeed(command).out);
  }
  // A copy of the weights does not fit below the limit.
  check_refused(run_moe({"bench", "load", folder, "--repeats", "1"}, kLimit),
                "takes about 0.6 GB of memory, ulimit -d leaves 0.1 GB");
}
