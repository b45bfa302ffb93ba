// No command changes files and folders that moe did not write: next to an output, inside it, behind
// links, or with names that moe uses.

#include <sys/stat.h>

#include <map>
#include <sstream>

#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

// Path -> type, mode, inode, time of change, and content or target of a link.
using Fingerprints = std::map<fs::path, std::string>;

std::string fingerprint(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return "is gone";
  }
  std::string text = fmt::format("mode {:o}, inode {}", status.st_mode, status.st_ino);
  if (S_ISREG(status.st_mode)) {
    text += fmt::format(", changed {}.{:09}, ", status.st_mtim.tv_sec, status.st_mtim.tv_nsec) +
            read_file(path);
  } else if (S_ISLNK(status.st_mode)) {
    text += ", to " + fs::read_symlink(path).string();
  }
  return text;
}

// Returns the fingerprints of `roots` and all files and folders below them.
Fingerprints fingerprints(const std::vector<fs::path>& roots) {
  Fingerprints found;
  for (const auto& root : roots) {
    found[root] = fingerprint(root);
    if (fs::is_directory(fs::symlink_status(root))) {
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        found[entry.path()] = fingerprint(entry.path());
      }
    }
  }
  return found;
}

// Writes `files` and returns their fingerprints.
Fingerprints write_bait(const std::map<fs::path, std::string>& files) {
  std::vector<fs::path> paths;
  for (const auto& [file, text] : files) {
    write_file(file, text);
    paths.push_back(file);
  }
  return fingerprints(paths);
}

void check_untouched(const Fingerprints& before) {
  for (const auto& [path, print] : before) {
    INFO(path.string());
    CHECK(fingerprint(path) == print);
  }
}

struct World : TrainingWorld {
  RunResult upcycle_to(const std::string& out, const Words& flags = {}) const {
    return run_moe(
        joined({"upcycle", path("dense"), "--experts", "2", "--quiet", "-o", path(out)}, flags));
  }
  Words short_training(const Words& flags = {}) const {
    return joined(training({"--steps", "2", "--quiet"}), flags);
  }
};

TEST_CASE("NAME.partial of the user is refused, and NAME.replaced is kept", "[cli]") {
  const World world;
  const Fingerprints bait = write_bait({{world.dir / "out.partial/thesis.txt", "years"},
                                        {world.dir / "out.partial/new/thesis.txt", "years"},
                                        {world.dir / "out.replaced/thesis.txt", "years"}});
  const std::string partial = world.path("out.partial");
  check_refused({"init", world.path("dense"), "-o", world.path("out"), "--quiet"}, partial);
  check_refused(world.upcycle_to("out", {"--force"}), partial);
  check_untouched(bait);
  fs::rename(partial, world.dir / "away");
  REQUIRE(world.upcycle_to("out").exit_code == 0);
  fs::rename(world.dir / "away", partial);
  const Fingerprints out = fingerprints({world.dir / "out"});
  check_refused(world.upcycle_to("out", {"--force"}), partial);
  check_untouched(bait);
  check_untouched(out);
}

TEST_CASE("--force refuses to remove an input, the working folder or the home folder", "[cli]") {
  const World world;
  REQUIRE(world.upcycle_to("out").exit_code == 0);
  succeed(world.short_training());
  const Fingerprints inputs =
      write_bait({{world.dir / "out/text.txt", "a text"},
                  {world.dir / "out/mine.json", read_file(world.dir / "dense/config.json")},
                  {world.dir / "run/metrics.jsonl", read_file(world.dir / "run/metrics.jsonl")}});
  const std::string inside = "lies inside it";
  check_refused({"init", world.path("out/mine.json"), "-o", world.path("out"), "--force"}, inside);
  check_refused(world.upcycle_to("out", {"--force", "--verify-text", world.path("out/text.txt")}),
                inside);
  const fs::path rows = world.dir / "run/final/rows.jsonl";
  write_file(rows, read_file(world.dir / "rows.jsonl"));
  for (const char* flag : {"--data", "--eval-data"}) {
    check_refused(world.short_training({"--force", flag, rows.string()}), inside);
  }
  fs::remove(rows);
  check_refused({"report", world.path("run"), "-o", world.path("run/metrics.jsonl"), "--force"},
                "is read by this command");
  fs::create_directory(world.dir / "run/below");
  for (const std::string& prefix :
       {"cd " + world.path("run/below") + " &&", "HOME=" + world.path("run")}) {
    check_refused(run_moe(world.short_training({"--force"}), prefix),
                  "the working or the home folder");
  }
  check_untouched(inputs);
  CHECK(fs::exists(world.dir / "out/model.safetensors"));
}

