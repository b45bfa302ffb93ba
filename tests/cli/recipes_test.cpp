// Holds recipes/ to the commands and to one another: every table is taken by its command, every run
// of a paper has a small twin of the same structure, and every recipe opens with its arithmetic.

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <vector>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"

namespace moe {
namespace {

using std::filesystem::path;
using test::run_moe;
using test::TempDir;

const path& recipes() {
  static const path folder = moe::test::source_folder() / "recipes";
  return folder;
}

std::vector<path> papers() {
  return {recipes() / "rectify_router", recipes() / "top_p", recipes() / "remoe"};
}

// Names of the files of one folder, not below it.
std::set<std::string> names_in(const path& folder, const std::string& extension) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == extension) {
      names.insert(entry.path().filename().string());
    }
  }
  return names;
}

using Table = std::map<std::string, std::string>;  // key -> value as written, without its comment
using Tables = std::map<std::string, Table>;

// A reader of its own, for the plain lines that recipes consist of.
Tables tables_of(const path& recipe) {
  static const std::regex header(R"(\[([a-z]+)\])"),
      setting(R"(([a-z0-9-]+) = ([^#]*[^# ]) *(#.*)?)");
  Tables tables;
  std::istringstream lines(test::read_file(recipe));
  std::smatch match;
  for (std::string line, table; std::getline(lines, line);) {
    if (std::regex_match(line, match, header)) {
      table = match[1];
      tables[table];
    } else if (std::regex_match(line, match, setting)) {
      tables[table][match[1]] = match[2];
    } else {
      INFO(recipe << ": " << line);
      CHECK((line.empty() || line[0] == '#'));
    }
  }
  return tables;
}

// 374M-top1.toml begins with the weights of 374M.json.
std::string config_of(const path& recipe) {
  const std::string name = recipe.stem().string();
  return name.substr(0, name.find('-')) + ".json";
}

// Runs one table of a recipe as far as it goes without the user's own files: whole where that is
// cheap, else to the error that names the missing file, which stands behind every check of the
// flags.
void try_table(const path& recipe, const std::string& table, const path& small) {
  const TempDir folder;
  const std::string missing = (folder / "absent").string(), out = (folder / "out").string();
  const std::string tiny = (recipes() / "tiny/model").string();
  std::vector<std::string> arguments = {table};
  bool whole = false;
  if (table == "upcycle") {
    arguments.insert(arguments.end(), {tiny, "-o", out, "--dry-run"});
    whole = true;
  } else if (table == "init") {
    arguments.insert(arguments.end(), {(small / config_of(recipe)).string(), "-o", out, "--quiet"});
    whole = true;
  } else if (table == "train") {
    arguments.insert(arguments.end(), {missing, "-o", out, "--data", missing});
  } else if (recipe.parent_path() == small) {
    arguments.insert(arguments.end(), {tiny, "--limit", "1", "--quiet"});
    whole = true;
  } else {
    arguments.insert(arguments.end(), {tiny, "--data", missing});
  }
  arguments.insert(arguments.end(), {"--config", recipe.string()});
  const auto run = run_moe(arguments);
  INFO(recipe << " [" << table << "]: " << run.err);
  CHECK(run.exit_code == (whole ? 0 : 2));
  CHECK((whole || run.err.find(missing) != std::string::npos));
}

void try_folder(const path& folder, const path& small, std::set<std::string>& tried) {
  for (const auto& name : names_in(folder, ".toml")) {
    for (const auto& [table, keys] : tables_of(folder / name)) {
      // Runs of a paper, and twins, share most tables word for word: once is enough. Unknown keys
      // of any table stop every command.
      std::string words = small.string() + table + (table == "init" ? config_of(name) : "");
      for (const auto& [key, value] : keys) {
        words += "\n" + key + "=" + value;
      }
      if (tried.insert(words).second) {
        try_table(folder / name, table, small);
      }
    }
  }
}

TEST_CASE("every table of every paper's recipes is taken by its command", "[cli][recipes]") {
  std::set<std::string> tried;
  for (const auto& paper : papers()) {
    try_folder(paper, paper / "small", tried);
    try_folder(paper / "small", paper / "small", tried);
  }
  CHECK(tried.size() > 50);
}

TEST_CASE("every run of a paper has a small twin of the same structure", "[cli][recipes]") {
  static const std::set<std::string> shared = {"experts",      "granularity", "layers",
                                               "router",       "objective",   "lb-coef",
                                               "entropy-coef", "schedule"};
  for (const auto& paper : papers()) {
    INFO(paper);
    CHECK(names_in(paper, ".toml") == names_in(paper / "small", ".toml"));
    CHECK(names_in(paper, ".json") == names_in(paper / "small", ".json"));
    for (const auto& name : names_in(paper, ".toml")) {
      INFO(name);
      Tables full = tables_of(paper / name), small = tables_of(paper / "small" / name);
      CHECK((full.count("init") == 0 || names_in(paper, ".json").count(config_of(name)) == 1));
      for (const auto* table : {"upcycle", "init", "train"}) {
        CHECK(full.count(table) == small.count(table));
        for (const auto& key : shared) {
          CHECK(full[table][key] == small[table][key]);
        }
      }
    }
  }
}

