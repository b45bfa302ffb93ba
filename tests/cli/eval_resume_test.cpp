// An evaluation that is killed or interrupted goes on when the same command is given again, and
// ends in the very bytes of one that was not; a sweep on the command line.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <regex>
#include <thread>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

namespace moe {
namespace {

using test::read_file;
using test::run_moe;
using test::RunResult;
using test::TempDir;
using Words = std::vector<std::string>;

std::string tiny(const std::string& name) {
  return (test::source_folder() / "recipes/tiny" / name).string();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_mixture(const std::filesystem::path& out) {
  REQUIRE(run_moe({"upcycle", tiny("model"), "-o", out.string(), "--experts", "4", "--router",
                   "top1:cf=1", "--quiet"})
              .exit_code == 0);
}

// Small batches and groups, so that there are many forwards to stop between.
Words eval_of(const TempDir& folder, const std::string& out, const std::string& router) {
  return {"eval",
          (folder / "moe").string(),
          "--tasks",
          tiny("quiz.jsonl"),
          "-o",
          (folder / out).string(),
          "--limit",
          "120",
          "--router",
          router,
          "--batch-tokens",
          "16",
          "--group-tokens",
          "8",
          "--threads",
          "1",
          "--quiet"};
}

size_t lines_in(const std::filesystem::path& file) {
  const std::string text = std::filesystem::exists(file) ? read_file(file) : "";
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Standard error goes to `errors` where one is named.
pid_t start(const Words& words, const std::string& errors = "") {
  std::vector<std::string> all = words;
  all.insert(all.begin(), test::moe_binary());
  std::vector<char*> arguments;
  for (auto& word : all) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);  // a shell in the background has it ignored
    if (!errors.empty() && std::freopen(errors.c_str(), "w", stderr) == nullptr) {
      ::_exit(126);
    }
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return child;
}

// Sends `signal` once the cache has `lines` more lines; returns the exit status.
int stop_after(const Words& words, const std::filesystem::path& cache, size_t lines, int signal) {
  const size_t wanted = lines_in(cache) + lines;
  const pid_t child = start(words);
  for (int wait = 0; wait < 3000 && lines_in(cache) < wanted; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (::waitpid(child, nullptr, WNOHANG) != 0) {
      FAIL("the run ended before it could be stopped");
    }
  }
  ::kill(child, signal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// Until SIGINT waits to be asked for.
void wait_until_held(pid_t child) {
  const std::string status = "/proc/" + std::to_string(child) + "/status";
  for (int wait = 0; wait < 30000; ++wait) {
    std::smatch blocked;
    const std::string text = read_file(status);
    if (std::regex_search(text, blocked, std::regex("SigBlk:\\s*([0-9a-f]+)")) &&
        (std::stoull(blocked[1], nullptr, 16) & (1U << (SIGINT - 1))) != 0) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string without_times(const std::string& results) {
  return std::regex_replace(
      results, std::regex(R"re(("total_evaluation_time_seconds"|"seconds"): [^,\n]*)re"), "$1");
}

TEST_CASE("killed and interrupted, an evaluation ends in the same bytes", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  for (const std::string router : {"top1:cf=1", "top1:cf=inf"}) {
    CAPTURE(router);
    const std::string name = router.substr(5);
    REQUIRE(run_moe(eval_of(folder, "whole" + name, router)).exit_code == 0);
    const Words words = eval_of(folder, "again" + name, router);
    const auto cache = folder / ("again" + name) / "responses.cache";
    const int killed = stop_after(words, cache, 3, SIGKILL);
    CHECK(WIFSIGNALED(killed));
    REQUIRE(lines_in(cache) >= 3);
    const int interrupted = stop_after(words, cache, 3, SIGINT);
    CHECK(WIFEXITED(interrupted));
    CHECK(WEXITSTATUS(interrupted) == 130);
    const RunResult last = run_moe(words);
    CAPTURE(last.err);
    REQUIRE(last.exit_code == 0);
    CHECK_FALSE(std::filesystem::exists(cache));
    const auto file = [&](const std::string& run, const std::string& leaf) {
      return read_file(folder / (run + name) / leaf);
    };
    CHECK(file("whole", "samples_quiz.jsonl") == file("again", "samples_quiz.jsonl"));
    CHECK(without_times(file("whole", "results.json")) ==
          without_times(file("again", "results.json")));
  }
}

TEST_CASE("a cache of one's own serves later runs, two at once, and tells of damage", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const auto cache = folder / "kept/responses.cache";
  std::filesystem::create_directories(folder / "kept");
  const auto words = [&](const std::string& out, const std::string& place) {
    Words all = eval_of(folder, out, "top1:cf=1");
    all.insert(all.end(), {"--cache-responses", place});
    all.erase(std::find(all.begin(), all.end(), "--quiet"));
    return all;
  };
  const pid_t first = start(words("a", (folder / "kept").string()));
  const pid_t second = start(words("b", cache.string()));
  for (const pid_t child : {first, second}) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  const size_t lines = lines_in(cache);
  REQUIRE(lines > 5);
  const RunResult third = run_moe(words("c", cache.string()));
  CHECK(third.exit_code == 0);
  CHECK(contains(third.err, "kept forwards; those of this model and these settings are not "));
  CHECK(lines_in(cache) == lines);
  std::string damaged = read_file(cache);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  test::write_file(cache, damaged);
  const RunResult fourth = run_moe(words("d", cache.string()));
  CHECK(contains(fourth.err, "responses.cache: 1 damaged line is left out"));
  for (const std::string run : {"b", "c", "d"}) {
    CHECK(read_file(folder / "a/samples_quiz.jsonl") ==
          read_file(folder / run / "samples_quiz.jsonl"));
  }
  const RunResult off = run_moe(words("e", "off"));
  CHECK(off.exit_code == 0);
  CHECK_FALSE(contains(off.err, "kept forwards"));
  test::write_file(folder / "notes", "mine\n");
  const RunResult strange = run_moe(words("f", (folder / "notes").string()));
  CHECK(strange.exit_code == 2);
  CHECK(contains(strange.err, "notes: does not begin with 'moe responses 1', so it is something "));
  CHECK(read_file(folder / "notes") == "mine\n");
  Words tokens = words("g", cache.string());
  tokens.insert(tokens.end(), {"--stats", (folder / "s").string(), "--stats-by", "token"});
  CHECK(contains(run_moe(tokens).err,
                 "--stats-by needs every forward: no responses are kept or reused"));
}

TEST_CASE("without an output an interrupt says what would have kept it", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  Words words = eval_of(folder, "out", "top1:cf=1");
  words.erase(words.begin() + 4, words.begin() + 8);  // -o and --limit
  *std::find(words.begin(), words.end(), "8") = "1";  // every request by itself
  const std::string errors = (folder / "errors").string();
  const pid_t child = start(words, errors);
  wait_until_held(child);
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  const std::string said = read_file(errors);
  CAPTURE(said);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 130));
  CHECK(contains(said, "moe: interrupted in quiz after "));
  CHECK(contains(said,
                 " of 1440 requests; nothing was kept (-o OUT or --cache-responses FILE would "
                 "have)\n"));
}

TEST_CASE("a sweep ends in one table, one page and a folder a value", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const Words base = {"eval",      (folder / "moe").string(),
                      "--tasks",   tiny("quiz.jsonl"),
                      "--limit",   "20",
                      "--threads", "1"};
  const auto with = [&](const Words& more) {
    Words words = base;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::string out = (folder / "out").string();
  const RunResult result = run_moe(with({"--sweep", "cf=0.25,0.5,inf", "-o", out}));
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.starts_with("value      quiz  drop %  rows/token   n\ncf=0.25  "));
  CHECK(result.out.ends_with("plotted in " + out + "/sweep.html\n"));
  CHECK(read_file(folder / "out/sweep.html").starts_with("<!doctype html>"));
  CHECK(Json::parse(read_file(folder / "out/cf=0.5/results.json"))["moe"]["router"] ==
        "top1:cf=0.5");
  const RunResult json = run_moe(with({"--sweep", "cf=0.25,0.5,inf", "--json", "--quiet"}));
  CHECK(Json::parse(json.out)["values"][2]["drop_rate"] == 0.0);
  const auto refused = [&](const Words& more, const std::string& part) {
    const RunResult bad = run_moe(with(more));
    CAPTURE(bad.err);
    CHECK(bad.exit_code == 2);
    CHECK(bad.out.empty());
    CHECK(contains(bad.err, part));
  };
  refused({"--sweep", "cf=0.25,-1"},
          "moe: --sweep cf=-1: --cf '-1' is not a positive number or 'inf'\n");
  refused({"--sweep", "cf=1", "--stats", "x"},
          "--sweep and --stats together; give --stats to a run with one router");
  refused({"--sweep", "cf=1", "--against", "x"}, "--sweep and --against together");
  refused({"--sweep", "cf=1", "--sweep", "ep-ranks=1,2", "--sweep", "router=top1"},
          "--sweep is given 3 times; a table has two axes, give at most two");
  const RunResult texts =
      run_moe({"eval", (folder / "moe").string(), "--stats-text", "x", "--sweep", "cf=1"});
  CHECK(contains(texts.err, "--sweep compares scores of tasks; give --tasks"));
}

}  // namespace
}  // namespace moe
