// Input files that are endless, deeply nested, or change while they are read.

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/commands.h"
#include "tests/support/process.h"

namespace moe {
namespace {

using namespace moe::test;

struct World : TrainingWorld {
  World() { REQUIRE(::mkfifo((dir / "pipe.jsonl").c_str(), 0600) == 0); }
};

const char* const kTimeout = "timeout -s KILL 60";

TEST_CASE("a pipe as data is refused without blocking; a recipe may be the shell's pipe", "[cli]") {
  const World world;
  const std::string pipe = world.path("pipe.jsonl"), dense = world.path("dense");
  check_refused(run_moe({"train", dense, "-o", world.path("run"), "--data", pipe}, kTimeout),
                pipe + ": is not a regular file");
  const Words upcycle = {"upcycle", dense, "-o", world.path("out"), "--config"};
  for (const std::string& file : {pipe, dense}) {
    check_refused(run_moe(joined(upcycle, {file}), kTimeout), file);
  }
  succeed(joined(upcycle, {"/dev/null"}));
}

TEST_CASE("a sparse file of the tokenizer, larger than memory, is refused", "[cli]") {
  const World world;
  for (const char* name : {"chat_template.jinja", "tokenizer.json", "generation_config.json"}) {
    const fs::path file = world.dir / "dense" / name;
    write_file(file, "{}");
    fs::resize_file(file, uint64_t{1} << 36);
    check_refused(
        run_moe({"upcycle", world.path("dense"), "-o", world.path("sparse"), "--experts", "2"},
                kTimeout),
        file.string());
    CHECK_FALSE(fs::exists(world.dir / "sparse"));
    fs::remove(file);
  }
}

TEST_CASE("SIGTERM ends a command that waits for a pipe", "[cli]") {
  const World world;
  const std::string pipe = world.path("pipe.jsonl");
  for (const Words& words : {Words{"eval", world.path("dense"), "--requests", pipe},
                             world.training({"--eval-tasks", pipe, "--eval-every", "1"})}) {
    CAPTURE(words);
    Process process(words);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::kill(process.pid(), SIGTERM);
    CHECK(process.exit_code() == 128 + SIGTERM);
  }
}

TEST_CASE("a deeply nested task file or recipe is refused without a stack overflow", "[cli]") {
  const World world;
  std::string dots = "1", nested = "a";
  for (int depth = 0; depth < 20000; ++depth) {
    dots = std::string("a") + (depth == 0 ? " = " : ".") + dots;
    nested = "a.index(" + nested + ")";
  }
  const std::string dense = world.path("dense"), dots_file = world.path("dots.toml"),
                    nested_file = world.path("nested.toml");
  write_file(dots_file, dots);
  write_file(nested_file, "data = \"rows.jsonl\"\ndoc_to_text = \"{{" + nested + "}}\"\n");
  check_refused({"eval", dense, "--tasks", dots_file}, "moe: ");
  check_refused({"eval", dense, "--tasks", nested_file}, "moe: ");
  check_refused({"--config", dots_file, "inspect", dense}, "moe: ");
}

constexpr const char* kFaults[] = {"pipe", "folder", "deep", "other types", "no text"};

// Replaces `file` by one with a fault of kFaults.
void spoil(const fs::path& file, const std::string& fault) {
  fs::remove_all(file);
  fs::create_directories(file.parent_path());
  if (fault == "pipe") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  } else if (fault == "folder") {
    fs::create_directory(file);
  } else if (fault == "deep") {
    write_file(file, "{\"step\": " + std::string(100000, '[') + std::string(100000, ']') + "}\n");
  } else if (fault == "other types") {
    write_file(file,
               "{\"step\": \"x\", \"text\": [], \"model\": 3, \"router\": null, "
               "\"added_tokens\": 1, \"chat_template\": 2, \"eos_token_id\": {}}\n");
  } else {
    write_file(file, std::string("\xFF\0\x01 no text", 11));
  }
}

// Checks that a command ends soon with exit code 0 or 2, which is returned, and that its message
// has no words of a library.
int check_ends_plainly(const Words& words) {
  const RunResult result = run_moe(words, kTimeout);
  CAPTURE(words, result.exit_code, result.err);
  CHECK((result.exit_code == 0 || result.exit_code == 2));
  for (const char* internal : {"exception", "_M_range_check", "filebuf", "does not hold",
                               "internal error", "Exception raised", "std::"}) {
    CHECK(result.err.find(internal) == std::string::npos);
  }
  return result.exit_code;
}

TEST_CASE("each file of a model folder that is not regular, or deeply nested, is refused",
          "[cli]") {
  const World world;
  const std::string model = world.path("model");
  size_t turn = 0;  // of the faults; tests/slow/hostile.py tries all of them in every file
  const Words inspect = {"inspect", model};
  const Words generate = {"generate", model, "--chat", "--prompt", "a", "--max-tokens", "1"};
  for (const auto& [name, command] :
       std::vector<std::pair<std::string, Words>>{{"config.json", inspect},
                                                  {"model.safetensors", inspect},
                                                  {"tokenizer.model", {"tokenize", model, "a"}},
                                                  {"tokenizer.json", generate},
                                                  {"tokenizer_config.json", generate},
                                                  {"special_tokens_map.json", generate},
                                                  {"generation_config.json", generate},
                                                  {"chat_template.jinja", generate},
                                                  {"upcycle.json", inspect},
                                                  {"model.safetensors.index.json", inspect}}) {
    const char* fault = kFaults[turn++ % std::size(kFaults)];
    CAPTURE(name, fault);
    fs::remove_all(model);
    fs::copy(tiny("facts/model"), model);
    spoil(world.dir / "model" / name, fault);
    CHECK((check_ends_plainly(command) == 2 || command == generate || command == inspect));
  }
}

TEST_CASE("each file of a run folder that is not regular, or deeply nested, is refused", "[cli]") {
  const World world;
  const Words train =
      world.training({"--steps", "4", "--save-every", "2", "--seq-len", "8", "--quiet"});
  succeed(train);
  fs::remove_all(world.dir / "run/final");
  fs::rename(world.dir / "run", world.dir / "kept");
  const std::string last = "checkpoints/step-4/";
  size_t turn = 0;
  for (const std::string& name :
       {std::string("settings.toml"), std::string(".moe-run"), std::string("inputs.json"),
        std::string("metrics.jsonl"), std::string("samples.jsonl"), std::string("starts.jsonl"),
        last + "state.safetensors", last + "state.json", last + "checksums.json",
        last + "history.json"}) {
    const char* fault = kFaults[turn++ % std::size(kFaults)];
    CAPTURE(name, fault);
    fs::remove_all(world.dir / "run");
    fs::copy(world.dir / "kept", world.dir / "run", fs::copy_options::recursive);
    spoil(world.dir / "run" / name, fault);
    if (name.starts_with(last)) {
      check_ends_plainly(
          world.training({"--steps", "1", "--seq-len", "8", "--force"}, "run/" + last, "next"));
    } else {
      check_ends_plainly({"report", world.path("run"), "-o", world.path("page.html"), "--force"});
    }
    check_ends_plainly(train);
  }
}

TEST_CASE("a token cache that is cut short while a run reads it is named", "[cli]") {
  const World world;
  Process process(world.training({"--steps", "100000000", "--cache", world.path("cache")}));
  REQUIRE(wait_until(
      [&] { return fs::exists(world.dir / "run/metrics.jsonl") || process.has_ended(); }));
  const fs::path cut = fs::directory_iterator(world.dir / "cache")->path();
  REQUIRE(cut.extension() == ".tokens");
  fs::resize_file(cut, 0);
  const RunResult result = process.result();
  CHECK(result.exit_code == 1);
  CHECK(says(result.err, "moe: " + cut.string() + ": was cut short while it was read"));
}

}  // namespace
}  // namespace moe
