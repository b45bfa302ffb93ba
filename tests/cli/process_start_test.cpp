// Standard streams that are closed or cannot be written, pipes, and resource limits of the process.

#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

// Runs `moe ARGUMENTS REDIRECTIONS` in a shell. RunResult::err has standard error unless it is
// redirected.
RunResult run_shell(const TempDir& dir, const std::string& arguments,
                    const std::string& redirections, const std::string& prefix = "") {
  const std::string command = "cd " + shell_quote(dir.path().string()) + " && " + prefix +
                              " timeout 120 " + shell_quote(moe_binary()) + " " + arguments +
                              " 2>err </dev/null " + redirections;
  const int status = std::system(command.c_str());  // NOLINT: command of the test
  const auto err = dir / "err";
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), "",
          fs::exists(err) ? read_file(err) : ""};
}

const Args kPrinting = {"--reference",
                        "inspect dense",
                        "tokenize dense text.txt",
                        "route logits.csv --router top1",
                        "eval dense --requests requests.jsonl",
                        "generate dense --prompt a --max-tokens 2"};

void write_inputs(const TempDir& dir) {
  fs::copy(tiny("model"), dir / "dense", fs::copy_options::recursive);
  write_training_rows(dir / "rows.jsonl");
  write_file(dir / "text.txt", "a b\n");
  write_file(dir / "requests.jsonl", R"({"context": "a", "continuation": " b"})"
                                     "\n");
  write_file(dir / "logits.csv", "0.1,0.2\n0.4,0.3\n");
}

}  // namespace

TEST_CASE("output lost on a full disk is reported with exit code 2", "[cli]") {
  const TempDir dir;
  write_inputs(dir);
  for (const auto& arguments : kPrinting) {
    CAPTURE(arguments);
    const auto full = run_shell(dir, arguments, ">/dev/full");
    CHECK(full.exit_code == 2);
    CHECK(says(full.err, "standard output"));
    CHECK(says(full.err, "No space left on device"));
    CHECK(std::count(full.err.begin(), full.err.end(), '\n') == 1);
  }
  CHECK(run_shell(dir, "inspect dense", ">/dev/null").exit_code == 0);
  CHECK(run_shell(dir, "inspect dense", ">&-").exit_code == 2);
}

TEST_CASE("a closed pipe ends a command without a message", "[cli]") {
  const TempDir dir;
  // With the second prefix, SIGPIPE is ignored, as in a child process of Python.
  for (const std::string prefix : {"", "trap '' PIPE;"}) {
    CAPTURE(prefix);
    const auto result = run_shell(dir, "--reference", "| true", prefix);
    CHECK(fs::exists(dir / "err"));
    CHECK(result.err.empty());
    fs::remove(dir / "err");
  }
}

TEST_CASE("a closed or full standard error does not change the result of a command", "[cli]") {
  const TempDir dir;
  write_inputs(dir);
  for (const std::string redirection : {"2>&-", "2>/dev/full", "0<&- 1>&- 2>&-"}) {
    CAPTURE(redirection);
    const int expected = redirection.find("1>&-") == std::string::npos ? 0 : 2;
    CHECK(run_shell(dir, "train dense -o run --data rows.jsonl --steps 1 --threads 1",
                    ">/dev/null " + redirection)
              .exit_code == expected);
    CHECK(fs::exists(dir / "run/final/model.safetensors"));
    fs::remove_all(dir / "run");
  }
  CHECK(run_shell(dir, "inspect nowhere", ">/dev/null 2>&-").exit_code == 2);
}

TEST_CASE("a file size limit is reported like a full disk, and no file remains", "[cli]") {
  const TempDir dir;
  write_inputs(dir);
  for (const std::string command : {"upcycle dense -o out --experts 4",
                                    "train dense -o out --data rows.jsonl --steps 3 --threads 1"}) {
    CAPTURE(command);
    const auto result = run_shell(dir, command, ">/dev/null", "ulimit -f 1;");
    CHECK(result.exit_code == 2);
    CHECK(says(result.err, "File too large"));
    CHECK_FALSE(fs::exists(dir / "out/model.safetensors"));
    CHECK_FALSE(fs::exists(dir / "out.partial"));
  }
}

TEST_CASE("messages name ulimit -n (exit code 1) and ulimit -f (exit code 2)", "[cli]") {
  const TempDir dir;
  write_inputs(dir);
  const std::string train = "train dense -o run --data rows.jsonl --steps 1 --threads 1";
  for (int count = 7; count <= 12; ++count) {  // each limit makes another open() fail
    CAPTURE(count);
    // Sets the limit in bash, after sh has opened descriptors for the redirections.
    const auto few = run_shell(dir, train, ">/dev/null",
                               fmt::format("bash -c 'ulimit -n {}; exec \"$@\"' limited", count));
    CHECK((few.exit_code == 0 || few.exit_code == 1));
    CHECK(says(few.err, few.exit_code == 1 ? "(ulimit -n)" : ""));
  }
  const auto small_store =
      run_shell(dir, "train dense -o other --data rows.jsonl --steps 1 --ranks 2", ">/dev/null",
                "ulimit -f 1;");
  CHECK(small_store.exit_code == 2);
  CHECK(says(small_store.err, "ulimit -f allows files of "));
}

TEST_CASE("moe tokenize reads a named pipe", "[cli]") {
  const TempDir dir;
  write_inputs(dir);
  const auto run =
      run_shell(dir, "tokenize dense pipe", ">out", "mkfifo pipe; cat text.txt >pipe &");
  CHECK(run.exit_code == 0);
  REQUIRE(run_shell(dir, "tokenize dense text.txt", ">wanted").exit_code == 0);
  CHECK(read_file(dir / "out") == read_file(dir / "wanted"));
  const std::string records = "tokenize dense --json --chat ";
  REQUIRE(run_shell(dir, records + "rows.jsonl", ">wanted").exit_code == 0);
  for (const auto& [file, streams] : {std::pair("pipe", ">out"), std::pair("-", ">out <pipe")}) {
    const std::string writer = "true; gzip -c rows.jsonl >pipe &";  // `cd` is not in its job
    CHECK(run_shell(dir, records + file, streams, writer).exit_code == 0);
    CHECK(read_file(dir / "out") == read_file(dir / "wanted"));
  }
}
