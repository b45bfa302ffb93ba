// What every command shares: help, version, unknown words, recipes.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/tiny_checkpoint.h"

using moe::test::run_moe;

TEST_CASE("help and version go to standard output with exit code 0", "[cli]") {
  const auto help = run_moe({"--help"});
  CHECK(help.exit_code == 0);
  for (const auto* command :
       {"upcycle", "init", "train", "report", "eval", "inspect", "generate"}) {
    CHECK(help.out.find(command) != std::string::npos);
    CHECK(run_moe({command, "--help"}).exit_code == 0);
  }
  const auto version = run_moe({"--version"});
  CHECK(version.exit_code == 0);
  CHECK(version.out.rfind("moe ", 0) == 0);
}

TEST_CASE("the help of moe train groups its flags", "[cli]") {
  const auto help = run_moe({"train", "--help"}).out;
  for (const auto* group :
       {"Model", "Data", "Batch", "Memory", "Optimizer", "Router", "Tasks", "Ranks"}) {
    const size_t at = help.find(std::string("\n") + group + ":\n");
    CAPTURE(group);
    REQUIRE(at != std::string::npos);
    CHECK(help.find("\n  --", at) < help.find("\n\n", at));
  }
  CHECK(help.find("\nOutput:\n") != std::string::npos);
  CHECK(help.find("sequences per forward pass (default: 8") != std::string::npos);
}

TEST_CASE("cli/REFERENCE.md is what the program says of itself", "[cli]") {
  const auto reference = run_moe({"--reference"});
  CHECK(reference.exit_code == 0);
  INFO("moe --reference >cli/REFERENCE.md writes it again");
  CHECK((reference.out == moe::test::read_file(moe::test::source_folder() / "cli/REFERENCE.md")));
  CHECK(reference.out.find("| Options |") == std::string::npos);  // every flag has a group
}

TEST_CASE("the manual page has every command and flag", "[cli]") {
  const auto page = run_moe({"--manual"});
  CHECK(page.exit_code == 0);
  CHECK(page.out.rfind(".TH MOE 1 ", 0) == 0);
  const std::string reference = run_moe({"--reference"}).out;
  static const std::regex flag(R"(\n\| `([^`]*)` \|)");
  size_t checked = 0;
  for (std::sregex_iterator match(reference.begin(), reference.end(), flag), end; match != end;
       ++match) {
    const std::string name = std::regex_replace((*match)[1].str(), std::regex("-"), "\\-");
    CAPTURE(name);
    CHECK(page.out.find(".BR \"" + name + "\"") != std::string::npos);
    ++checked;
  }
  CHECK(checked > 150);
}

TEST_CASE("bash completes commands, flags and the words of a flag", "[cli]") {
  const auto script = run_moe({"completion", "bash"});
  REQUIRE(script.exit_code == 0);
  const moe::test::TempDir folder;
  std::ofstream(folder / "moe.bash") << script.out << R"(
for line in 'up' 'upcycle --exper' 'init --dtype ' 'bench tr' 'bench train --seq' 'train x'; do
  COMP_WORDS=(moe)
  for word in $line; do COMP_WORDS+=("$word"); done
  if [[ $line == *' ' ]]; then COMP_WORDS+=(''); fi
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _moe
  echo "${COMPREPLY[*]}"
done
)";
  const auto shell = moe::test::run_program("bash", {(folder / "moe.bash").string()});
  CHECK(shell.out == "upcycle\n--experts --expert\nkeep bf16 fp16 fp32\ntrain\n--seq-len\n\n");
  CHECK(shell.err.empty());
}

TEST_CASE("a script for zsh is one that zsh reads", "[cli]") {
  const auto script = run_moe({"completion", "zsh"});
  REQUIRE(script.exit_code == 0);
  CHECK(script.out.rfind("#compdef moe\n", 0) == 0);
  CHECK(script.out.find("--dtype[") != std::string::npos);
  if (moe::test::run_program("zsh", {"--version"}).exit_code != 0) {
    MOE_SKIP("no zsh here");
  }
  const moe::test::TempDir folder;
  std::ofstream(folder / "moe.zsh") << script.out;
  CHECK(moe::test::run_program("zsh", {"-n", (folder / "moe.zsh").string()}).exit_code == 0);
  CHECK(run_moe({"completion", "fish"}).exit_code == 2);
}

