// Evaluations that are killed or interrupted and resumed by the same command; sweeps.

#include <csignal>
#include <regex>
#include <thread>

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/process.h"

namespace moe {
namespace {

using namespace moe::test;

void write_mixture(const std::filesystem::path& out) {
  succeed({"upcycle", tiny("model"), "-o", out.string(), "--experts", "4", "--router", "top1:cf=1",
           "--quiet"});
}

// Small batches and groups, so that there are many forwards to stop between.
Words eval_words(const TempDir& folder, const std::string& out, const std::string& router) {
  return joined({"eval", (folder / "moe").string(), "--tasks", tiny("quiz.jsonl"), "--limit", "120",
                 "--batch-tokens", "16", "--group-tokens", "8", "--threads", "1"},
                {"-o", (folder / out).string(), "--router", router});
}

size_t lines_in(const std::filesystem::path& file) {
  const std::string text = std::filesystem::exists(file) ? read_file(file) : "";
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Sends `signal` once the cache has `lines` more lines; returns the exit code.
int stop_after(const Words& words, const std::filesystem::path& cache, size_t lines, int signal) {
  const size_t wanted = lines_in(cache) + lines;
  Process process(words);
  REQUIRE(wait_until([&] { return lines_in(cache) >= wanted || process.has_ended(); }));
  REQUIRE_FALSE(process.has_ended());
  ::kill(process.pid(), signal);
  return process.exit_code();
}

std::string without_times(const std::string& results) {
  return std::regex_replace(
      results, std::regex(R"re(("total_evaluation_time_seconds"|"seconds"): [^,\n]*)re"), "$1");
}

TEST_CASE("a killed and resumed evaluation writes the bytes of an uninterrupted one", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  for (const std::string router : {"top1:cf=1", "top1:cf=inf"}) {
    CAPTURE(router);
    const std::string name = router.substr(5);
    succeed(eval_words(folder, "whole" + name, router));
    const Words words = eval_words(folder, "again" + name, router);
    const auto cache = folder / ("again" + name) / "responses.cache";
    CHECK(stop_after(words, cache, 3, SIGKILL) == 128 + SIGKILL);
    REQUIRE(lines_in(cache) >= 3);
    CHECK(stop_after(words, cache, 3, SIGINT) == 130);
    succeed(words);
    CHECK_FALSE(std::filesystem::exists(cache));
    const auto file = [&](const std::string& run, const std::string& leaf) {
      return read_file(folder / (run + name) / leaf);
    };
    CHECK(file("whole", "samples_quiz.jsonl") == file("again", "samples_quiz.jsonl"));
    CHECK(without_times(file("whole", "results.json")) ==
          without_times(file("again", "results.json")));
  }
}

TEST_CASE("--cache-responses is shared by later and concurrent runs, and damage is reported",
          "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const auto cache = folder / "kept/responses.cache";
  std::filesystem::create_directories(folder / "kept");
  const auto words = [&](const std::string& out, const std::string& place) {
    return joined(eval_words(folder, out, "top1:cf=1"), {"--cache-responses", place});
  };
  Process first(words("a", (folder / "kept").string())), second(words("b", cache.string()));
  CHECK(first.exit_code() == 0);
  CHECK(second.exit_code() == 0);
  const size_t lines = lines_in(cache);
  REQUIRE(lines > 5);
  CHECK_THAT(succeed(words("c", cache.string())).err,
             contains_text("kept forwards; those of this model and these settings are not "));
  CHECK(lines_in(cache) == lines);
  std::string damaged = read_file(cache);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  write_file(cache, damaged);
  CHECK_THAT(succeed(words("d", cache.string())).err,
             contains_text("responses.cache: 1 damaged line is left out"));
  for (const std::string run : {"b", "c", "d"}) {
    CHECK(read_file(folder / "a/samples_quiz.jsonl") ==
          read_file(folder / run / "samples_quiz.jsonl"));
  }
  CHECK_THAT(succeed(words("e", "off")).err, !contains_text("kept forwards"));
  write_file(folder / "notes", "mine\n");
  const RunResult strange = run_moe(words("f", (folder / "notes").string()));
  CHECK(strange.exit_code == 2);
  CHECK_THAT(strange.err, contains_text("notes: does not begin with 'moe responses 1'"));
  CHECK(read_file(folder / "notes") == "mine\n");
}

TEST_CASE("a sweep writes one table, one page and a folder for each value", "[cli]") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const Words base = {"eval",      (folder / "moe").string(),
                      "--tasks",   tiny("quiz.jsonl"),
                      "--limit",   "10",
                      "--threads", "1",
                      "--quiet",   "--sweep"};
  const std::string out = (folder / "out").string();
  const RunResult result = succeed(joined(base, {"cf=0.25,0.5,inf", "-o", out}));
  CAPTURE(result.out);
  CHECK(result.out.starts_with("value      quiz  drop %  rows/token   n\ncf=0.25  "));
  CHECK(result.out.ends_with("plotted in " + out + "/sweep.html\n"));
  CHECK(read_file(folder / "out/sweep.html").starts_with("<!doctype html>"));
  CHECK(Json::parse(read_file(folder / "out/cf=0.5/results.json"))["moe"]["router"] ==
        "top1:cf=0.5");
  CHECK(Json::parse(succeed(joined(base, {"cf=inf", "--json"})).out)["values"][0]["drop_rate"] ==
        0.0);
  check_refused(joined(base, {"cf=0.25,-1"}), "moe: --sweep cf=-1: --cf '-1'");
  check_refused(joined(base, {"cf=1", "--stats", "x"}), "--sweep and --stats together");
}

}  // namespace
}  // namespace moe
