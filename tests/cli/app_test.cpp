// Behaviour common to all commands: help, version, reference, completion, unknown words, recipes,
// numbers.

#include <filesystem>
#include <regex>

#include "core/base/json.h"
#include "tests/cli/commands.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("help and version go to standard output with exit code 0", "[cli]") {
  check_has(succeed({"--help"}).out,
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
  check_has(help, {"\nOutput:\n", "sequences per forward pass (default: 8"});
}

TEST_CASE("cli/REFERENCE.md is the output of moe --reference, and the manual page has every flag",
          "[cli]") {
  const std::string reference = succeed({"--reference"}).out;
  INFO("moe --reference >cli/REFERENCE.md writes it again");
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

TEST_CASE("bash completes commands, flags and the words of a flag, and zsh reads its script",
          "[cli]") {
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
  const auto shell = run_program("bash", {(folder / "moe.bash").string()});
  CHECK(shell.out == "upcycle\n--experts --expert\nkeep bf16 fp16 fp32\ntrain\n--seq-len\n\n");
  CHECK(shell.err.empty());
  const std::string zsh = succeed({"completion", "zsh"}).out;
  CHECK(zsh.starts_with("#compdef moe\n"));
  write_file(folder / "moe.zsh", zsh);
  if (run_program("zsh", {"--version"}).exit_code == 0) {
    CHECK(run_program("zsh", {"-n", (folder / "moe.zsh").string()}).exit_code == 0);
  }
}

namespace {

// Returns the string literals of a source file, without raw strings and comments.
std::vector<std::string> literals(std::string text) {
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  static const std::regex literal(R"re("((?:[^"\\\n]|\\.)*)")re");
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), literal), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

}  // namespace

TEST_CASE("every flag that a message of core names is a flag of a command", "[cli]") {
  const std::string known = succeed({"--reference"}).out;
  const size_t train = known.find("\n## moe train\n");
  REQUIRE(train != std::string::npos);
  const std::string of_train = known.substr(train, known.find("\n## ", train + 1) - train);
  static const std::regex flag(R"((?:^|[ "'(])(--[a-z][a-z0-9-]*[a-z0-9]))");
  size_t checked = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_folder() / "core")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".cpp" || name.find("page") != std::string::npos) {
      continue;  // the style sheet of the page has words like flags
    }
    for (const auto& text : literals(read_file(entry.path()))) {
      for (std::sregex_iterator match(text.begin(), text.end(), flag), end; match != end; ++match) {
        const std::string word = (*match)[1];
        CAPTURE(name, word);
        // A row has the names of a flag. --config is of the program, --long of zstd.
        const bool is_of_train = entry.path().string().find("core/train/") != std::string::npos &&
                                 text.find("moe eval") == std::string::npos;
        const std::string& flags = is_of_train ? of_train : known;
        CHECK((word == "--config" || word == "--long" ||
               flags.find(word + "`") != std::string::npos ||
               flags.find("`" + word + ", ") != std::string::npos));
        ++checked;
      }
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("unknown words name the nearest known one, invalid values their flag", "[cli]") {
  check_refused_each({},
                     {{{"upcicle", "x"}, "unknown command 'upcicle', did you mean 'upcycle'?"},
                      {{"upcycle", "x", "-o", "y", "--exprts", "8"},
                       "unknown flag '--exprts', did you mean '--experts'?"},
                      {{"upcycle", "x"}, "--out"},
                      {{"completion", "fish"}, "fish"},
                      {{"generate", "x", "--prompt", "a", "--max-tokens", "many"}, "--max-tokens"},
                      {{"upcycle", "x", "-o", "y", "--config", "/nowhere.toml"}, "/nowhere.toml"},
                      {{"generate", "x", "--prompt", "a", "--device", "tpu"},
                       "--device 'tpu' is unknown; known: cpu, cuda"},
                      {{"upcycle", "x", "-o", "y", "--seed", "9223372036854775808"},
                       "--seed 9223372036854775808: must be "}});
  CHECK(run_moe({}).exit_code == 2);
}

// On a machine with a GPU the folder x is missing instead.
TEST_CASE("--device cuda is refused by name without a GPU", "[cli]") {
  for (const Words& command :
       {Words{"train", "x", "--data", "y", "-o", "z"}, Words{"eval", "x", "--requests", "y"},
        Words{"upcycle", "x", "-o", "y", "--verify"}, Words{"bench", "gemm", "x"}}) {
    const auto result = run_moe(joined(command, {"--device", "cuda"}));
    if (result.err.find("no CUDA device") == std::string::npos) {
      MOE_SKIP("there is a GPU");
    }
    check_refused(result, "moe: --device cuda: no CUDA device: ");
    CHECK(result.err.ends_with("; or use --device cpu\n"));
  }
}

TEST_CASE("a recipe gives flags, the command line overrides it, other tables are ignored",
          "[cli]") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {});
  write_file(folder / "run.toml",
             "[upcycle]\nexperts = 4 # four\nrouter = \"top2:cf=inf\"\n"
             "layers = \"all\"\n[train]\nsteps = 3\n");
  succeed({"upcycle", (folder / "dense").string(), "-o", (folder / "a").string(), "--config",
           (folder / "run.toml").string(), "--layers", "odd"});
  const auto written = read_json(folder / "a/config.json");
  CHECK(written.at("num_experts") == 4);
  CHECK(written.at("num_experts_per_tok") == 2);
  CHECK(written.at("moe").at("layers") == Json({1}));
}

TEST_CASE("integer flags refuse values out of the range of their type", "[cli]") {
  static const std::regex flag(R"(--([a-z0-9-]+) U?INT)");
  const Words values = {"18446744073709551616", "-9223372036854775809", "0x10", "1.5"};
  size_t seen = 0, checked = 0;
  for (const Words& command : {Words{"upcycle"}, {"train"}, {"eval"}, {"bench", "comm"}}) {
    const std::string help = succeed(joined(command, {"--help"})).out;
    for (std::sregex_iterator match(help.begin(), help.end(), flag), end; match != end; ++match) {
      if (seen++ % 5 == 0) {  // tests/slow/hostile.py tries all
        const std::string name = "--" + (*match)[1].str(), value = values[checked++ % 4];
        check_refused(joined(command, {name + "=" + value}),
                      fmt::format("moe: {} {}: must be ", name, value));
      }
    }
  }
  CHECK(checked > 6);
}
