// Each of the papers' analyses is one command that prints its table (recipes/analyses.sh).
#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

namespace moe {
namespace {

using test::RunResult;
using test::TempDir;
using Words = std::vector<std::string>;

std::string tiny(const std::string& name) {
  return (test::source_folder() / "recipes/tiny" / name).string();
}

RunResult run_script(const Words& words, const std::string& settings = "") {
  const TempDir streams;
  std::string command = "MOE=" + test::shell_quote(test::moe_binary()) + " " + settings + " bash " +
                        test::shell_quote(test::source_folder() / "recipes/analyses.sh");
  for (const auto& word : words) {
    command += " " + test::shell_quote(word);
  }
  command += " >" + test::shell_quote((streams / "out").string()) + " 2>" +
             test::shell_quote((streams / "err").string()) + " </dev/null";
  const int status = std::system(command.c_str());  // NOLINT: the test's own words
  return {WEXITSTATUS(status), test::read_file(streams / "out"), test::read_file(streams / "err")};
}

std::string mixture(const TempDir& folder, const std::string& router) {
  const std::string out = (folder / router).string();
  REQUIRE(test::run_moe(
              {"upcycle", tiny("model"), "-o", out, "--experts", "4", "--router", router, "-q"})
              .exit_code == 0);
  return out;
}

size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The rows of `analysis` without its head, each of which begins with the given words.
void check_table(const Words& words, const std::string& head, const Words& rows,
                 const std::string& settings = "") {
  const RunResult result = run_script(words, settings);
  CAPTURE(words, result.out, result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.starts_with(head));
  CHECK(lines_in(result.out) == rows.size() + 1);
  for (const auto& row : rows) {
    CHECK(result.out.find("\n" + row + " ") != std::string::npos);
  }
}

const Words kQuiz = {"--tasks", tiny("quiz.jsonl"), "--limit", "4", "--threads", "1", "-q"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("Rectify-Router's tables at test are sweeps of its own k", "[cli][recipes]") {
  const TempDir folder;
  const std::string model = mixture(folder, "top2");
  const std::string value = "value ";
  check_table(with({"table2", model}, kQuiz), value,
              {"router=top2", "router=top2+ir", "router=top2+fr", "router=top2+ir+fr"});
  check_table(with({"table5", model}, kQuiz), value, {"ep-ranks=4", "ep-ranks=2", "ep-ranks=1"});
  check_table(with({"table8", model}, kQuiz), value,
              {"router=top2,cf=2", "router=top2,cf=1.5", "router=top2,cf=1", "router=top2+ir,cf=2",
               "router=top2+ir,cf=1.5", "router=top2+ir,cf=1"});
  check_table(with({"table9", model}, kQuiz), value,
              {"router=top2,cf=2", "router=top2,cf=2.5", "router=top2,cf=3", "router=top2+fr,cf=2",
               "router=top2+fr,cf=2.5", "router=top2+fr,cf=3"});
}

TEST_CASE("Dynamic MoE's tables read sources, tasks, layers and the vocabulary", "[cli][recipes]") {
  const TempDir folder;
  const std::string model = mixture(folder, "topp:0.4");
  const std::string file = (folder / "text.jsonl").string();
  test::write_file(file,
                   "{\"text\": \"The opposite of big is small.\", \"source\": \"Wiki\"}\n"
                   "{\"text\": \"One two three four, big and small.\", \"source\": \"Book\"}\n");
  const Words text = {"--stats-text", file, "--threads", "1", "-q"};
  check_table(with({"topp-fig2", model}, kQuiz), "value ",
              {"p=0.1", "p=0.2", "p=0.3", "p=0.4", "p=0.5", "p=0.6", "p=0.7"});
  check_table(with({"topp-table2", model}, text), "source ", {"Wiki", "Book", "all"});
  check_table(with({"remoe-domains", model}, text), "source ", {"Wiki", "Book", "all"});
  check_table(with({"topp-table3", model}, kQuiz), "task ", {"quiz", "average"});
  check_table(with({"topp-fig4", model}, text), "layer ", {"0", "2"});
  const RunResult pieces = run_script(with({"topp-table4", model}, text), "MIN=1");
  CHECK(pieces.out.starts_with("most experts: "));
  CHECK(pieces.out.find("\nleast experts: ") != std::string::npos);
  const RunResult rare = run_script(with({"topp-table4", model}, text));
  CHECK(rare.exit_code == 1);
  CHECK(rare.err.find("no vocabulary entry was seen more than MIN times") != std::string::npos);
  const RunResult tokens = run_script(with({"remoe-tokens", model}, text));
  CHECK(tokens.out.starts_with("times seen "));
  CHECK(lines_in(tokens.out) > 2);
}

TEST_CASE("what training did is read from the run", "[cli][recipes]") {
  const TempDir folder;
  const std::string model = mixture(folder, "relu:k=1");
  const std::string run = (folder / "run").string();
  REQUIRE(test::run_moe({"train", model, "-o", run, "--data", tiny("instruct.jsonl"), "--steps",
                         "4", "--seq-len", "64", "--micro-batch", "1", "--threads", "1",
                         "--save-every", "2", "-q"})
              .exit_code == 0);
  check_table({"remoe-sparsity", run}, "   step  sparsity ", {"      2", "      4", "      1"},
              "EVERY=2");
  test::write_file(folder / "text.txt", "The opposite of big is small.\n");
  const RunResult along = run_script(
      {"topp-fig3", run, "--stats-text", (folder / "text.txt").string(), "--threads", "1"});
  CAPTURE(along.out, along.err);
  CHECK(along.exit_code == 0);
  CHECK(along.out.starts_with("checkpoint     experts/token\n"));
  CHECK(along.out.find("\nfinal ") != std::string::npos);
  CHECK(lines_in(along.out) >= 3);
}

TEST_CASE("an analysis of another router says so", "[cli][recipes]") {
  const TempDir folder;
  const RunResult other = run_script({"table2", mixture(folder, "topp:0.4")});
  CHECK(other.exit_code == 1);
  CHECK(other.err == "analyses: this analysis is of a top-k router, the model has topp:0.4\n");
  const RunResult dense = run_script({"table2", tiny("model")});
  CHECK(dense.err == "analyses: the model is dense, it routes nothing\n");
  const RunResult unknown = run_script({"table3", tiny("model")});
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("analyses.sh ANALYSIS MODEL [FLAGS of moe eval...]") != std::string::npos);
}

}  // namespace
}  // namespace moe
