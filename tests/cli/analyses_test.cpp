// recipes/analyses.sh: one command for each analysis of the papers, which prints its table.

#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

RunResult run_script(const Args& args, const std::string& settings = "") {
  return run_program("bash", joined({source_folder() / "recipes/analyses.sh"}, args),
                     "MOE=" + shell_quote(moe_binary()) + " " + settings);
}

// Writes a mixture with this router and returns its path.
std::string mixture(const TempDir& folder, const std::string& router) {
  const std::string out = folder / router;
  succeed({"upcycle", tiny("model"), "-o", out, "--experts", "4", "--router", router, "-q"});
  return out;
}

size_t lines_in(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Runs an analysis and checks that its table begins with `head` and has a row for each of `rows`,
// which are the first words of the rows.
void check_table(const Args& args, const std::string& head, const Args& rows,
                 const std::string& settings = "") {
  const RunResult result = run_script(args, settings);
  CAPTURE(args, result.out, result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out.starts_with(head));
  CHECK(lines_in(result.out) == rows.size() + 1);
  for (const auto& row : rows) {
    CHECK(result.out.find("\n" + row + " ") != std::string::npos);
  }
}

const Args kQuiz = {"--tasks", tiny("quiz.jsonl"), "--limit", "2", "--threads", "1", "-q"};

TEST_CASE("analyses.sh prints Rectify-Router's tables of test-time settings") {
  const TempDir folder;
  const std::string model = mixture(folder, "top2");
  const std::string value = "value ";
  check_table(joined({"table5", model}, kQuiz), value, {"ep-ranks=4", "ep-ranks=2", "ep-ranks=1"});
  check_table(joined({"table8", model}, kQuiz), value,
              {"router=top2,cf=2", "router=top2,cf=1.5", "router=top2,cf=1", "router=top2+ir,cf=2",
               "router=top2+ir,cf=1.5", "router=top2+ir,cf=1"});
}

TEST_CASE("analyses.sh prints Dynamic MoE's tables by source, task, layer and token") {
  const TempDir folder;
  const std::string model = mixture(folder, "topp:0.4");
  const std::string file = folder / "text.jsonl";
  write_file(file,
             "{\"text\": \"The opposite of big is small.\", \"source\": \"Wiki\"}\n"
             "{\"text\": \"One two three four, big and small.\", \"source\": \"Book\"}\n");
  const Args text = {"--stats-text", file, "--threads", "1", "-q"};
  check_table(joined({"topp-fig2", model}, kQuiz), "value ",
              {"p=0.1", "p=0.2", "p=0.3", "p=0.4", "p=0.5", "p=0.6", "p=0.7"});
  check_table(joined({"topp-table2", model}, text), "source ", {"Wiki", "Book", "all"});
  check_table(joined({"topp-table3", model}, kQuiz), "task ", {"quiz", "average"});
  check_table(joined({"topp-fig4", model}, text), "layer ", {"0", "2"});
  const RunResult pieces = run_script(joined({"topp-table4", model}, text), "MIN=1");
  CHECK(pieces.out.starts_with("most experts: "));
  CHECK(pieces.out.find("\nleast experts: ") != std::string::npos);
  const RunResult rare = run_script(joined({"topp-table4", model}, text));
  CHECK(rare.exit_code == 1);
  CHECK(rare.err.find("no vocabulary entry was seen more than MIN times") != std::string::npos);
  const RunResult tokens = run_script(joined({"remoe-tokens", model}, text));
  CHECK(tokens.out.starts_with("times seen "));
  CHECK(lines_in(tokens.out) > 2);
}

TEST_CASE("analyses.sh prints tables of a training run") {
  const TempDir folder;
  const std::string model = mixture(folder, "relu:k=1");
  const std::string run = folder / "run";
  succeed({"train", model, "-o", run, "--data", tiny("instruct.jsonl"), "--steps", "4", "--seq-len",
           "64", "--micro-batch", "1", "--threads", "1", "--save-every", "2", "-q"});
  check_table({"remoe-sparsity", run}, "   step  sparsity ", {"      2", "      4", "      1"},
              "EVERY=2");
  write_file(folder / "text.txt", "The opposite of big is small.\n");
  const RunResult along =
      run_script({"topp-fig3", run, "--stats-text", folder / "text.txt", "--threads", "1"});
  CAPTURE(along.out, along.err);
  CHECK(along.exit_code == 0);
  CHECK(along.out.starts_with("checkpoint     experts/token\n"));
  CHECK(along.out.find("\nfinal ") != std::string::npos);
  CHECK(lines_in(along.out) >= 3);
}

TEST_CASE("analyses.sh refuses a model with another router than the analysis needs") {
  const TempDir folder;
  const RunResult other = run_script({"table2", mixture(folder, "topp:0.4")});
  CHECK(other.exit_code == 1);
  CHECK_THAT(other.err, contains_text("is of a top-k router, the model has topp:0.4"));
  const RunResult dense = run_script({"table2", tiny("model")});
  CHECK_THAT(dense.err, contains_text("the model is dense"));
  const RunResult unknown = run_script({"table3", tiny("model")});
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, contains_text("analyses.sh ANALYSIS MODEL [FLAGS of moe eval...]"));
}

}  // namespace
}  // namespace moe
