// Files that a user names and that never end, nest without end, or change under the program.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::run_moe;
using test::RunResult;
using test::TempDir;

using Words = std::vector<std::string>;

struct World {
  TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    test::write_training_rows(dir / "rows.jsonl", 64);
    REQUIRE(::mkfifo((dir / "pipe.jsonl").c_str(), 0600) == 0);
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }
  Words train(const std::string& data) const {
    return {"train", path("dense"), "-o", path("run"), "--data", path(data), "--threads", "1"};
  }
};

// The process that runs moe, its standard error in `errors`.
pid_t start(Words words, const std::string& errors) {
  words.insert(words.begin(), test::moe_binary());
  std::vector<char*> arguments;
  for (auto& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return child;
}

// The exit code, or minus the signal; the process is killed (-SIGKILL) when it is not over in
// `seconds`.
int end_of(pid_t child, int seconds) {
  int status = 0;
  for (int wait = 0; wait < seconds * 100; ++wait) {
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return -SIGKILL;
}

TEST_CASE("--data is a regular file: a pipe is refused, and nobody waits for its other end",
          "[cli]") {
  const World world;
  const pid_t child = start(world.train("pipe.jsonl"), world.path("err"));
  CHECK(end_of(child, 60) == 2);
  CHECK(test::read_file(world.dir / "err") ==
        "moe: " + world.path("pipe.jsonl") +
            ": is not a regular file (a pipe or a device); write it to a disk first\n");
}

TEST_CASE("a recipe is a regular file or the shell's pipe", "[cli]") {
  const World world;
  for (const std::string& file : {world.path("pipe.jsonl"), world.path("dense")}) {
    const RunResult result =
        run_moe({"upcycle", world.path("dense"), "-o", world.path("out"), "--config", file},
                "timeout -s KILL 60");
    CAPTURE(file, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(file) != std::string::npos);
  }
  CHECK(run_moe({"upcycle", world.path("dense"), "-o", world.path("out"), "--config", "/dev/null"})
            .exit_code == 0);
}

TEST_CASE("a tokenizer file of any size that takes no disk space is refused", "[cli]") {
  const World world;
  for (const char* name : {"chat_template.jinja", "tokenizer.json", "generation_config.json"}) {
    const std::filesystem::path file = world.dir / "dense" / name;
    const bool is_new = !std::filesystem::exists(file);
    test::write_file(file, is_new ? "{}" : test::read_file(file));
    std::filesystem::resize_file(file, uint64_t{1} << 36);
    const RunResult result =
        run_moe({"upcycle", world.path("dense"), "-o", world.path("sparse"), "--experts", "2"},
                "timeout -s KILL 60");
    CAPTURE(name, result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(file.string()) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(world.dir / "sparse"));
    std::filesystem::remove(file);
  }
}

TEST_CASE("SIGTERM ends a command that waits for a file which says nothing", "[cli]") {
  const World world;
  Words train = world.train("rows.jsonl");
  train.insert(train.end(), {"--eval-tasks", world.path("pipe.jsonl"), "--eval-every", "1"});
  for (const Words& words :
       {Words{"eval", world.path("dense"), "--tasks", world.path("pipe.jsonl")},
        Words{"eval", world.path("dense"), "--requests", world.path("pipe.jsonl")}, train}) {
    CAPTURE(words);
    const pid_t child = start(words, world.path("err"));
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::kill(child, SIGTERM);
    CHECK(end_of(child, 60) == -SIGTERM);
  }
}

TEST_CASE("what nests without end in a task file is refused, and no stack overflows", "[cli]") {
  const World world;
  std::string dots = "1", nested = "a";
  for (int depth = 0; depth < 20000; ++depth) {
    dots = std::string("a") + (depth == 0 ? " = " : ".") + dots;
    nested = "a.index(" + nested + ")";
  }
  test::write_file(world.dir / "dots.toml", dots);
  test::write_file(world.dir / "nested.toml",
                   "data = \"rows.jsonl\"\ndoc_to_text = \"{{" + nested + "}}\"\n");
  for (const Words& words :
       {Words{"eval", world.path("dense"), "--tasks", world.path("dots.toml")},
        Words{"eval", world.path("dense"), "--tasks", world.path("nested.toml")},
        Words{"--config", world.path("dots.toml"), "inspect", world.path("dense")}}) {
    CAPTURE(words);
    const RunResult result = run_moe(words);
    CHECK(result.exit_code == 2);
    CHECK(result.err.starts_with("moe: "));
  }
}

// Replaces `file` by something that is no file of its kind.
void spoil(const std::filesystem::path& file, const std::string& how) {
  std::filesystem::remove_all(file);
  std::filesystem::create_directories(file.parent_path());
  const std::string deep(100000, '['), close(100000, ']');
  if (how == "pipe") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  } else if (how == "folder") {
    std::filesystem::create_directory(file);
  } else if (how == "deep") {
    test::write_file(file, "{\"step\": " + deep + close + "}\n");
  } else if (how == "other types") {
    test::write_file(file,
                     "{\"step\": \"x\", \"text\": [], \"model\": 3, \"router\": null, "
                     "\"added_tokens\": 1, \"chat_template\": 2, \"eos_token_id\": {}}\n");
  } else {
    test::write_file(file, std::string("\xFF\0\x01 no text", 11));
  }
}

// `moe WORDS` ends soon: well, or by a sentence that holds no word of a library's.
void check_ends_plainly(const Words& words) {
  const RunResult result = run_moe(words, "timeout -s KILL 60");
  CAPTURE(words, result.exit_code, result.err);
  CHECK((result.exit_code == 0 || result.exit_code == 2));
  for (const char* internal : {"exception", "_M_range_check", "filebuf", "does not hold",
                               "internal error", "Exception raised", "std::"}) {
    CHECK(result.err.find(internal) == std::string::npos);
  }
}

constexpr const char* kHowSpoilt[] = {"pipe", "folder", "deep", "other types", "no text"};

TEST_CASE("a file of a model folder that is no file, or nests without end, is refused", "[cli]") {
  const World world;
  const std::string model = world.path("model");
  for (const std::string name :
       {"config.json", "model.safetensors", "tokenizer.model", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
        "chat_template.jinja", "upcycle.json", "model.safetensors.index.json"}) {
    for (const std::string how : kHowSpoilt) {
      std::filesystem::remove_all(model);
      std::filesystem::copy(test::source_folder() / "recipes/tiny/facts/model", model);
      spoil(world.dir / "model" / name, how);
      CAPTURE(name, how);
      check_ends_plainly({"inspect", model});
      check_ends_plainly({"generate", model, "--chat", "--prompt", "a", "--max-tokens", "1"});
      if (name == "tokenizer.model") {
        const RunResult result = run_moe({"tokenize", model, "a"}, "timeout -s KILL 60");
        CHECK(result.exit_code == 2);
        CHECK(result.err.find(model + "/tokenizer.model: ") != std::string::npos);
      }
    }
  }
}

TEST_CASE("a file of a run folder that is no file, or nests without end, is refused", "[cli]") {
  const World world;
  Words train = world.train("rows.jsonl");
  train.insert(train.end(), {"--steps", "4", "--save-every", "2", "--seq-len", "8"});
  const RunResult whole = run_moe(train);
  INFO(whole.err);
  REQUIRE(whole.exit_code == 0);
  std::filesystem::remove_all(world.dir / "run/final");
  std::filesystem::rename(world.dir / "run", world.dir / "kept");
  for (const std::string name :
       {"settings.toml", ".moe-run", "inputs.json", "metrics.jsonl", "samples.jsonl",
        "starts.jsonl", "checkpoints/step-4/state.safetensors", "checkpoints/step-4/state.json",
        "checkpoints/step-4/checksums.json", "checkpoints/step-4/history.json"}) {
    for (const std::string how : kHowSpoilt) {
      std::filesystem::remove_all(world.dir / "run");
      std::filesystem::copy(world.dir / "kept", world.dir / "run",
                            std::filesystem::copy_options::recursive);
      spoil(world.dir / "run" / name, how);
      CAPTURE(name, how);
      check_ends_plainly({"report", world.path("run"), "-o", world.path("page.html"), "--force"});
      check_ends_plainly(train);
      check_ends_plainly({"train", world.path("run/checkpoints/step-4"), "--data",
                          world.path("rows.jsonl"), "-o", world.path("next"), "--steps", "1",
                          "--seq-len", "8", "--force"});
    }
  }
}

TEST_CASE("a token cache that is cut short while a run reads it is named", "[cli]") {
  const World world;
  Words words = world.train("rows.jsonl");
  words.insert(words.end(), {"--steps", "100000000", "--cache", world.path("cache")});
  const pid_t child = start(words, world.path("err"));
  for (int wait = 0; wait < 6000 && !std::filesystem::exists(world.dir / "run/metrics.jsonl");
       ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::filesystem::path cut;
  for (const auto& entry : std::filesystem::directory_iterator(world.dir / "cache")) {
    cut = entry.path();
  }
  REQUIRE(cut.extension() == ".tokens");
  std::filesystem::resize_file(cut, 0);
  CHECK(end_of(child, 60) == 1);
  const std::string said = test::read_file(world.dir / "err");
  CAPTURE(said);
  CHECK(said.find("moe: " + cut.string() +
                  ": was cut short while it was read, or its disk failed; put the whole file there "
                  "and start again\n") != std::string::npos);
}

}  // namespace
}  // namespace moe
