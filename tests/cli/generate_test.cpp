// moe generate.

#include "core/base/json.h"
#include "tests/cli/commands.h"

using moe::Json;
using namespace moe::test;

TEST_CASE("moe generate prints the prompt and a greedy continuation, in f32 and bf16") {
  const Args args = {"generate",     tiny("model"), "--prompt",   "The number before 31 is",
                     "--max-tokens", "12",          "--precision"};
  for (const std::string precision : {"fp32", "bf16"}) {
    CHECK(succeed(joined(args, {precision}))
              .out.starts_with("The number before 31 is 30. The number"));
  }
  check_refused(joined(args, {"tf32"}), "only CUDA GPUs support TF32");
}

TEST_CASE("sampling is reproducible from the seed") {
  const auto sample = [&](const char* seed) {
    return succeed({"generate", tiny("model"), "--prompt", "The", "--temperature", "1", "--top-p",
                    "0.9", "--seed", seed, "--bos", "on", "--max-tokens", "30", "--json"})
        .out;
  };
  const std::string first = sample("1");
  CHECK(first == sample("1"));
  CHECK(first != sample("2"));
  CHECK(first != sample("9223372036854775807"));
  const auto ids = Json::parse(first);
  CHECK(ids.at("prompt_ids").front() == 1);  // BOS
  CHECK(ids.at("ids").size() <= 30);
}

TEST_CASE("generate prints notes on a replaced router") {
  const TempDir dir;
  succeed({"upcycle", tiny("model"), "-o", dir / "moe", "--experts", "4", "--quiet"});
  const auto run = succeed({"generate", dir / "moe", "--prompt", "The", "--max-tokens", "1",
                            "--router", "top1:cf=inf,gate=none", "--force"});
  INFO(run.err);
  std::istringstream lines(run.err);
  for (std::string line; std::getline(lines, line);) {
    CHECK((line.starts_with("note: ") || line.starts_with("warning: ")));
  }
  CHECK(run.err.find("note: ") != std::string::npos);
}

TEST_CASE("generate refuses a folder without tokenizer and invalid flags") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "m", {});
  const Args args = {"generate", folder / "m", "--prompt", "a"};
  check_refused(args, "tokenizer.model");
  check_refused(joined(args, {"--router", "top1"}), "dense");
  check_refused(joined(args, {"--temperature", "-1"}), "--temperature");
}

TEST_CASE("generate --chat applies the model's chat template and stops at the end of the answer") {
  const TempDir dir;
  fs::copy(tiny("model"), dir / "m", fs::copy_options::recursive);
  const Args args = {"generate", dir / "m", "--prompt", "Name a river."};
  check_refused(joined(args, {"--chat"}), "has no chat template");
  check_refused(joined(args, {"--chat", "--template", "chatmle"}), "did you mean 'chatml'?");
  check_refused(joined(args, {"--template", "chatml"}), "needs --chat");
  check_refused(joined(args, {"--chat", "--template", "zephyr", "--bos", "on"}),
                "--bos on cannot be combined with --chat");
  write_file(dir / "m/chat_template.jinja",
             "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}"
             "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}");
  const auto chat = [&](const Args& flags) {
    return succeed(joined(args, joined({"--chat", "--json"}, flags))).out;
  };
  const std::string with_stored_template = chat({});
  CHECK(with_stored_template == chat({"--template", "zephyr"}));
  CHECK(with_stored_template != chat({"--template", "mistral"}));
  CHECK(with_stored_template == chat({"--template", dir / "m/chat_template.jinja"}));
  const auto json = Json::parse(with_stored_template);
  const std::vector<int64_t> ids = json.at("prompt_ids");
  CHECK(std::count(ids.begin(), ids.end(), 2) == 1);  // the EOS after the question, as a token
  CHECK(json.at("text").get<std::string>().find("river") == std::string::npos);  // only the answer
}