// Writes a file of the user under every name that a command gives to its files.
void write_names_of_moe(const fs::path& folder) {
  std::istringstream names(
      "config.json model.safetensors upcycle.json init.json checksums.json results.json "
      "samples_quiz.jsonl sweep.html sweep.json stats.json settings.toml inputs.json metrics.jsonl "
      "samples.jsonl starts.jsonl report.html trace.json page.html events.out.tfevents.1.2.moe "
      "final/config.json checkpoints/step-1/config.json checkpoints/step-2.partial/thesis "
      "texts/thesis.txt texts/quiz.jsonl moe/thesis.txt scores/dense/results.json "
      "cf=1/results.json cf=2/results.json page.html.new page.html.partial report.html.new "
      "settings.toml.new");
  for (std::string name; names >> name;) {
    write_file(folder / name, fmt::format("{{\"of another\": \"{}\"}}\n", name));
  }
  write_file(folder / "notes.json", R"({"title": "t", "program": "p", "sections": []})");
  write_file(folder / "notes.html", "<h1>mine</h1>\n");
  fs::permissions(folder / "results.json", fs::perms(0444));
  fs::permissions(folder / "report.html", fs::perms(0444));
  fs::permissions(folder / "texts", fs::perms(0555));
}

void copy_run(const World& world, const fs::path& out) {
  fs::copy(world.dir / "run", out, fs::copy_options::recursive);
}

const char* const kPlaces[] = {
    "a folder of the user",           "a folder of the user with an empty .moe-quickstart",
    "a link to a folder of the user", "a model of moe with a file added",
    "a run with files of the user",   "a run whose checkpoints are a link"};

// Makes `out` one of kPlaces and returns the paths that moe did not write.
std::vector<fs::path> make_place(const World& world, const std::string& place,
                                 const fs::path& out) {
  if (place.starts_with("a folder")) {
    write_names_of_moe(out);
    if (place.ends_with(".moe-quickstart")) {
      write_file(out / ".moe-quickstart", "");
    }
    return {out};
  }
  if (place.starts_with("a link")) {
    write_names_of_moe(world.dir / "theirs");
    fs::create_directory_symlink(world.dir / "theirs", out);
    return {world.dir / "theirs", out};
  }
  std::vector<fs::path> theirs;
  if (place.starts_with("a model")) {
    fs::copy(world.dir / "mix", out, fs::copy_options::recursive);
    write_file(out / "notes.txt", "years");
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().filename() != ".moe-output") {  // to which moe eval adds its files
        theirs.push_back(entry.path());
      }
    }
    return theirs;
  }
  copy_run(world, out);
  if (place.starts_with("a run with")) {
    for (const char* name : {"notes.txt", "checkpoints/step-1/notes.txt", "report.html",
                             "checkpoints/best/thesis", "events.out.tfevents.1.2.moe"}) {
      write_file(out / name, "years");
      theirs.push_back(out / name);
    }
    return theirs;
  }
  copy_run(world, world.dir / "other");
  fs::remove_all(out / "checkpoints");
  fs::create_symlink(world.dir / "other/checkpoints", out / "checkpoints");
  return {world.dir / "other", out / "checkpoints"};
}