TEST_CASE("a paper's config has the keys of its small twin, which moe init takes",
          "[cli][recipes]") {
  const auto keys = [](const path& file) {
    const Json json = read_json(file);
    std::set<std::string> names;
    for (const auto& [key, value] : json.items()) {
      names.insert(key);
    }
    return names;
  };
  for (const auto& paper : papers()) {
    for (const auto& name : names_in(paper, ".json")) {
      INFO(paper / name);
      CHECK(keys(paper / name) == keys(paper / "small" / name));
    }
  }
}

TEST_CASE("a recipe opens with its arithmetic and stays a page", "[cli][recipes]") {
  const auto check = [](const path& recipe, const std::vector<std::string>& words) {
    const std::string text = test::read_file(recipe);
    const std::string opening = text.substr(0, text.find("\n["));
    INFO(recipe);
    CHECK(text.rfind("# ", 0) == 0);
    CHECK(std::count(text.begin(), text.end(), '\n') < 40);
    for (const auto& word : words) {
      INFO(word);
      CHECK(opening.find("\n# " + word + " ") != std::string::npos);
    }
  };
  for (const auto& paper : papers()) {
    for (const auto& name : names_in(paper, ".toml")) {
      check(paper / name, {"Published", "Parameters", "Tokens", "Work"});
      check(paper / "small" / name, {"Parameters", "Tokens", "Work"});
    }
  }
}

// A script of recipes/ with the binary under test; both of its streams stand in `out`.
test::RunResult run_script(const std::string& name, const std::string& arguments,
                           const TempDir& folder) {
  const std::string command = "MOE=" + test::shell_quote(moe::test::moe_binary()) + " " +
                              test::shell_quote((recipes() / name).string()) + " " + arguments +
                              " >" + test::shell_quote((folder / "stdout").string()) +
                              " 2>&1 </dev/null";
  const int status = std::system(command.c_str());  // NOLINT: the test's own words
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, test::read_file(folder / "stdout"), ""};
}

test::RunResult at_test(const std::string& arguments, const TempDir& folder) {
  return run_script("rectify_router/at_test.sh", arguments, folder);
}

TEST_CASE("at_test.sh runs the rows of a table, and names the tables it knows", "[cli][recipes]") {
  const TempDir folder;
  const auto unknown = at_test("3 1 model out", folder);
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.out.find("one of: 2 1, 2 2, 5 1, 5 2, 7 1, 8 1, 8 2, 9 1, 9 2, fig3 1, fig3 2\n") !=
        std::string::npos);

  const path small = recipes() / "rectify_router/small/top2.toml";
  REQUIRE(run_moe({"upcycle", (recipes() / "tiny/model").string(), "-o",
                   (folder / "model").string(), "--config", small.string()})
              .exit_code == 0);
  const auto table =
      at_test("5 2 " + (folder / "model").string() + " " + (folder / "scores").string() +
                  " --limit 2 --config " + small.string(),
              folder);
  INFO(table.out);
  CHECK(table.exit_code == 0);
  for (const auto* ranks : {"8", "4", "2"}) {
    CHECK(std::filesystem::exists(
        folder / "scores" / (std::string("table5-top2+ir-cf2.0-ranks") + ranks) / "results.json"));
    CHECK(table.out.find(std::string("router top2+ir, ") + ranks + " logical ranks") !=
          std::string::npos);
  }
}

TEST_CASE("small.sh makes, trains and reports a twin, and never touches what is there",
          "[cli][recipes]") {
  const TempDir folder;
  const std::string twin = (recipes() / "remoe/small/182M-dense.toml").string();
  const auto run = run_script("small.sh", twin + " " + (folder / "run").string(), folder);
  INFO(run.out);
  CHECK(run.exit_code == 0);
  CHECK(std::filesystem::exists(folder / "run/train/final/config.json"));
  CHECK(run.out.find("\nlast 20 steps: loss ") != std::string::npos);

  const auto again = run_script("small.sh", twin + " " + (folder / "run").string(), folder);
  CHECK(again.exit_code == 2);
  CHECK(again.out.find("is there already") != std::string::npos);
  CHECK(run_script("small.sh", "top1", folder).exit_code == 2);
}

}  // namespace
}  // namespace moe
