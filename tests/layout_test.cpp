// Checks the layout of the tree: which folders may include which, and where LibTorch, streams and
// parsers may be used. Each rule is first checked on a small tree that breaks it.

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace {

using Strings = std::vector<std::string>;
using Tree = std::map<std::string, std::string>;  // path from the root -> text

// Folders that each folder may include, besides itself and what these may include.
const std::map<std::string, std::set<std::string>>& arrows_down() {
  static const std::map<std::string, std::set<std::string>> arrows = {
      {"core/base", {}},
      {"kernels", {}},
      {"core/tokenizer", {"core/base"}},
      {"core/io", {"core/tokenizer"}},
      {"core/distributed", {"kernels", "core/base"}},
      {"core/route", {"kernels", "core/base"}},
      {"core/jinja", {"core/base"}},
      {"core/data", {"core/io", "core/jinja"}},
      {"core/model", {"core/route", "core/distributed", "core/io"}},
      {"core/upcycle", {"core/model"}},
      {"core/train/config", {"core/upcycle", "core/data"}},
      {"core/train/step", {"core/train/config"}},
      {"core/train/checkpoint", {"core/train/step"}},
      {"core/train/observe", {"core/train/checkpoint"}},
      {"core/train/loop", {"core/train/observe"}},
      {"core/train", {"core/train/loop"}},
      {"core/eval/formats", {"core/data"}},
      {"core/eval/scoring", {"core/eval/formats", "core/model", "core/data"}},
      {"core/eval/metrics", {"core/eval/scoring"}},
      {"core/eval/tasks", {"core/eval/metrics"}},
      {"core/eval/report", {"core/eval/tasks"}},
      {"core/eval", {"core/eval/report", "core/upcycle"}},
      {"core/bench", {"core/train", "core/eval"}},
      {"cli", {"core/train", "core/eval", "core/bench"}},
  };
  return arrows;
}

bool may_include(const std::string& from, const std::string& to) {
  if (from == to) {
    return true;
  }
  const auto below = arrows_down().find(from);
  return below != arrows_down().end() &&
         std::any_of(below->second.begin(), below->second.end(),
                     [&](const std::string& next) { return may_include(next, to); });
}

// "core/io/file.h" -> "core/io", "core/eval/tasks/task.h" -> "core/eval/tasks", which has an entry
// of its own, "core/base/page/page.h" -> "core/base", "kernels/ops/rope.cpp" -> "kernels",
// "cmake/pch.h" -> "cmake".
std::string folder_of(const std::string& path) {
  if (const std::string whole = path.substr(0, path.rfind('/')); arrows_down().contains(whole)) {
    return whole;
  }
  const size_t first = path.find('/');
  const bool in_core = path.compare(0, 5, "core/") == 0;
  return path.substr(0, in_core ? path.find('/', first + 1) : first);
}

struct Include {
  std::string path;
  bool quoted = false;  // "..." and not <...>
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex line(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">])re");
  std::vector<Include> found;
  for (std::sregex_iterator match(text.begin(), text.end(), line), end; match != end; ++match) {
    found.push_back({(*match)[2], (*match)[1] == "\""});
  }
  return found;
}

bool is_libtorch(const Include& include) {
  static const std::regex torch(R"((torch|ATen|c10)/.*)");
  return std::regex_match(include.path, torch);
}

bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() &&
         text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

Strings arrows_up(const Tree& tree) {
  Strings wrong;
  for (const auto& [path, text] : tree) {
    for (const auto& include : includes_of(text)) {
      if (include.quoted && !may_include(folder_of(path), folder_of(include.path))) {
        wrong.push_back(path + " includes " + include.path);
      }
    }
  }
  return wrong;
}

Strings libtorch_in_cuda_files(const Tree& tree) {
  Strings wrong;
  for (const auto& [path, text] : tree) {
    for (const auto& include : includes_of(text)) {
      if ((has_suffix(path, ".cu") || has_suffix(path, ".cuh")) && is_libtorch(include)) {
        wrong.push_back(path + " includes " + include.path);
      }
    }
  }
  return wrong;
}

// Readers of untrusted files: the fuzzers build them with another compiler, without LibTorch.
bool must_be_torch_free(const std::string& path) {
  static const std::regex parts(
      R"(core/(base|tokenizer|io|jinja|data)/.*|)"
      R"(core/route/(router(_[a-z]+)?\.(h|cpp)|routers/.*\.h|read_logits\..*)|)"
      R"(core/model/config/(compute|config|config_writer|weights)\..*|)"
      R"(core/eval/(formats/.*|tasks/prompt_template\..*)|)"
      R"(core/train/observe/(history|curves)\..*|core/train/checkpoint/run_folder\..*)");
  return std::regex_match(path, parts);
}

// A header and the sources of its name are one unit: "core/eval/runner".
std::string unit_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

// Finds include cycles among the units below `folder`, as "a -> b -> a".
class Circles {
 public:
  Circles(const Tree& tree, const std::string& folder) {
    for (const auto& [path, text] : tree) {
      for (const auto& include : includes_of(text)) {
        const bool is_inside = path.rfind(folder, 0) == 0 && include.path.rfind(folder, 0) == 0;
        if (is_inside && unit_of(path) != unit_of(include.path)) {
          includes_[unit_of(path)].insert(unit_of(include.path));
        }
      }
    }
  }

  Strings find() {
    for (const auto& entry : includes_) {
      follow(entry.first);
    }
    return circles_;
  }

 private:
  void follow(const std::string& unit) {
    const auto begin = std::find(way_.begin(), way_.end(), unit);
    if (begin != way_.end()) {
      std::string circle;
      for (auto step = begin; step != way_.end(); ++step) {
        circle += *step + " -> ";
      }
      circles_.push_back(circle + unit);
      return;
    }
    if (!done_.insert(unit).second) {
      return;
    }
    way_.push_back(unit);
    for (const auto& next : includes_[unit]) {
      follow(next);
    }
    way_.pop_back();
  }

  std::map<std::string, std::set<std::string>> includes_;
  std::set<std::string> done_;
  Strings way_, circles_;
};

// Returns the chain of headers by which `path` includes LibTorch, or an empty chain.
std::string way_to_libtorch(const Tree& tree, const std::string& path,
                            std::set<std::string>& seen) {
  const auto file = tree.find(path);
  if (file == tree.end() || !seen.insert(path).second) {
    return "";
  }
  for (const auto& include : includes_of(file->second)) {
    if (is_libtorch(include)) {
      return path + " -> " + include.path;
    }
    const std::string way = way_to_libtorch(tree, include.path, seen);
    if (!way.empty()) {
      return path + " -> " + way;
    }
  }
  return "";
}

Strings libtorch_where_it_may_not_be(const Tree& tree) {
  Strings wrong;
  for (const auto& entry : tree) {
    std::set<std::string> seen;
    const std::string way =
        must_be_torch_free(entry.first) ? way_to_libtorch(tree, entry.first, seen) : "";
    if (!way.empty()) {
      wrong.push_back(way);
    }
  }
  return wrong;
}

// Finds files that are opened or parsed without read_file.h, json.h or toml.h: a named pipe would
// hang, deep JSON or TOML would overflow the stack, and an exception of a library would reach the
// user. Files of /proc and /sys may be read by a stream.
Strings bare_readers_in(const Tree& tree) {
  static const std::regex stream(
      R"((std::)(basic_)?(ifstream|fstream|filebuf)\b|\bf(d|re)?open\()");
  static const std::regex parser(
      R"(\b(Ordered)?[Jj]son::(parse|sax_parse|accept)\(|\btoml::parse)");
  static const std::regex comment("//.*");
  static const std::set<std::string> of_system = {
      "core/base/resources.cpp", "core/distributed/launch.cpp", "core/distributed/rendezvous.cpp",
      "core/io/output_checks.cpp"};
  static const std::set<std::string> parsers = {"core/base/json.cpp", "core/base/toml.cpp"};
  Strings found;
  for (const auto& [path, text] : tree) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::string code = std::regex_replace(line, comment, "");
      std::smatch match;
      if ((!of_system.contains(path) && std::regex_search(code, match, stream)) ||
          (!parsers.contains(path) && std::regex_search(code, match, parser))) {
        found.push_back(path + " says " + match.str() + "; use core/base/read_file.h or json.h");
      }
    }
  }
  return found;
}