// tests/slow/hostile.py tries every command in every place.
TEST_CASE("commands that replace a folder change nothing that moe did not write", "[cli]") {
  const World world;
  succeed({"upcycle", tiny("model"), "-o", world.path("mix"), "--experts", "2", "--quiet"});
  succeed(world.short_training({"--save-every", "1"}));
  write_file(world.dir / "quiz.jsonl",
             R"({"question": "Who?", "choices": ["a", "b"], "answer": "a"})"
             "\n");
  const fs::path out = world.dir / "out";
  const std::string path = out.string(), mix = world.path("mix"), quiz = world.path("quiz.jsonl");
  const Words train =
      world.training({"--quiet", "--save-every", "1", "--keep", "1"}, "dense", "out");
  const std::vector<Words> replacing = {
      {"upcycle", tiny("model"), "--experts", "2", "-o", path, "--force", "--quiet"},
      joined(train, {"--steps", "2"}),
      joined(train, {"--steps", "3", "--force"})};
  const std::vector<Words> others = {
      {"init", tiny("model"), "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--sweep", "cf=1,2", "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "--stats", path + "/stats.json", "--quiet"},
      {"report", path},
      {"report", path + "/notes.json"},
      {"report", world.path("run"), "-o", path + "/page.html"},
      {"bench", "upcycle", tiny("model"), "-o", path, "--repeats", "1"},
      {"inspect", path},
      {"tokenize", path, "x"},
      {"generate", path, "--prompt", "x", "--max-tokens", "1"},
      {"route", path}};
  for (const char* place : kPlaces) {
    for (const char* name : {"out", "other", "theirs"}) {
      if (fs::exists(world.dir / name / "texts")) {
        fs::permissions(world.dir / name / "texts", fs::perms(0755));
      }
      fs::remove_all(world.dir / name);
    }
    const Fingerprints before = fingerprints(make_place(world, place, out));
    const auto check = [&](const Words& words) {
      const RunResult result = run_moe(words);
      INFO(fmt::format("{}: moe {}: {}", place, fmt::join(words, " "), result.err));
      CHECK((result.exit_code == 0 || result.exit_code == 2));
      check_untouched(before);
    };
    std::for_each(replacing.begin(), replacing.end(), check);
    if (place == kPlaces[0]) {
      std::for_each(others.begin(), others.end(), check);
    }
    const RunResult quickstart = run_program(
        "bash", {source_folder() / "recipes/quickstart.sh", path, "--short"}, "MOE=/bin/false");
    INFO(place << ": quickstart: " << quickstart.err);
    CHECK(quickstart.exit_code == 2);
    check_untouched(before);
  }
}

TEST_CASE("an output that is a link is refused, and link and target are kept", "[cli]") {
  const World world;
  const Fingerprints theirs =
      write_bait({{world.dir / "real/thesis.txt", "years"}, {world.dir / "page", "years"}});
  fs::create_directory_symlink(world.dir / "real", world.dir / "out");
  check_refused(world.upcycle_to("out", {"--force"}), "is a link to " + world.path("real"));
  write_file(world.dir / "run/metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  fs::create_symlink(world.dir / "page", world.dir / "link.html");
  check_refused({"report", world.path("run"), "-o", world.path("link.html"), "--force"},
                "is a link to " + world.path("page"));
  CHECK(fs::is_symlink(world.dir / "out"));
  CHECK(fs::is_symlink(world.dir / "link.html"));
  check_untouched(theirs);
}

TEST_CASE("control characters in names are escaped in all output", "[cli]") {
  const World world;
  const std::string name = "model\x1b[2J\nmoe: all is well";
  const auto missing = run_moe({"inspect", world.path(name)});
  check_refused(missing, world.path("model\\x1b[2J\\nmoe: all is well"));
  CHECK(missing.err.find('\x1b') == std::string::npos);
  fs::rename(world.dir / "dense", world.dir / name);
  const auto found = succeed({"inspect", world.path(name)});
  CHECK(found.out.find('\x1b') == std::string::npos);
  CHECK(says(found.out, "model\\x1b[2J\\nmoe: all is well\n"));
  const auto trained = succeed(world.training({"--steps", "1"}, name));
  CHECK(trained.err.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace moe
