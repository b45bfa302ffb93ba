// moe generate as a user runs it.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"

using moe::test::run_moe;

TEST_CASE("greedy text begins with the prompt and repeats itself", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (moe::test::shared_data() / "stories260K-hf").string();
  const auto first =
      run_moe({"generate", model, "--prompt", "Once upon a time", "--max-tokens", "12"});
  CHECK(first.exit_code == 0);
  CHECK(first.out.rfind("Once upon a time, there was a little girl named Lily.", 0) == 0);
  CHECK(first.out ==
        run_moe({"generate", model, "--prompt", "Once upon a time", "--max-tokens", "12"}).out);
}

TEST_CASE("sampling depends on the seed alone", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (moe::test::shared_data() / "stories260K-hf").string();
  const auto sample = [&](const char* seed) {
    return run_moe({"generate", model, "--prompt", "The", "--temperature", "1", "--top-p", "0.9",
                    "--seed", seed, "--max-tokens", "30", "--json"})
        .out;
  };
  CHECK(sample("1") == sample("1"));
  CHECK(sample("1") != sample("2"));
  const auto ids = moe::Json::parse(sample("1"));
  CHECK(ids.at("prompt_ids").front() == 1);  // BOS
  CHECK(ids.at("ids").size() <= 30);
}

TEST_CASE("generate names what it cannot do", "[cli]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {});
  const std::string model = (folder / "m").string();
  const auto no_tokenizer = run_moe({"generate", model, "--prompt", "a"});
  CHECK(no_tokenizer.exit_code == 2);
  CHECK(no_tokenizer.err.find("tokenizer.model") != std::string::npos);
  const auto dense = run_moe({"generate", model, "--prompt", "a", "--router", "top1"});
  CHECK(dense.exit_code == 2);
  CHECK(dense.err.find("dense") != std::string::npos);
  const auto hot = run_moe({"generate", model, "--prompt", "a", "--temperature", "-1"});
  CHECK(hot.exit_code == 2);
  CHECK(hot.err.find("--temperature") != std::string::npos);
}