Tree our_tree() {
  const std::filesystem::path root = moe::test::source_folder();
  Tree tree;
  for (const char* top : {"cli", "core", "kernels"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / top)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && std::regex_match(name, std::regex(R"(.*\.(h|cpp|cu|cuh))"))) {
        tree[std::filesystem::relative(entry.path(), root).generic_string()] =
            moe::test::read_file(entry.path());
      }
    }
  }
  return tree;
}

// All sources, documents and recipes except this file.
Tree our_texts() {
  const std::filesystem::path root = moe::test::source_folder();
  static const std::regex text(R"(.*\.(h|cpp|cu|cuh|js|css|html|py|sh|md|toml|txt|cmake|json))");
  Tree tree;
  const auto add = [&](const std::filesystem::path& file) {
    const std::string path = std::filesystem::relative(file, root).generic_string();
    if (std::regex_match(path, text) && path != "tests/layout_test.cpp") {
      tree[path] = moe::test::read_file(file);
    }
  };
  for (const char* top : {"cli", "cmake", "core", "kernels", "recipes", "tests"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / top)) {
      if (entry.is_regular_file()) {
        add(entry.path());
      }
    }
  }
  for (const char* file : {"README.md", "CHANGELOG.md", "CMakeLists.txt"}) {
    if (std::filesystem::exists(root / file)) {
      add(root / file);
    }
  }
  return tree;
}

