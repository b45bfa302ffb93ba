// Input files that are pipes, deeply nested, larger than memory, or change while they are read.

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/commands.h"
#include "tests/support/process.h"

namespace moe {
namespace {

using namespace moe::test;

struct Fixture : TrainingFixture {
  Fixture() { REQUIRE(::mkfifo((dir / "pipe.jsonl").c_str(), 0600) == 0); }
};

const char* const kTimeout = "timeout -s KILL 60";

TEST_CASE("a named pipe is refused as data or recipe without blocking", "[cli]") {
  const Fixture fixture;
  const std::string pipe = fixture.path("pipe.jsonl"), dense = fixture.path("dense");
  check_refused(run_moe({"train", dense, "-o", fixture.path("run"), "--data", pipe}, kTimeout),
                pipe + ": is not a regular file");
  const Args upcycle = {"upcycle", dense, "-o", fixture.path("out"), "--config"};
  for (const std::string& file : {pipe, dense}) {
    check_refused(run_moe(joined(upcycle, {file}), kTimeout), file);
  }
  succeed(joined(upcycle, {"/dev/null"}));
}

TEST_CASE("a tokenizer file larger than memory is refused", "[cli]") {
  const Fixture fixture;
  for (const char* name : {"chat_template.jinja", "tokenizer.json", "generation_config.json"}) {
    const fs::path file = fixture.dir / "dense" / name;
    write_file(file, "{}");
    fs::resize_file(file, uint64_t{1} << 36);
    check_refused(
        run_moe({"upcycle", fixture.path("dense"), "-o", fixture.path("sparse"), "--experts", "2"},
                kTimeout),
        file.string());
    CHECK_FALSE(fs::exists(fixture.dir / "sparse"));
    fs::remove(file);
  }
}

TEST_CASE("SIGTERM ends a command that waits for a pipe", "[cli]") {
  const Fixture fixture;
  const std::string pipe = fixture.path("pipe.jsonl");
  for (const Args& args : {Args{"eval", fixture.path("dense"), "--requests", pipe},
                           fixture.training({"--eval-tasks", pipe, "--eval-every", "1"})}) {
    CAPTURE(args);
    Process process(args);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::kill(process.pid(), SIGTERM);
    CHECK(process.exit_code() == 128 + SIGTERM);
  }
}

TEST_CASE("a deeply nested task file or recipe is refused without a stack overflow", "[cli]") {
  const Fixture fixture;
  std::string dots = "1", nested = "a";
  for (int depth = 0; depth < 20000; ++depth) {
    dots = std::string("a") + (depth == 0 ? " = " : ".") + dots;
    nested = "a.index(" + nested + ")";
  }
  const std::string dense = fixture.path("dense"), dots_file = fixture.path("dots.toml"),
                    nested_file = fixture.path("nested.toml");
  write_file(dots_file, dots);
  write_file(nested_file, "data = \"rows.jsonl\"\ndoc_to_text = \"{{" + nested + "}}\"\n");
  check_refused({"eval", dense, "--tasks", dots_file}, "moe: ");
  check_refused({"eval", dense, "--tasks", nested_file}, "moe: ");
  check_refused({"--config", dots_file, "inspect", dense}, "moe: ");
}

constexpr const char* kFaults[] = {"pipe", "folder", "deep", "other types", "no text"};

// Replaces `file` by one with the fault `fault`, one of kFaults.
void replace_by_fault(const fs::path& file, const std::string& fault) {
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

// Checks that a command ends with exit code 0 or 2 before the timeout, and that its message is not
// one of a library. Returns the exit code.
int check_ends_with_own_message(const Args& args) {
  const RunResult result = run_moe(args, kTimeout);
  CAPTURE(args, result.exit_code, result.err);
  CHECK((result.exit_code == 0 || result.exit_code == 2));
  for (const char* internal : {"exception", "_M_range_check", "filebuf", "does not hold",
                               "internal error", "Exception raised", "std::"}) {
    CHECK(result.err.find(internal) == std::string::npos);
  }
  return result.exit_code;
}

TEST_CASE("an invalid file in a model folder is reported with a message of moe", "[cli]") {
  const Fixture fixture;
  const std::string model = fixture.path("model");
  size_t index = 0;  // of the fault; tests/slow/hostile.py tries every fault in every file
  const Args inspect = {"inspect", model};
  const Args generate = {"generate", model, "--chat", "--prompt", "a", "--max-tokens", "1"};
  for (const auto& [name, command] :
       std::vector<std::pair<std::string, Args>>{{"config.json", inspect},
                                                 {"model.safetensors", inspect},
                                                 {"tokenizer.model", {"tokenize", model, "a"}},
                                                 {"tokenizer.json", generate},
                                                 {"tokenizer_config.json", generate},
                                                 {"special_tokens_map.json", generate},
                                                 {"generation_config.json", generate},
                                                 {"chat_template.jinja", generate},
                                                 {"upcycle.json", inspect},
                                                 {"model.safetensors.index.json", inspect}}) {
    const char* fault = kFaults[index++ % std::size(kFaults)];
    CAPTURE(name, fault);
    fs::remove_all(model);
    fs::copy(tiny("facts/model"), model);
    replace_by_fault(fixture.dir / "model" / name, fault);
    CHECK((check_ends_with_own_message(command) == 2 || command == generate || command == inspect));
  }
}

TEST_CASE("an invalid file in a run folder is reported with a message of moe", "[cli]") {
  const Fixture fixture;
  const Args train =
      fixture.training({"--steps", "4", "--save-every", "2", "--seq-len", "8", "--quiet"});
  succeed(train);
  fs::remove_all(fixture.dir / "run/final");
  fs::rename(fixture.dir / "run", fixture.dir / "kept");
  const std::string last = "checkpoints/step-4/";
  size_t index = 0;
  for (const std::string& name :
       {std::string("settings.toml"), std::string(".moe-run"), std::string("inputs.json"),
        std::string("metrics.jsonl"), std::string("samples.jsonl"), std::string("starts.jsonl"),
        last + "state.safetensors", last + "state.json", last + "checksums.json",
        last + "history.json"}) {
    const char* fault = kFaults[index++ % std::size(kFaults)];
    CAPTURE(name, fault);
    fs::remove_all(fixture.dir / "run");
    fs::copy(fixture.dir / "kept", fixture.dir / "run", fs::copy_options::recursive);
    replace_by_fault(fixture.dir / "run" / name, fault);
    if (name.starts_with(last)) {
      check_ends_with_own_message(
          fixture.training({"--steps", "1", "--seq-len", "8", "--force"}, "run/" + last, "next"));
    } else {
      check_ends_with_own_message(
          {"report", fixture.path("run"), "-o", fixture.path("page.html"), "--force"});
    }
    check_ends_with_own_message(train);
  }
}

TEST_CASE("a token cache that is truncated while a run reads it is named", "[cli]") {
  const Fixture fixture;
  Process process(fixture.training({"--steps", "100000000", "--cache", fixture.path("cache")}));
  REQUIRE(wait_until(
      [&] { return fs::exists(fixture.dir / "run/metrics.jsonl") || process.has_ended(); }));
  const fs::path cache_file = fs::directory_iterator(fixture.dir / "cache")->path();
  REQUIRE(cache_file.extension() == ".tokens");
  fs::resize_file(cache_file, 0);
  const RunResult result = process.result();
  CHECK(result.exit_code == 1);
  CHECK(says(result.err, "moe: " + cache_file.string() + ": was cut short while it was read"));
}

}  // namespace
}  // namespace moe
