// No command changes files and folders that moe did not write: next to an output, inside it, behind
// links, or with names that moe uses.

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <functional>
#include <map>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/training_rows.h"

namespace moe {
namespace {

using test::read_file;
using test::run_moe;
using test::RunResult;
using test::TempDir;
using test::write_file;
namespace fs = std::filesystem;

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

// A model, rows to train on, and the commands that write folders.
struct World {
  TempDir dir;

  World() {
    test::write_tiny_checkpoint(dir / "dense");
    test::write_training_rows(dir / "rows.jsonl");
  }
  std::string path(const std::string& name) const { return (dir / name).string(); }

  RunResult upcycle(const std::vector<std::string>& flags) const {
    std::vector<std::string> words = {"upcycle", path("dense"), "--experts", "2", "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words);
  }
  RunResult train(const std::vector<std::string>& flags, const std::string& prefix = "") const {
    std::vector<std::string> words = {"train",   path("dense"), "--data",    path("rows.jsonl"),
                                      "--steps", "2",           "--threads", "1",
                                      "--quiet"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_moe(words, prefix);
  }
};

void check_refused(const RunResult& result, const std::string& part) {
  CHECK(result.exit_code == 2);
  CHECK_THAT(result.err, test::contains_text(part));
}

TEST_CASE("NAME.partial and NAME.replaced of the user are kept, and the former is refused",
          "[cli]") {
  const World world;
  const Fingerprints bait = write_bait({{world.dir / "out.partial/thesis.txt", "years"},
                                        {world.dir / "out.partial/new/thesis.txt", "years"},
                                        {world.dir / "out.replaced/thesis.txt", "years"}});
  const std::string partial = world.path("out.partial");
  check_refused(run_moe({"init", world.path("dense"), "-o", world.path("out"), "--quiet"}),
                partial);
  for (const bool has_output : {false, true}) {
    if (has_output) {
      fs::rename(partial, world.dir / "away");
      REQUIRE(world.upcycle({"-o", world.path("out")}).exit_code == 0);
      fs::rename(world.dir / "away", partial);
    }
    const Fingerprints out = fingerprints({world.dir / "out"});
    check_refused(world.upcycle({"-o", world.path("out")}), partial);
    check_refused(world.upcycle({"-o", world.path("out"), "--force"}), partial);
    check_untouched(bait);
    check_untouched(out);
  }
}

TEST_CASE("--force removes no input of the command, no working folder and no home folder",
          "[cli]") {
  const World world;
  REQUIRE(world.upcycle({"-o", world.path("out")}).exit_code == 0);
  REQUIRE(world.train({"-o", world.path("run")}).exit_code == 0);
  const Fingerprints inputs =
      write_bait({{world.dir / "out/text.txt", "a text"},
                  {world.dir / "out/mine.json", read_file(world.dir / "dense/config.json")},
                  {world.dir / "run/metrics.jsonl", read_file(world.dir / "run/metrics.jsonl")}});
  const std::string inside = "lies inside it";
  check_refused(run_moe({"init", world.path("out/mine.json"), "-o", world.path("out"), "--force"}),
                inside);
  check_refused(world.upcycle({"-o", world.path("out"), "--force", "--verify-text",
                               world.path("out/text.txt")}),
                inside);
  const fs::path rows = world.dir / "run/final/rows.jsonl";
  write_file(rows, read_file(world.dir / "rows.jsonl"));
  for (const char* flag : {"--data", "--eval-data"}) {
    check_refused(world.train({"-o", world.path("run"), "--force", flag, rows.string()}), inside);
  }
  fs::remove(rows);
  check_refused(
      run_moe({"report", world.path("run"), "-o", world.path("run/metrics.jsonl"), "--force"}),
      "is read by this command");
  const std::string ours = "the working or the home folder";
  fs::create_directory(world.dir / "run/below");
  check_refused(
      world.train({"-o", world.path("run"), "--force"}, "cd " + world.path("run/below") + " &&"),
      ours);
  check_refused(world.train({"-o", world.path("run"), "--force"}, "HOME=" + world.path("run")),
                ours);
  check_untouched(inputs);
  CHECK(fs::exists(world.dir / "out/model.safetensors"));
}

// An existing output. `make` creates it and returns the paths that moe did not write.
struct Place {
  const char* name;
  std::function<std::vector<fs::path>(const World&, const fs::path& out)> make;
};

// Writes a file of the user under every name that a command gives to its files.
void write_names_of_moe(const fs::path& folder) {
  for (const char* name : {"config.json",
                           "model.safetensors",
                           "upcycle.json",
                           "init.json",
                           "checksums.json",
                           "results.json",
                           "samples_quiz.jsonl",
                           "sweep.html",
                           "sweep.json",
                           "stats.json",
                           "settings.toml",
                           "inputs.json",
                           "metrics.jsonl",
                           "samples.jsonl",
                           "starts.jsonl",
                           "report.html",
                           "trace.json",
                           "page.html",
                           "events.out.tfevents.1.2.moe",
                           "final/config.json",
                           "checkpoints/step-1/config.json",
                           "checkpoints/step-2.partial/thesis",
                           "texts/thesis.txt",
                           "texts/quiz.jsonl",
                           "moe/thesis.txt",
                           "scores/dense/results.json",
                           "cf=1/results.json",
                           "cf=2/results.json",
                           "page.html.new",
                           "page.html.partial",
                           "report.html.new",
                           "settings.toml.new"}) {
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

// A copy of a run in which `name` is a link to the `name` of another run.
std::vector<fs::path> link_to_other(const World& world, const fs::path& out,
                                    const std::string& name) {
  copy_run(world, out);
  copy_run(world, world.dir / "other");
  fs::remove_all(out / name);
  fs::create_symlink(world.dir / "other" / name, out / name);
  return {world.dir / "other", out / name};
}

const std::vector<Place>& places() {
  static const std::vector<Place> all = {
      {"a folder of the user",
       [](const World&, const fs::path& out) {
         write_names_of_moe(out);
         return std::vector<fs::path>{out};
       }},
      {"a folder of the user with an empty .moe-quickstart",
       [](const World&, const fs::path& out) {
         write_names_of_moe(out);
         write_file(out / ".moe-quickstart", "");
         return std::vector<fs::path>{out};
       }},
      {"a link to a folder of the user",
       [](const World& world, const fs::path& out) {
         write_names_of_moe(world.dir / "theirs");
         fs::create_directory_symlink(world.dir / "theirs", out);
         return std::vector<fs::path>{world.dir / "theirs", out};
       }},
      {"a model of moe with a file added",
       [](const World& world, const fs::path& out) {
         fs::copy(world.dir / "mix", out, fs::copy_options::recursive);
         write_file(out / "notes.txt", "years");
         std::vector<fs::path> files;  // without .moe-output, to which moe eval adds its files
         for (const auto& entry : fs::directory_iterator(out)) {
           if (entry.path().filename() != ".moe-output") {
             files.push_back(entry.path());
           }
         }
         return files;
       }},
      {"a run whose checkpoints are a link to those of another run",
       [](const World& world, const fs::path& out) {
         return link_to_other(world, out, "checkpoints");
       }},
      {"a run with a checkpoint that is a link",
       [](const World& world, const fs::path& out) {
         return link_to_other(world, out, "checkpoints/step-1");
       }},
      {"a run whose final folder is a link",
       [](const World& world, const fs::path& out) { return link_to_other(world, out, "final"); }},
      {"a run with files of the user", [](const World& world, const fs::path& out) {
         copy_run(world, out);
         const std::vector<fs::path> theirs = {
             out / "notes.txt", out / "checkpoints/step-1/notes.txt", out / "report.html",
             out / "checkpoints/best/thesis", out / "events.out.tfevents.1.2.moe"};
         for (const auto& file : theirs) {
           write_file(file, "years");
         }
         return theirs;
       }}};
  return all;
}

TEST_CASE("no command changes what moe did not write in any existing output", "[cli]") {
  const World world;
  const std::string tiny = (test::source_folder() / "recipes/tiny/model").string();
  REQUIRE(
      run_moe({"upcycle", tiny, "-o", world.path("mix"), "--experts", "2", "--quiet"}).exit_code ==
      0);
  REQUIRE(world.train({"-o", world.path("run"), "--save-every", "1"}).exit_code == 0);
  write_file(world.dir / "quiz.jsonl",
             R"({"question": "Who?", "choices": ["a", "b"], "answer": "a"})"
             "\n");
  const Place& place = places()[GENERATE(range(size_t{0}, size_t{8}))];
  const fs::path out = world.dir / "out";
  const Fingerprints before = fingerprints(place.make(world, out));
  const std::string path = out.string(), mix = world.path("mix"), quiz = world.path("quiz.jsonl");
  const std::vector<std::string> train = {"train",     world.path("dense"),
                                          "--data",    world.path("rows.jsonl"),
                                          "--threads", "1",
                                          "--quiet",   "--save-every",
                                          "1",         "--keep",
                                          "1",         "-o",
                                          path};
  auto resume = train, start_over = train;
  resume.insert(resume.end(), {"--steps", "2"});
  start_over.insert(start_over.end(), {"--steps", "3", "--force"});
  const std::vector<std::vector<std::string>> commands = {
      {"upcycle", tiny, "--experts", "2", "-o", path, "--force", "--quiet"},
      {"init", tiny, "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--sweep", "cf=1,2", "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "--stats", path + "/stats.json", "--quiet"},
      {"report", path},
      {"report", path + "/notes.json"},
      {"report", world.path("run"), "-o", path + "/page.html"},
      {"bench", "upcycle", tiny, "-o", path, "--repeats", "1"},
      {"inspect", path},
      {"tokenize", path, "x"},
      {"generate", path, "--prompt", "x", "--max-tokens", "1"},
      {"route", path},
      resume,
      start_over};
  for (const auto& words : commands) {
    const RunResult result = run_moe(words);
    INFO(place.name << ": moe " << fmt::format("{}", fmt::join(words, " ")) << ": " << result.err);
    CHECK((result.exit_code == 0 || result.exit_code == 2));
    check_untouched(before);
  }
  const RunResult quickstart = test::run_program(
      "bash", {(test::source_folder() / "recipes/quickstart.sh").string(), path, "--short"},
      "MOE=/bin/false");
  INFO(place.name << ": quickstart: " << quickstart.err);
  CHECK(quickstart.exit_code == 2);
  check_untouched(before);
}

TEST_CASE("an output that is a link is refused, and link and target are kept", "[cli]") {
  const World world;
  const Fingerprints theirs =
      write_bait({{world.dir / "real/thesis.txt", "years"}, {world.dir / "page", "years"}});
  fs::create_directory_symlink(world.dir / "real", world.dir / "out");
  check_refused(world.upcycle({"-o", world.path("out"), "--force"}),
                "is a link to " + world.path("real"));
  REQUIRE(world.train({"-o", world.path("run")}).exit_code == 0);
  fs::create_symlink(world.dir / "page", world.dir / "link.html");
  check_refused(run_moe({"report", world.path("run"), "-o", world.path("link.html"), "--force"}),
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
  const auto found = run_moe({"inspect", world.path(name)});
  INFO(found.err);
  CHECK(found.exit_code == 0);
  CHECK(found.out.find('\x1b') == std::string::npos);
  CHECK(found.out.find("model\\x1b[2J\\nmoe: all is well\n") != std::string::npos);
  const auto trained = run_moe({"train", world.path(name), "--data", world.path("rows.jsonl"),
                                "--steps", "1", "-o", world.path("run"), "--threads", "1"});
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(trained.err.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace moe
