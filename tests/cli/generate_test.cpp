// moe generate as a user runs it.

#include <algorithm>

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

TEST_CASE("text in bf16 is text of the same model", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (moe::test::shared_data() / "stories260K-hf").string();
  const auto text = run_moe({"generate", model, "--prompt", "Once upon a time", "--max-tokens",
                             "12", "--precision", "bf16"});
  CHECK(text.exit_code == 0);
  CHECK(text.out.rfind("Once upon a time, there was a little girl named Lily.", 0) == 0);
  const auto refused = run_moe({"generate", model, "--prompt", "Once", "--precision", "tf32"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("CUDA GPUs alone multiply in TF32") != std::string::npos);
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

TEST_CASE("generation ends after any of the end tokens of the folder", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const moe::test::TempDir folder;
  const auto model = folder / "m";
  std::filesystem::create_directories(model);
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.model"}) {
    std::filesystem::copy(moe::test::shared_data() / "stories260K-hf" / file, model / file);
  }
  const auto ids = [&] {
    const auto result = run_moe(
        {"generate", model.string(), "--prompt", "Once upon", "--max-tokens", "12", "--json"});
    REQUIRE(result.exit_code == 0);
    return moe::Json::parse(result.out).at("ids").get<std::vector<int64_t>>();
  };
  const auto free = ids();
  REQUIRE(free.size() == 12);
  moe::test::write_file(model / "generation_config.json",
                        moe::Json{{"eos_token_id", {2, free[7], free[5]}}}.dump());
  const auto stopped = ids();
  CHECK(stopped.size() <= 6);
  CHECK((stopped.back() == free[5] || stopped.back() == free[7]));
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

TEST_CASE("generate --chat asks in the folder's form and stops where the answer ends", "[cli]") {
  const moe::test::TempDir dir;
  const auto tiny = moe::test::source_folder() / "recipes/tiny/model";
  std::filesystem::copy(tiny, dir / "m", std::filesystem::copy_options::recursive);
  const std::string model = (dir / "m").string();
  const auto ask = [&](std::vector<std::string> flags) {
    std::vector<std::string> words = {"generate", model, "--prompt", "Name a river."};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  };
  const auto check_refused = [&](const std::vector<std::string>& flags, const std::string& part) {
    const auto result = ask(flags);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(part) != std::string::npos);
  };
  check_refused({"--chat"}, "has no chat template");
  check_refused({"--chat", "--template", "chatmle"}, "did you mean 'chatml'?");
  check_refused({"--template", "chatml"}, "needs --chat");
  check_refused({"--chat", "--template", "zephyr", "--bos", "on"}, "--bos on with --chat");
  moe::test::write_file(dir / "m/chat_template.jinja", "{{ '<|user|>' + content + eos_token }}");
  const auto by_folder = ask({"--chat", "--json"});
  INFO(by_folder.err);
  REQUIRE(by_folder.exit_code == 0);
  CHECK(by_folder.out == ask({"--chat", "--template", "zephyr", "--json"}).out);
  CHECK(by_folder.out != ask({"--chat", "--template", "mistral", "--json"}).out);
  const auto json = moe::Json::parse(by_folder.out);
  const std::vector<int64_t> ids = json.at("prompt_ids");
  CHECK(std::count(ids.begin(), ids.end(), 2) == 1);  // the EOS behind the question, as a token
  CHECK(json.at("text").get<std::string>().find("river") == std::string::npos);  // the answer alone
  // The template it was trained with: the answer comes without the question, and ends.
  const auto paper = ask({"--chat", "--template", "paper", "--max-tokens", "200", "--json"});
  REQUIRE(paper.exit_code == 0);
  CHECK(moe::Json::parse(paper.out).at("ids").size() <= 200);
}