// Finds citations of documents that are not in the repository, and of decisions by a number.
Strings citations_from_outside(const Tree& tree) {
  static const std::regex cited(
      R"((^|[^A-Za-z0-9_])(SPEC|DESIGN|FACTS|STYLE|PERFORMANCE)([^A-Za-z0-9_]|$))"
      R"(|\(D[0-9]{1,2}[),;])");
  Strings wrong;
  for (const auto& [path, text] : tree) {
    std::istringstream lines(text);
    int number = 1;
    for (std::string line; std::getline(lines, line); ++number) {
      if (std::regex_search(line.substr(0, 400), cited)) {
        wrong.push_back(path + ":" + std::to_string(number));
      }
    }
  }
  return wrong;
}

// Finds citations `path/to/file.cpp:12` `name` in a text whose line 12 does not contain the name.
Strings lines_that_moved(const std::string& text, const Tree& tree) {
  static const std::regex cited(R"(`([a-z_/]+\.(?:cpp|cu|h)):([0-9]+)` `(\w+)`)");
  Strings wrong;
  for (auto found = std::sregex_iterator(text.begin(), text.end(), cited);
       found != std::sregex_iterator(); ++found) {
    const auto file = tree.find((*found)[1]);
    std::istringstream lines(file == tree.end() ? "" : file->second);
    std::string line;
    for (int number = std::stoi((*found)[2]); number > 0; --number) {
      line = std::getline(lines, line) ? line : "";
    }
    if (line.find((*found)[3]) == std::string::npos) {
      wrong.push_back(found->str());
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("An include of a higher folder is found, one of a lower folder is not", "[layout]") {
  CHECK(arrows_up({{"core/io/file.cpp", "#include \"core/model/llama/llama.h\"\n"}}) ==
        Strings{"core/io/file.cpp includes core/model/llama/llama.h"});
  CHECK(arrows_up({{"kernels/ops/rope.cpp", "// first\n  #  include \"core/route/plan.h\""}})
            .size() == 1);
  CHECK(arrows_up({{"core/train/a.cpp", "#include \"core/eval/b.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/train/step/a.cpp", "#include \"core/train/loop/b.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/route/a.cpp", "#include \"core/io/b.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/base/a.h", "#include \"cli/flags.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/io/a.cpp", "#include \"tests/support/data.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/eval/tasks/a.cpp", "#include \"core/eval/report/b.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/eval/report/a.cpp", "#include \"core/eval/runner.h\""}}).size() == 1);
  CHECK(arrows_up({{"core/eval/a.cpp", "#include \"core/eval/formats/b.h\""}}).empty());
  CHECK(arrows_up({{"core/nowhere/a.cpp", "#include \"core/base/error.h\""}}).size() == 1);
  CHECK(
      arrows_up(
          {{"cli/train.cpp", "#include \"kernels/ops/rope.h\"\n#include \"core/base/json.h\"\n"},
           {"core/model/llama/llama.cpp", "#include <ATen/ATen.h>\n#include \"core/io/file.h\"\n"}})
          .empty());
}

TEST_CASE("A cycle of includes is found", "[layout]") {
  const Tree tree = {{"core/eval/a.h", "#include \"core/eval/tasks/b.h\"\n"},
                     {"core/eval/tasks/b.cpp", "#include \"core/eval/c.h\"\n"},
                     {"core/eval/c.h", "#include \"core/eval/a.h\"\n"},
                     {"core/eval/d.cpp", "#include \"core/eval/d.h\"\n"}};
  CHECK(Circles(tree, "core/eval/").find() ==
        Strings{"core/eval/a -> core/eval/tasks/b -> core/eval/c -> core/eval/a"});
  CHECK(Circles(tree, "core/eval/tasks/").find() == Strings{});
}

TEST_CASE("LibTorch in a .cu file is found", "[layout]") {
  CHECK(libtorch_in_cuda_files({{"kernels/a.cu", "#include <torch/types.h>\n"},
                                {"kernels/b.cuh", "#include \"ATen/ATen.h\"\n"},
                                {"kernels/c.cpp", "#include <ATen/ATen.h>\n"}})
            .size() == 2);
}

TEST_CASE("LibTorch that reaches a reader through headers is found", "[layout]") {
  const Tree tree = {
      {"core/model/config/config.h", "#include \"core/route/plan.h\"\n"},
      {"core/route/plan.h", "#include <ATen/ATen.h>\n#include \"core/route/plan.h\"\n"},
      {"core/io/file.h", "#include <string>\n"}};
  CHECK(libtorch_where_it_may_not_be(tree) ==
        Strings{"core/model/config/config.h -> core/route/plan.h -> ATen/ATen.h"});
}

TEST_CASE("A citation of a document outside the repository is found", "[layout]") {
  CHECK(citations_from_outside({{"core/a.h", "// first\n// as SPEC section 3 says\n"},
                                {"core/b.md", "see DESIGN.md"},
                                {"recipes/c.toml", "seed = 1  # ours (D17)"},
                                {"core/d.h", "// A SPECIAL case, 0xD7, [T, D] (README.md)"}}) ==
        Strings{"core/a.h:2", "core/b.md:1", "recipes/c.toml:1"});
}

TEST_CASE("No file cites a document outside the repository", "[layout]") {
  const Tree texts = our_texts();
  CHECK(texts.count("core/route/README.md") == 1);
  CHECK(citations_from_outside(texts) == Strings{});
}

TEST_CASE("Printed text passes through terminal_text()", "[layout]") {
  // Redraws lines with its own escapes, and escapes the strings in them.
  const std::set<std::string> draw = {"cli/output.cpp"};
  Strings bare;
  for (const auto& [file, text] : our_tree()) {
    const bool is_checked = (file.starts_with("cli/") || file.starts_with("core/")) &&
                            file != "core/base/text.h" && draw.count(file) == 0;
    if (is_checked && (text.find("fmt::print(") != std::string::npos ||
                       text.find("std::cout") != std::string::npos ||
                       text.find("std::cerr") != std::string::npos)) {
      bare.push_back(file);
    }
  }
  CHECK(bare == Strings{});
}

TEST_CASE("Folders include only lower folders", "[layout]") {
  const Tree tree = our_tree();
  CHECK(tree.size() > 50);  // the tree was read
  CHECK(arrows_up(tree) == Strings{});
}

TEST_CASE("No folder has a cycle of includes", "[layout]") {
  for (const char* folder :
       {"core/base/", "core/tokenizer/", "core/io/", "core/data/", "core/eval/"}) {
    CHECK(Circles(our_tree(), folder).find() == Strings{});
  }
}

TEST_CASE("No .cu file includes LibTorch", "[layout]") {
  CHECK(libtorch_in_cuda_files(our_tree()) == Strings{});
}

TEST_CASE("Files that must build without LibTorch do not include it", "[layout]") {
  CHECK(libtorch_where_it_may_not_be(our_tree()) == Strings{});
}

TEST_CASE("Files are opened and parsed in one place", "[layout]") {
  for (const char* line :
       {"std::ifstream in(file);", "auto b = std::make_unique<std::filebuf>();", "fopen(name, r)",
        "const Json json = Json::parse(text);", "nlohmann::json::parse(text, nullptr, false)",
        "OrderedJson::parse(in)", "toml::parse_file(name)"}) {
    CAPTURE(line);
    CHECK(bare_readers_in({{"core/io/a.cpp", line}}).size() == 1);
  }
  CHECK(bare_readers_in({{"core/io/a.cpp", "// std::ifstream hangs\nparse_json(text, where);"},
                         {"core/base/resources.cpp", "std::ifstream in(file);"},
                         {"core/base/toml.cpp", "toml::parse(text)"}})
            .empty());
  CHECK(bare_readers_in(our_tree()) == Strings{});
}

TEST_CASE("The line numbers that core/README.md cites are right", "[layout]") {
  CHECK(lines_that_moved("`a.cpp:2` `run`, `a.cpp:1` `run`, `a.cpp:3` `run`, `b.cpp:1` `run`",
                         {{"a.cpp", "int x;\nint run() {\n"}}) ==
        Strings{"`a.cpp:1` `run`", "`a.cpp:3` `run`", "`b.cpp:1` `run`"});
  const std::string map = moe::test::read_file(moe::test::source_folder() / "core/README.md");
  CHECK(map.find("`cli/main.cpp:") != std::string::npos);
  CHECK(lines_that_moved(map, our_tree()) == Strings{});
}