namespace {

// The string literals of a source file, without raw strings and comments.
std::vector<std::string> literals_of(std::string text) {
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
  const std::string known = run_moe({"--reference"}).out;
  const size_t train = known.find("\n## moe train\n");
  REQUIRE(train != std::string::npos);
  const std::string of_train = known.substr(train, known.find("\n## ", train + 1) - train);
  static const std::regex flag(R"((?:^|[ "'(])(--[a-z][a-z0-9-]*[a-z0-9]))");
  size_t checked = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(moe::test::source_folder() / "core")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".cpp" || name.find("page") != std::string::npos) {
      continue;  // a page's style sheet has words that look like flags
    }
    for (const auto& text : literals_of(moe::test::read_file(entry.path()))) {
      for (std::sregex_iterator match(text.begin(), text.end(), flag), end; match != end; ++match) {
        const std::string word = (*match)[1];
        CAPTURE(name, word);
        // One of a flag's names in its row; --config is the program's, --long zstd's.
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

TEST_CASE("an unknown word names the nearest known one", "[cli]") {
  const auto command = run_moe({"upcicle", "x"});
  CHECK(command.exit_code == 2);
  CHECK(command.err.find("unknown command 'upcicle', did you mean 'upcycle'?") !=
        std::string::npos);
  const auto flag = run_moe({"upcycle", "x", "-o", "y", "--exprts", "8"});
  CHECK(flag.exit_code == 2);
  CHECK(flag.err.find("unknown flag '--exprts', did you mean '--experts'?") != std::string::npos);
  const auto nothing = run_moe({});
  CHECK(nothing.exit_code == 2);
}

TEST_CASE("a missing or impossible value is exit code 2 with the flag's name", "[cli]") {
  const auto missing = run_moe({"upcycle", "x"});
  CHECK(missing.exit_code == 2);
  CHECK(missing.err.find("--out") != std::string::npos);
  const auto word = run_moe({"generate", "x", "--prompt", "a", "--max-tokens", "many"});
  CHECK(word.exit_code == 2);
  CHECK(word.err.find("--max-tokens") != std::string::npos);
}

// Of a machine without a GPU; where there is one, the folder x is what is missing.
TEST_CASE("cuda is refused by name where it cannot run", "[cli]") {
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "x", "--prompt", "a"},
      {"train", "x", "--data", "y", "-o", "z"},
      {"eval", "x", "--requests", "y"},
      {"upcycle", "x", "-o", "y", "--verify"},
      {"bench", "layer"},
      {"bench", "train", "x"},
      {"bench", "eval", "x"},
      {"bench", "gemm", "x"},
  };
  for (auto command : commands) {
    command.insert(command.end(), {"--device", "cuda"});
    const auto result = run_moe(command);
    CAPTURE(result.err);
    if (result.err.find("no CUDA device") == std::string::npos) {
      MOE_SKIP("there is a GPU");
    }
    CHECK(result.exit_code == 2);
    CHECK(result.err.find("moe: --device cuda: no CUDA device: ") == 0);
    CHECK(result.err.find("; or use --device cpu\n") != std::string::npos);
  }
  const auto unknown = run_moe({"generate", "x", "--prompt", "a", "--device", "tpu"});
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("--device 'tpu' is unknown; known: cpu, cuda") != std::string::npos);
}

TEST_CASE("a recipe gives flags, the command line wins, other tables are left", "[cli]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  moe::test::write_file(folder / "run.toml",
                        "[upcycle]\nexperts = 4 # four\nrouter = \"top2:cf=inf\"\n"
                        "layers = \"all\"\n[train]\nsteps = 3\n");
  const std::string config = (folder / "run.toml").string(), dense = (folder / "dense").string();
  const auto result = run_moe(
      {"upcycle", dense, "-o", (folder / "a").string(), "--config", config, "--layers", "odd"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const auto written = moe::read_json(folder / "a/config.json");
  CHECK(written.at("num_experts") == 4);
  CHECK(written.at("num_experts_per_tok") == 2);
  CHECK(written.at("moe").at("layers") == moe::Json({1}));
}

TEST_CASE("a recipe's mistakes are named", "[cli]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  const auto run_with = [&](const std::string& recipe) {
    moe::test::write_file(folder / "run.toml", recipe);
    const auto result =
        run_moe({"upcycle", (folder / "dense").string(), "-o", (folder / "out").string(),
                 "--config", (folder / "run.toml").string()});
    CHECK(result.exit_code == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
    return result.err;
  };
  CHECK(run_with("[upcycle]\nexpert = 4\n").find("expert") != std::string::npos);
  CHECK(run_with("[upcycle\n").find("line 1") != std::string::npos);
  CHECK(run_with("experts = 4\n").find("outside a table") != std::string::npos);
  const auto missing = run_moe({"upcycle", "x", "-o", "y", "--config", "/nowhere.toml"});
  CHECK(missing.exit_code == 2);
  CHECK(missing.err.find("/nowhere.toml") != std::string::npos);
}

TEST_CASE("every flag of a whole number refuses what its type cannot hold", "[cli]") {
  static const std::regex flag(R"(--([a-z0-9-]+) U?INT)");
  const std::vector<std::string> values = {"18446744073709551616", "-9223372036854775809", "0x10",
                                           "1.5"};
  size_t checked = 0;
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"upcycle"},
                                             {"init"},
                                             {"train"},
                                             {"eval"},
                                             {"route"},
                                             {"generate"},
                                             {"bench", "layer"},
                                             {"bench", "train"},
                                             {"bench", "eval"},
                                             {"bench", "generate"},
                                             {"bench", "comm"}}) {
    auto words = command;
    words.emplace_back("--help");
    const std::string help = run_moe(words).out;
    for (std::sregex_iterator match(help.begin(), help.end(), flag), end; match != end; ++match) {
      const std::string name = "--" + (*match)[1].str();
      // One value a flag, by turns: a process takes 0.3 s to start.
      const std::string value = values[checked % values.size()];
      words = command;
      words.push_back(fmt::format("{}={}", name, value));
      const auto run = run_moe(words);
      CAPTURE(words, run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.err.rfind(fmt::format("moe: {} {}: must be ", name, value), 0) == 0);
      CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
      ++checked;
    }
  }
  CHECK(checked > 60);
}

TEST_CASE("a seed is a whole number that fits", "[cli]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "dense", {});
  const auto run_with = [&](const std::string& seed) {
    return run_moe({"upcycle", (folder / "dense").string(), "-o", (folder / "out").string(),
                    "--dry-run", "--seed", seed});
  };
  for (const char* wrong : {"-1", "18446744073709551616", "9223372036854775808", "nan", "3x"}) {
    const auto run = run_with(wrong);
    CAPTURE(wrong, run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(fmt::format("--seed {}: must be ", wrong)) != std::string::npos);
  }
  CHECK(run_with("9223372036854775807").exit_code == 0);
}
