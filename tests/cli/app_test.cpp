// Behaviour common to all commands: help, version, reference, completion, unknown commands and
// flags, recipes, number parsing, terminal output.

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

namespace {

constexpr unsigned short kColumns = 72;

// Runs moe on a pseudo-terminal of kColumns columns, checks that it succeeds, and returns its
// output.
std::string run_on_terminal(Args args) {
  args.insert(args.begin(), moe_binary());
  std::vector<char*> arguments;
  for (auto& word : args) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  winsize size{24, kColumns, 0, 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  std::string text;
  std::vector<char> part(4096);
  for (ssize_t got = 0; (got = ::read(terminal, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

// Splits at newlines and at carriage returns, after which a step line is overwritten.
std::vector<std::string> split_lines(std::string text) {
  std::vector<std::string> lines;
  for (size_t at = text.find_first_of("\r\n"); !text.empty(); at = text.find_first_of("\r\n")) {
    lines.push_back(text.substr(0, at));
    text.erase(0, at == std::string::npos ? at : at + 1);
  }
  return lines;
}

// Returns the string literals of a source file, without raw strings and comments.
std::vector<std::string> string_literals(std::string text) {
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  static const std::regex literal(R"re("((?:[^"\\\n]|\\.)*)")re");
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), literal), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

}  // namespace

TEST_CASE("--help and --version print to standard output and succeed") {
  check_contains(succeed({"--help"}).out,
                 {"upcycle", "init", "train", "report", "eval", "inspect", "generate"});
  CHECK(succeed({"--version"}).out.starts_with("moe "));
  const auto help = succeed({"train", "--help"}).out;
  for (const auto* group :
       {"Model", "Data", "Batch", "Memory", "Optimizer", "Router", "Tasks", "Ranks"}) {
    const size_t at = help.find(std::string("\n") + group + ":\n");
    CAPTURE(group);
    REQUIRE(at != std::string::npos);
    CHECK(help.find("\n  --", at) < help.find("\n\n", at));
  }
  check_contains(help, {"\nOutput:\n", "sequences per forward pass (default: 8"});
}

TEST_CASE("cli/REFERENCE.md equals moe --reference, and the manual page has every flag") {
  const std::string reference = succeed({"--reference"}).out;
  INFO("run moe --reference >cli/REFERENCE.md");
  CHECK((reference == read_file(source_folder() / "cli/REFERENCE.md")));
  CHECK(reference.find("| Options |") == std::string::npos);  // every flag has a group
  const std::string page = succeed({"--manual"}).out;
  CHECK(page.starts_with(".TH MOE 1 "));
  static const std::regex flag(R"(\n\| `([^`]*)` \|)");
  size_t checked = 0;
  for (std::sregex_iterator match(reference.begin(), reference.end(), flag), end; match != end;
       ++match) {
    const std::string name = std::regex_replace((*match)[1].str(), std::regex("-"), "\\-");
    CAPTURE(name);
    CHECK(page.find(".BR \"" + name + "\"") != std::string::npos);
    ++checked;
  }
  CHECK(checked > 150);
}

TEST_CASE("bash completes commands, flags and values of flags, and zsh parses its script") {
  const TempDir folder;
  write_file(folder / "moe.bash", succeed({"completion", "bash"}).out + R"(
for line in 'up' 'upcycle --exper' 'init --dtype ' 'bench tr' 'bench train --seq' 'train x'; do
  COMP_WORDS=(moe)
  for word in $line; do COMP_WORDS+=("$word"); done
  if [[ $line == *' ' ]]; then COMP_WORDS+=(''); fi
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _moe
  echo "${COMPREPLY[*]}"
done
)");
  const auto shell = run_program("bash", {folder / "moe.bash"});
  CHECK(shell.out == "upcycle\n--experts --expert\nkeep bf16 fp16 fp32\ntrain\n--seq-len\n\n");
  CHECK(shell.err.empty());
  const std::string zsh = succeed({"completion", "zsh"}).out;
  CHECK(zsh.starts_with("#compdef moe\n"));
  write_file(folder / "moe.zsh", zsh);
  if (run_program("zsh", {"--version"}).exit_code == 0) {
    CHECK(run_program("zsh", {"-n", folder / "moe.zsh"}).exit_code == 0);
  }
}

TEST_CASE("every flag that a message of core names is a flag of a command") {
  const std::string known = succeed({"--reference"}).out;
  const size_t train = known.find("\n## moe train\n");
  REQUIRE(train != std::string::npos);
  const std::string train_flags = known.substr(train, known.find("\n## ", train + 1) - train);
  static const std::regex flag(R"((?:^|[ "'(])(--[a-z][a-z0-9-]*[a-z0-9]))");
  size_t checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "core")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".cpp" || name.find("page") != std::string::npos) {
      continue;  // the style sheet of the page has names such as --color
    }
    for (const auto& text : string_literals(read_file(entry.path()))) {
      for (std::sregex_iterator match(text.begin(), text.end(), flag), end; match != end; ++match) {
        const std::string word = (*match)[1];
        CAPTURE(name, word);
        // --config is not in the reference, and --long is a flag of zstd.
        const bool is_in_train = entry.path().string().find("core/train/") != std::string::npos &&
                                 text.find("moe eval") == std::string::npos;
        const std::string& flags = is_in_train ? train_flags : known;
        CHECK((word == "--config" || word == "--long" ||
               flags.find(word + "`") != std::string::npos ||
               flags.find("`" + word + ", ") != std::string::npos));
        ++checked;
      }
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("messages suggest the nearest command or flag, and name the flag of an invalid value") {
  check_refused_each(
      {},
      {{{"upcicle", "x"}, "unknown command 'upcicle', did you mean 'upcycle'?"},
       {{"upcycle", "x", "-o", "y", "--exprts", "8"},
        "unknown flag '--exprts', did you mean '--experts'?"},
       {{"upcycle", "x"}, "--out"},
       {{"completion", "fish"}, "fish"},
       {{"generate", "x", "--prompt", "a", "--max-tokens", "many"}, "--max-tokens"},
       {{"upcycle", "x", "-o", "y", "--config", "/nowhere.toml"}, "/nowhere.toml"},
       {{"generate", "x", "--prompt", "a", "--device", "tpu"},
        "--device 'tpu' is unknown; known: cpu, cuda"},
       {{"eval", "x", "--tasks", "y", "--upcycle", "2", "--upcycle-seed", "9223372036854775807"},
        "unknown task 'y'"}});
  for (const Args& command : {Args{"init", "x", "-o", "y"},
                              {"upcycle", "x", "-o", "y"},
                              {"generate", "x", "--prompt", "a"},
                              {"train", "x", "-o", "y", "--data", "z"}}) {
    for (const std::string seed : {"9223372036854775808", "-1"}) {
      check_refused(joined(command, {"--seed", seed}),
                    "--seed " + seed + ": must be a whole number");
    }
  }
  CHECK(run_moe({}).exit_code == 2);
}

// On a machine with a GPU, the command fails because the folder x is missing.
TEST_CASE("--device cuda is refused on a machine without a GPU") {
  for (const Args& command :
       {Args{"train", "x", "--data", "y", "-o", "z"}, Args{"eval", "x", "--requests", "y"},
        Args{"upcycle", "x", "-o", "y", "--verify"}, Args{"bench", "gemm", "x"}}) {
    const auto result = run_moe(joined(command, {"--device", "cuda"}));
    if (result.err.find("no CUDA device") == std::string::npos) {
      MOE_SKIP("there is a GPU");
    }
    check_refused(result, "moe: --device cuda: no CUDA device: ");
    CHECK(result.err.ends_with("; or use --device cpu\n"));
  }
}

TEST_CASE("a recipe sets flags, the command line overrides it, other tables are ignored") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {});
  write_file(folder / "run.toml",
             "[upcycle]\nexperts = 4 # four\nrouter = \"top2:cf=inf\"\n"
             "layers = \"all\"\n[train]\nsteps = 3\n");
  succeed({"upcycle", folder / "dense", "-o", folder / "a", "--config", folder / "run.toml",
           "--layers", "odd"});
  const auto written = read_json(folder / "a/config.json");
  CHECK(written.at("num_experts") == 4);
  CHECK(written.at("num_experts_per_tok") == 2);
  CHECK(written.at("moe").at("layers") == Json({1}));
}

// Empty, non-finite and too long values, and errors in recipes, are refused with one short message.

TEST_CASE("an empty value is refused by the name of its flag") {
  const TempDir dir;
  const std::string out = dir / "out", recipe = dir / "r.toml";
  write_file(recipe, "[upcycle]\nrouter = \"\"\n");
  check_refused_each(
      {}, {{{"upcycle", tiny("model"), "-o", out, "--router", ""}, "--router: the value is empty"},
           {{"upcycle", tiny("model"), "-o", out, "--config", recipe}, "--router"},
           {{"train", tiny("model"), "--data", "x", "-o", ""}, "--out: the value is empty"},
           {{"bench", "load", ""}, "MODEL: the value is empty"},
           {{"upcycle", tiny("model"), "-o", out, "--router-std", "nan"}, "--router-std"}});
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a name that is too long is abbreviated in the message") {
  const std::string name(5000, 'n');
  const std::string shown = std::string(80, 'n') + ".." + std::string(80, 'n');
  for (const Args& args : {Args{"upcycle", tiny("model"), "-o", name},
                           {"train", tiny("model"), "--data", name, "-o", "x"},
                           {"generate", name, "--prompt", "a"},
                           {"upcycle", tiny("model"), "-o", "x", "--layers", name},
                           {name}}) {
    const auto run = run_moe(args);
    check_refused(run, shown);
    CHECK(run.err.size() < 1000);
  }
}

TEST_CASE("an error in a recipe is reported with the name of the file") {
  const TempDir dir;
  const std::string recipe = dir / "r.toml";
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {"[train]\nlr = = 1\n", " line 2: "},
           {"lr = 1\n", ": 'lr' is outside a table"},
           {"[trian]\n", ": [trian] is not a command"},
           {"[train]\nlrr = 1\n", ": 'lrr' under [train] is not a flag of that command"}}) {
    write_file(recipe, text);
    check_refused({"train", "m", "--config", recipe}, "moe: --config " + recipe + fact);
  }
  check_refused({"--config", recipe, "train", "m"}, "moe: --config " + recipe + ": 'lrr'");
}

// Output of moe train, eval and generate on a pseudo-terminal of 72 columns.

TEST_CASE("a step line fits the terminal, and lines of evaluations are kept") {
  const TempDir dir;
  const std::string data = tiny("instruct.jsonl");
  const Args train = {"train",  tiny("model"), "-o",          dir / "run",
                      "--data", data,          "--eval-data", data};
  const std::string text =
      run_on_terminal(joined(train, {"--steps", "4", "--seq-len", "64", "--micro-batch", "1",
                                     "--threads", "1", "--eval-rows", "2", "--eval-every", "2"}));
  INFO(text);
  const std::string erase = "\x1b[K";
  int steps = 0;
  for (const std::string& line : split_lines(text)) {
    if (line.find("] ") != std::string::npos && line.find(" left  step ") != std::string::npos) {
      ++steps;
      CHECK(line.size() - (line.rfind(erase, 0) == 0 ? erase.size() : 0) < kColumns);
    }
  }
  CHECK(steps >= 2);
  CHECK(text.find("[========================] 0.0 s left  step 4/4  loss ") != std::string::npos);
  CHECK(text.find("\r\x1b[Kstep 2  held-out loss ") != std::string::npos);  // erases the step line
  CHECK(text.find("\r\nstep 4  held-out loss ") != std::string::npos);  // keeps the last step line
  CHECK(text.find("\r\nstep 0  held-out loss ") != std::string::npos);
}

TEST_CASE("the progress of an evaluation shows rate, remaining time and accuracy") {
  const TempDir dir;
  std::string questions;
  for (int i = 0; i < 10; ++i) {  // so that it lasts longer than a line stays
    questions += read_file(tiny("quiz.jsonl"));
  }
  write_file(dir / "quiz.jsonl", questions);
  const std::string text =
      run_on_terminal({"eval", tiny("model"), "--tasks", dir / "quiz.jsonl", "--batch-tokens", "1",
                       "--threads", "1", "--running-accuracy"});
  INFO(text);
  int lines = 0;
  for (const std::string& line : split_lines(text)) {
    if (line.find(" requests/s, left ") != std::string::npos) {
      ++lines;
      CHECK(line.find(", acc 0.") != std::string::npos);
      CHECK(line.size() - (line.starts_with("\x1b[K") ? 3 : 0) < kColumns);
    }
  }
  CHECK(lines >= 1);
  CHECK(text.find("quiz  100 %, ") != std::string::npos);   // no bar, the terminal is too narrow
  CHECK(text.find("(n = 3600)\r\n") != std::string::npos);  // the last line is kept
}

TEST_CASE("control characters of a generated text are escaped only on a terminal") {
  const std::string model = source_folder() / "recipes/tiny/model";
  const Args args = {"generate", model, "--prompt", "\x1b[31mred\u009b", "--max-tokens", "2"};
  const std::string shown = run_on_terminal(args);
  INFO(shown);
  CHECK(shown.find('\x1b') == std::string::npos);
  CHECK(shown.find("\\x1b[31mred\\x9b") != std::string::npos);
  CHECK(run_moe(args).out.find("\x1b[31mred\u009b") != std::string::npos);
}
