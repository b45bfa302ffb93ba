// The recipes. Every row of the papers' tables, at full and at reduced size, has the settings of
// tests/golden/recipes.txt and is accepted by its commands.

#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <vector>

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;
using fs::path;

const path& recipes() {
  static const path folder = source_folder() / "recipes";
  return folder;
}

using Table = std::map<std::string, std::string>;  // key -> value, without comment
using Tables = std::map<std::string, Table>;

// Reads the subset of TOML that recipes use.
Tables read_tables(const path& recipe) {
  static const std::regex header(R"(\[([a-z]+)\])"),
      setting(R"(([a-z0-9-]+) = ([^#]*[^# ]) *(#.*)?)");
  Tables tables;
  std::istringstream lines(read_file(recipe));
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

// Returns the same text for equal values, such as 1e-5 and 0.00001, or ["a", "b"] and a,b.
std::string normalized(std::string value) {
  std::string text;
  for (const char c : value) {
    if (std::string("[]\" ").find(c) == std::string::npos) {
      text += c;
    }
  }
  size_t used = 0;
  try {
    const double number = std::stod(text, &used);
    return used == text.size() ? fmt::format("{}", number) : text;
  } catch (const std::exception&) {
    return text;
  }
}

// Returns the normalized settings of a command: its table in the recipe, overridden by the flags of
// a row ("--key value --key value").
Table settings(const path& recipe, const std::string& command, const std::string& flags) {
  Tables tables = read_tables(recipe);
  Table& table = tables[command];
  std::istringstream stream(flags);
  for (std::string key, value; stream >> key >> value;) {
    table[key.substr(2)] = value;
  }
  for (auto& [key, value] : table) {
    value = normalized(value);
  }
  return table;
}

// Runs a script of recipes/ with the binary under test. RunResult::out has both streams.
RunResult run_script(const std::string& name, const std::string& arguments) {
  return run_program(
      "sh", {"-c", "recipes/" + name + " " + arguments + " 2>&1"},
      "cd " + shell_quote(source_folder().string()) + " && MOE=" + shell_quote(moe_binary()));
}

// Returns the recipe and the flags of a row, from the output of recipes/row.sh: "--config RECIPE
// --key value ..".
std::pair<path, std::string> row_flags(const std::string& row, const std::string& command) {
  const auto result = run_script("row.sh", "recipes/" + row + " " + command);
  CAPTURE(row, command, result.out);
  REQUIRE(result.exit_code == 0);
  const std::string line = result.out.substr(0, result.out.size() - 1);
  const size_t begin = std::string("--config ").size(), end = line.find(' ', begin);
  return {source_folder() / line.substr(begin, end - begin),
          end == std::string::npos ? "" : line.substr(end + 1)};
}

// An entry of tests/golden/recipes.txt: a command with flags, and the rows that have them.
struct GoldenRow {
  std::string command, flags;
  std::vector<std::string> names;  // such as "rectify_router/small/top1"
};

std::vector<GoldenRow> golden_rows() {
  std::vector<GoldenRow> rows;
  std::istringstream lines(read_file(source_folder() / "tests/golden/recipes.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream stream(line);
    if (line[0] == ' ') {
      for (std::string name; stream >> name;) {
        rows.back().names.push_back(name);
      }
    } else if (line[0] != '#') {
      rows.emplace_back();
      stream >> rows.back().command;
      std::getline(stream, rows.back().flags);
    }
  }
  return rows;
}

Args split_words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST_CASE("the rows of the tables have the settings of the golden file") {
  std::set<std::string> golden_names, rows;
  for (const auto& golden : golden_rows()) {
    for (const auto& name : golden.names) {
      const auto [recipe, flags] = row_flags(name, golden.command);
      CAPTURE(name, golden.command);
      CHECK(settings(recipe, golden.command, flags) ==
            settings("/dev/null", golden.command, golden.flags));
      golden_names.insert(name);
    }
  }
  for (const std::string paper : {"rectify_router", "top_p", "remoe"}) {
    for (const auto& name : split_words(run_script("row.sh", "recipes/" + paper).out)) {
      rows.insert(paper + "/" + name);
      rows.insert(paper + "/small/" + name);
    }
  }
  CHECK(rows == golden_names);
  CHECK(rows.size() == 102);
}

// Returns a model folder for the flags of `golden`, with random weights and a router of that
// family.
std::string folder_for(const GoldenRow& golden, const TempDir& work) {
  const std::string& name = golden.names.front();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const std::string router = has("dense")     ? ""
                             : has("dynamic") ? "topp:0.4"
                             : has("relu")    ? "relu:k=1"
                                              : "top1";
  const path folder = work / ("model-" + router.substr(0, 4));
  if (!fs::exists(folder)) {
    Json config = read_json(recipes() / "remoe/small/182M.json");
    config["max_position_embeddings"] = 2048;
    write_file(work / "config.json", config.dump());
    Args init = {"init",        work / "config.json", "-o",     folder.string(),
                 "--tokenizer", tiny("model"),        "--quiet"};
    if (!router.empty()) {
      init = joined(init, {"--experts", "8", "--router", router, "--ep-ranks", "8"});
    }
    succeed(init);
  }
  return folder.string();
}

// Runs the command of a row in a cheap way: moe train with --show-settings, moe upcycle with
// --dry-run, and moe eval of a full-size row with a missing data file, which is reported after all
// flags are checked.
void check_accepted(const GoldenRow& golden, const TempDir& work) {
  const std::string& name = golden.names.front();
  const TempDir folder;
  const std::string missing = folder / "absent", out = folder / "out";
  for (const auto* file : {"text.jsonl", "pile-held-out.jsonl"}) {  // the second is in recipes
    write_file(work / file, "{\"text\": \"The opposite of big is small.\"}\n");
  }
  Args arguments = {golden.command};
  bool whole = true;
  if (golden.command == "train") {
    const bool is_text = golden.flags.find("--objective lm") != std::string::npos;
    arguments =
        joined(arguments, {folder_for(golden, work), "--data",
                           is_text ? (work / "text.jsonl").string() : tiny("instruct.jsonl"),
                           "--cache", "off", "--show-settings"});
  } else if (golden.command == "upcycle") {
    arguments = joined(arguments, {tiny("model"), "-o", out, "--dry-run"});
  } else if (golden.command == "init") {
    const std::string row = path(name).filename().string();
    const path paper = recipes() / name.substr(0, name.find('/'));
    arguments =
        joined(arguments, {(paper / "small" / (row.substr(0, row.find('-')) + ".json")).string(),
                           "-o", out, "--quiet"});
  } else if (name.find("/small/") != std::string::npos) {
    arguments = joined(arguments, {tiny("model"), "--limit", "1", "--quiet"});
  } else {
    arguments = joined(arguments, {tiny("model"), "--data", missing});
    whole = false;
  }
  const auto [recipe, flags] = row_flags(name, golden.command);
  arguments = joined(arguments, split_words("--config " + recipe.string() + " " + flags));
  // Small rows name tasks relative to the root. Rows of moe train name the held-out text relative
  // to the working folder.
  const path where = golden.command == "train" ? work.path() : source_folder();
  const auto run = run_moe(arguments, "cd " + shell_quote(where.string()) + " &&");
  CAPTURE(name, golden.command, run.err);
  CHECK(run.exit_code == (whole ? 0 : 2));
  CHECK((whole || says(run.err, missing)));
  CHECK((golden.command != "train" || says(run.out, "\n[train]\n")));
}

TEST_CASE("every command accepts the flags of a row of each paper") {
  std::map<std::string, GoldenRow> last;  // by paper and command
  for (const auto& golden : golden_rows()) {
    const std::string& name = golden.names.front();
    last[name.substr(0, name.find('/')) + " " + golden.command] = golden;
  }
  CHECK(last.size() == 8);
  const TempDir work;
  for (const auto& [key, golden] : last) {
    check_accepted(golden, work);
  }
}

TEST_CASE("every command accepts the flags of every row", "[.][slow]") {
  const TempDir work;
  for (const auto& golden : golden_rows()) {
    check_accepted(golden, work);
  }
}

// Returns the peak bytes of one GPU that `moe train --dry-run` estimates for a row on a cluster.
// `maker`: command that creates the model, "upcycle" or "init".
double planned_peak(const std::string& row, const path& config, const std::string& maker,
                    const std::string& nodes) {
  const auto [recipe, flags] = row_flags(row, "train");
  auto arguments = split_words("train " + config.string() + " --dry-run --json --gpus 8 --nodes " +
                               nodes + " --config " + recipe.string() + " " + flags);
  if (row.find("dense") == std::string::npos) {
    const auto [maker_recipe, maker_flags] = row_flags(row, maker);
    for (const auto& [key, value] : settings(maker_recipe, maker, maker_flags)) {
      if (key != "seed" && key != "init") {
        arguments = joined(arguments, {"--" + (key == "experts" ? "upcycled" : key), value});
      }
    }
  }
  return Json::parse(succeed(arguments).out).at("peak_bytes").get<double>();
}

// Checks the memory of one GPU for the last row of each table, or for all rows.
void check_memory_of_rows(bool all) {
  // A GPU of "80 GB" has 80 GiB, of which 79 GiB are usable.
  constexpr double kGpu = 79.0 * (uint64_t{1} << 30);
  const TempDir work;
  const TinyCheckpoint llama_2_7b = {.hidden = 4096,
                                     .intermediate = 11008,
                                     .layers = 32,
                                     .heads = 32,
                                     .kv_heads = 32,
                                     .vocab = 32000,
                                     .max_positions = 4096,
                                     .dtype = io::DType::kBF16};
  write_file(work / "llama.json", tiny_config(llama_2_7b).dump());
  size_t compared = 0;
  for (const auto& [paper, maker, nodes] :
       {std::tuple("rectify_router", "upcycle", "4"),  // 32 GPUs of 80 GB, as in the paper
        std::tuple("top_p", "init", "1"), std::tuple("remoe", "init", "1")}) {
    const Args names = split_words(run_script("row.sh", std::string("recipes/") + paper).out);
    for (const auto& name : all ? names : Args{names.back()}) {
      const std::string row = std::string(paper) + "/" + name;
      const path config = std::string(maker) == "upcycle"
                              ? work / "llama.json"
                              : recipes() / paper / (name.substr(0, name.find('-')) + ".json");
      CAPTURE(row);
      const double peak = planned_peak(row, config, maker, nodes);
      CHECK(peak < kGpu);
      CHECK(peak > 2e9);
      ++compared;
    }
  }
  CHECK(compared == (all ? 51 : 3));
}

TEST_CASE("a row of each paper fits the memory of its GPUs") {
  check_memory_of_rows(/*all=*/false);
}

TEST_CASE("every row fits the memory of its GPUs", "[.][slow]") {
  check_memory_of_rows(/*all=*/true);
}

TEST_CASE("row.sh refuses unknown rows and commands by name") {
  const auto unknown = run_script("row.sh", "recipes/top_p/374M-top3 init");
  CHECK(unknown.exit_code == 2);
  CHECK(says(unknown.out, "'374M-top3'"));
  const auto without = run_script("row.sh", "recipes/rectify_router/dense upcycle");
  CHECK(without.exit_code == 2);
  CHECK(says(without.out, "'dense' has no moe upcycle"));
  CHECK(run_script("row.sh", "recipes/rectify_router/top1").out ==
        "recipes/rectify_router/table.toml\n");
}

TEST_CASE("at_test.sh runs the rows of a table and refuses unknown tables") {
  const TempDir folder;
  const auto unknown = run_script("rectify_router/at_test.sh", "3 1 model out");
  CHECK(unknown.exit_code == 2);
  CHECK(says(unknown.out, "2 1, 2 2, 5 1, 5 2, 7 1, 8 1, 8 2, 9 1, 9 2, fig3 1, fig3 2\n"));

  const path small = recipes() / "rectify_router/small/table.toml";
  succeed({"upcycle", tiny("model"), "-o", folder / "model", "--config", small.string(), "--router",
           "top2"});
  const auto table =
      run_script("rectify_router/at_test.sh", "5 2 " + (folder / "model").string() + " " +
                                                  (folder / "scores").string() +
                                                  " --limit 2 --config " + small.string());
  INFO(table.out);
  CHECK(table.exit_code == 0);
  for (const auto* ranks : {"8", "4", "2"}) {
    CHECK(fs::exists(folder / "scores" / (std::string("table5-top2+ir-cf2.0-ranks") + ranks) /
                     "results.json"));
    CHECK(table.out.find(std::string("router top2+ir, ") + ranks + " logical ranks") !=
          std::string::npos);
  }
}

// Runs a row of the study with three steps, and again, which finds the stored result.
void check_study(const std::string& block, const std::string& row) {
  const TempDir work;
  const std::string arguments =
      fmt::format("{} --tiny --row '{}' --work {}", block, row, work.path().string());
  const auto run = run_script("study/run.py", arguments);
  CAPTURE(run.out);
  CHECK(run.exit_code == 0);
  const path results = work / "tiny" / block;
  REQUIRE(std::distance(fs::directory_iterator(results), {}) == 1);
  const Json result = read_json(fs::directory_iterator(results)->path());
  CHECK(result.at("settings").at("row") == row);
  CHECK(result.at("steps") == 3);
  CHECK(result.contains(result.contains("items") ? "accuracy" : "held_out"));
  CHECK(says(run_script("study/run.py", arguments).out, ": is there\n"));
}

TEST_CASE("the study runs a row of a block and skips existing results") {
  check_study("starts", "shared expert");
  const TempDir work;
  const auto unknown =
      run_script("study/run.py", "remoe --tiny --row top9 --work " + work.path().string());
  CHECK(unknown.exit_code == 1);
  CHECK(says(unknown.out, "'top9'; known: dense, "));
}

TEST_CASE("the study runs a row of each block", "[.][slow]") {
  check_study("rectify_router", "top1");
  check_study("top_p", "top-p");
  check_study("remoe", "relu, plain L1");
  check_study("routers", "relu, k 2");
}

TEST_CASE("the p-values of the study are those of Student's t-test with Holm's correction") {
  const TempDir work;
  fs::copy(recipes() / "study/intervals.py", work / "intervals.py");
  write_file(work / "check.py", R"(
from intervals import T95, conclusion, holm, t_interval, t_test, two_sided_p
for freedom, t in T95.items():  # the tabulated points have three decimals
    assert abs(two_sided_p(t, freedom) - 0.05) < 2e-4, (freedom, t)
assert abs(two_sided_p(8.610, 4) - 0.001) < 1e-6 and two_sided_p(0, 3) == 1
values = [1.0, 2.0, 4.0]
mean, half = t_interval(values)
assert abs(t_test([value - mean + half for value in values]) - 0.05) < 2e-4  # the interval just touches zero
assert t_test([1.0]) is None and t_test([0.0, 0.0]) is None and t_test([1.0, 1.0]) == 0
found = holm([0.01, None, 0.04, 0.03, 0.005])
assert [None if p is None else round(p, 12) for p in found] == [0.03, None, 0.06, 0.06, 0.02], found
assert conclusion(1, 0.04) == "holds" and conclusion(-1, 0.04) == "does not hold"
assert conclusion(1, 0.05) == conclusion(-1, None) == "not resolved"
)");
  const auto run = run_program("python3", {work / "check.py"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
}

TEST_CASE("study/run.py --tables reproduces the tables of the docs", "[.][slow]") {
  const TempDir work;
  fs::copy(recipes(), work / "recipes", fs::copy_options::recursive);
  const auto made = run_program("python3", {work / "recipes/study/run.py", "--tables"});
  CAPTURE(made.out, made.err);
  REQUIRE(made.exit_code == 0);
  for (const auto* page : {"README.md", "study/README.md"}) {
    CHECK(read_file(recipes() / page) == read_file(work / "recipes" / page));
  }
  CHECK(fs::exists(work / "runs/study/page.json"));
}

TEST_CASE("the comparison over seeds prints means with intervals and keeps existing results",
          "[.][slow]") {
  const TempDir work;
  const std::string arguments = "--seeds 2 --steps 2 --work " + work.path().string();
  const auto run = run_script("tiny/seeds.py", arguments);
  CAPTURE(run.out);
  CHECK(run.exit_code == 0);
  check_contains(run.out, {"| MoE of 8, `top2` | ", "paired by seed (2 seeds, 95 %): "});
  const auto written = fs::last_write_time(work / "seed2/scores/moe-tuned/results.json");
  CHECK(run_script("tiny/seeds.py", arguments).out == run.out);
  CHECK(fs::last_write_time(work / "seed2/scores/moe-tuned/results.json") == written);
}

TEST_CASE("small.sh creates, trains and reports a small model, and refuses an existing folder",
          "[.][slow]") {
  const TempDir folder;
  const std::string run_folder = folder / "run";
  // A path with .toml is accepted, too.
  const auto run = run_script("small.sh", "recipes/remoe/small/182M-dense.toml " + run_folder);
  INFO(run.out);
  CHECK(run.exit_code == 0);
  CHECK(fs::exists(folder / "run/train/final/config.json"));
  CHECK(run.out.find("\nlast 20 steps: loss ") != std::string::npos);

  const auto again = run_script("small.sh", "recipes/remoe/small/182M-dense " + run_folder);
  CHECK(again.exit_code == 2);
  CHECK(says(again.out, run_folder));
  CHECK(run_script("small.sh", "top1").exit_code == 2);
}

// Returns the paths, relative to the root, and texts of all scripts of the project.
std::map<std::string, std::string> scripts() {
  const path root = source_folder();
  std::map<std::string, std::string> found = {{".ci/run", read_file(root / ".ci/run")}};
  for (const char* top : {"recipes", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (entry.path().extension() == ".sh") {
        found[entry.path().lexically_relative(root).string()] = read_file(entry.path());
      }
    }
  }
  return found;
}

TEST_CASE("scripts ignore CDPATH and Python modules in the working folder") {
  static const std::regex enters_a_folder(R"(\$\(cd |\n *cd )");
  static const std::regex python_of_text(R"((python3|"\$python"|/python) (-c|-)[ \n])");
  for (const auto& [name, text] : scripts()) {
    INFO(name);
    if (name != "tests/support/tally.sh") {
      CHECK((!std::regex_search(text, enters_a_folder) ||
             text.find("\nunset CDPATH\n") != std::string::npos));
    }
    CHECK_FALSE(std::regex_search(text, python_of_text));  // python3 -I - or python3 -I -c
  }
  const TempDir folder;
  write_file(folder / "json.py", "open('ran', 'w')\n");
  write_file(folder / "run/metrics.jsonl", R"({"step": 1, "sparsity": 0.5, "lambda": 1})"
                                           "\n");
  const auto table =
      run_program("bash", {recipes() / "analyses.sh", "remoe-sparsity", folder / "run"},
                  "cd " + folder.path().string() + " && MOE=" + shell_quote(moe_binary()));
  INFO(table.err);
  CHECK(table.exit_code == 0);
  CHECK_FALSE(fs::exists(folder / "ran"));
}

TEST_CASE("every Python package that setup.sh installs is pinned with hashes") {
  const path interop = source_folder() / "tests/interop";
  for (const path& file : {recipes() / "libtorch.txt", recipes() / "cuda_libraries.txt",
                           recipes() / "clang_format.txt", recipes() / "parquet.txt",
                           interop / "requirements.txt", interop / "requirements-eval.txt"}) {
    const std::string text = std::regex_replace(read_file(file), std::regex(R"( *\\\n *)"), " ");
    static const std::regex pinned(R"([A-Za-z0-9_.-]+==[0-9a-z.]+( --hash=sha256:[0-9a-f]{64})+)");
    std::istringstream lines(text);
    int count = 0;
    for (std::string line; std::getline(lines, line);) {
      INFO(file.string() << ": " << line);
      if (!line.empty() && line.front() != '#') {
        CHECK(std::regex_match(line, pinned));
        ++count;
      }
    }
    CHECK(count > 0);
  }
}

TEST_CASE("setup.sh uses sudo only with --yes") {
  const TempDir folder;
  const auto write_program = [&](const std::string& name, const std::string& body) {
    const path file = folder / "bin" / name;
    write_file(file, "#!/bin/sh\n" + body + "\n");
    fs::permissions(file, fs::perms(0755));
  };
  write_program("id", "echo 1000");
  write_program("dpkg-query", "exit 1");
  write_program("sudo", "echo \"$@\" >>" + (folder / "called").string());
  const std::string with_path = "PATH=" + (folder / "bin").string() + ":$PATH";
  const std::string setup = recipes() / "setup.sh";
  const auto refused = run_program("bash", {setup, "--packages"}, with_path);
  CHECK(refused.exit_code == 2);
  CHECK(says(refused.err, "give --yes to use sudo: sudo apt-get install g++ "));
  CHECK_FALSE(fs::exists(folder / "called"));
  const auto allowed = run_program("bash", {setup, "--packages", "--yes"}, with_path);
  INFO(allowed.err);
  CHECK(allowed.exit_code == 0);
  CHECK(says(read_file(folder / "called"), "apt-get -q -y"));
}

// moe quickstart names missing programs. tests/cli/user_files_test.cpp tests folders with other
// files; tests/wheel/run.sh and .ci/run run the whole quickstart.

TEST_CASE("moe quickstart names a missing program before it writes a file") {
  const TempDir dir;
  const std::string out = dir / "run";
  const Args args = {"quickstart", "-o", out, "--short"};
  check_refused(run_moe(args, "PYTHON=/nowhere/python3"), "no /nowhere/python3 here");
  check_refused(run_moe(args, "PATH=/nowhere"), "bash, which runs ");

  const fs::path binary = moe_binary();
  fs::copy_file(binary, dir / "moe");  // without its recipes
  fs::copy_file(binary.parent_path() / "libmoe_ops.so", dir / "libmoe_ops.so");
  check_refused(run_program((dir / "moe").string(), args),
                dir.path().string() + ": no recipes/quickstart.sh here");
  CHECK(!fs::exists(out));
}

TEST_CASE("the quickstart overwrites only files in its list .moe-quickstart") {
  const TempDir dir;
  const fs::path run = dir / "run", thesis = run / "texts/thesis.txt";
  const auto quickstart = [&] {
    return run_program("bash", {source_folder() / "recipes/quickstart.sh", run, "--short"},
                       "MOE=/bin/false");
  };
  write_file(thesis, "mine");
  write_file(run / "moe/thesis.txt", "mine");
  write_file(run / ".moe-quickstart", "");
  CHECK(quickstart().exit_code == 1);  // /bin/false failed
  CHECK(read_file(thesis) == "mine");
  CHECK(read_file(run / "moe/thesis.txt") == "mine");
  write_file(run / "texts/quiz.jsonl", "of the list");
  CHECK(quickstart().exit_code == 1);
  write_file(run / ".moe-quickstart", "texts/known.jsonl\n");
  check_refused(quickstart(), (run / "texts/quiz.jsonl").string() + " is not in the list");
  CHECK(read_file(run / "texts/quiz.jsonl") == "of the list");
  fs::rename(run / "texts", dir / "texts");
  fs::create_directory_symlink(dir / "texts", run / "texts");
  check_refused(quickstart(), (run / "texts").string() + " is a link");
}

}  // namespace
}  // namespace moe
