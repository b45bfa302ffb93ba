// Commands do not change files and folders of the user: next to an output, in an output folder,
// behind symbolic links, or with names that moe uses.

#include <sys/stat.h>

#include <map>
#include <sstream>

#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;

// Path -> mode, inode, modification time, and content of a file or target of a link.
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

// Writes `files` (path -> text) and returns their fingerprints.
Fingerprints write_user_files(const std::map<fs::path, std::string>& files) {
  std::vector<fs::path> paths;
  for (const auto& [file, text] : files) {
    write_file(file, text);
    paths.push_back(file);
  }
  return fingerprints(paths);
}

void check_unchanged(const Fingerprints& before) {
  for (const auto& [path, print] : before) {
    INFO(path.string());
    CHECK(fingerprint(path) == print);
  }
}

struct Fixture : TrainingFixture {
  RunResult upcycle_to(const std::string& out, const Args& flags = {}) const {
    return run_moe(
        joined({"upcycle", path("dense"), "--experts", "2", "--quiet", "-o", path(out)}, flags));
  }
  Args short_training(const Args& flags = {}) const {
    return joined(training({"--steps", "2", "--quiet"}), flags);
  }
};

TEST_CASE("a command fails if OUT.partial is a user's folder, and keeps OUT.replaced", "[cli]") {
  const Fixture fixture;
  const Fingerprints user_files =
      write_user_files({{fixture.dir / "out.partial/thesis.txt", "years"},
                        {fixture.dir / "out.partial/new/thesis.txt", "years"},
                        {fixture.dir / "out.replaced/thesis.txt", "years"}});
  const std::string partial = fixture.path("out.partial");
  check_refused({"init", fixture.path("dense"), "-o", fixture.path("out"), "--quiet"}, partial);
  check_refused(fixture.upcycle_to("out", {"--force"}), partial);
  check_unchanged(user_files);
  fs::rename(partial, fixture.dir / "away");
  REQUIRE(fixture.upcycle_to("out").exit_code == 0);
  fs::rename(fixture.dir / "away", partial);
  const Fingerprints out = fingerprints({fixture.dir / "out"});
  check_refused(fixture.upcycle_to("out", {"--force"}), partial);
  check_unchanged(user_files);
  check_unchanged(out);
}

TEST_CASE("--force refuses to remove an input, the working folder or the home folder", "[cli]") {
  const Fixture fixture;
  REQUIRE(fixture.upcycle_to("out").exit_code == 0);
  succeed(fixture.short_training());
  const Fingerprints inputs = write_user_files(
      {{fixture.dir / "out/text.txt", "a text"},
       {fixture.dir / "out/mine.json", read_file(fixture.dir / "dense/config.json")},
       {fixture.dir / "run/metrics.jsonl", read_file(fixture.dir / "run/metrics.jsonl")}});
  const std::string inside = "lies inside it";
  check_refused({"init", fixture.path("out/mine.json"), "-o", fixture.path("out"), "--force"},
                inside);
  check_refused(
      fixture.upcycle_to("out", {"--force", "--verify-text", fixture.path("out/text.txt")}),
      inside);
  const fs::path rows = fixture.dir / "run/final/rows.jsonl";
  write_file(rows, read_file(fixture.dir / "rows.jsonl"));
  for (const char* flag : {"--data", "--eval-data"}) {
    check_refused(fixture.short_training({"--force", flag, rows.string()}), inside);
  }
  fs::remove(rows);
  check_refused({"report", fixture.path("run"), "-o", fixture.path("run/metrics.jsonl"), "--force"},
                "is read by this command");
  fs::create_directory(fixture.dir / "run/below");
  for (const std::string& prefix :
       {"cd " + fixture.path("run/below") + " &&", "HOME=" + fixture.path("run")}) {
    check_refused(run_moe(fixture.short_training({"--force"}), prefix),
                  "the working or the home folder");
  }
  check_unchanged(inputs);
  CHECK(fs::exists(fixture.dir / "out/model.safetensors"));
}

// Writes user files with all names that commands use for their output.
void write_files_named_as_by_moe(const fs::path& folder) {
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

void copy_run(const Fixture& fixture, const fs::path& out) {
  fs::copy(fixture.dir / "run", out, fs::copy_options::recursive);
}

const char* const kOutputFolders[] = {
    "a folder of the user",           "a folder of the user with an empty .moe-quickstart",
    "a link to a folder of the user", "a model of moe with a file added",
    "a run with files of the user",   "a run whose checkpoints are a link"};

// Creates the folder `out` as described by `place`, one of kOutputFolders. Returns the user's
// paths.
std::vector<fs::path> make_output_folder(const Fixture& fixture, const std::string& place,
                                         const fs::path& out) {
  if (place.starts_with("a folder")) {
    write_files_named_as_by_moe(out);
    if (place.ends_with(".moe-quickstart")) {
      write_file(out / ".moe-quickstart", "");
    }
    return {out};
  }
  if (place.starts_with("a link")) {
    write_files_named_as_by_moe(fixture.dir / "theirs");
    fs::create_directory_symlink(fixture.dir / "theirs", out);
    return {fixture.dir / "theirs", out};
  }
  std::vector<fs::path> user_paths;
  if (place.starts_with("a model")) {
    fs::copy(fixture.dir / "mix", out, fs::copy_options::recursive);
    write_file(out / "notes.txt", "years");
    for (const auto& entry : fs::directory_iterator(out)) {
      if (entry.path().filename() != ".moe-output") {  // moe eval adds its files to this list
        user_paths.push_back(entry.path());
      }
    }
    return user_paths;
  }
  copy_run(fixture, out);
  if (place.starts_with("a run with")) {
    for (const char* name : {"notes.txt", "checkpoints/step-1/notes.txt", "report.html",
                             "checkpoints/best/thesis", "events.out.tfevents.1.2.moe"}) {
      write_file(out / name, "years");
      user_paths.push_back(out / name);
    }
    return user_paths;
  }
  copy_run(fixture, fixture.dir / "other");
  fs::remove_all(out / "checkpoints");
  fs::create_symlink(fixture.dir / "other/checkpoints", out / "checkpoints");
  return {fixture.dir / "other", out / "checkpoints"};
}

// tests/slow/hostile.py tries every command with every folder.
TEST_CASE("commands do not change user files in their output folder", "[cli]") {
  const Fixture fixture;
  succeed({"upcycle", tiny("model"), "-o", fixture.path("mix"), "--experts", "2", "--quiet"});
  succeed(fixture.short_training({"--save-every", "1"}));
  write_file(fixture.dir / "quiz.jsonl",
             R"({"question": "Who?", "choices": ["a", "b"], "answer": "a"})"
             "\n");
  const fs::path out = fixture.dir / "out";
  const std::string path = out.string(), mix = fixture.path("mix"),
                    quiz = fixture.path("quiz.jsonl");
  const Args train =
      fixture.training({"--quiet", "--save-every", "1", "--keep", "1"}, "dense", "out");
  const std::vector<Args> replacing = {
      {"upcycle", tiny("model"), "--experts", "2", "-o", path, "--force", "--quiet"},
      joined(train, {"--steps", "2"}),
      joined(train, {"--steps", "3", "--force"})};
  const std::vector<Args> others = {
      {"init", tiny("model"), "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "-o", path, "--sweep", "cf=1,2", "--force", "--quiet"},
      {"eval", mix, "--tasks", quiz, "--stats", path + "/stats.json", "--quiet"},
      {"report", path},
      {"report", path + "/notes.json"},
      {"report", fixture.path("run"), "-o", path + "/page.html"},
      {"bench", "upcycle", tiny("model"), "-o", path, "--repeats", "1"},
      {"inspect", path},
      {"tokenize", path, "x"},
      {"generate", path, "--prompt", "x", "--max-tokens", "1"},
      {"route", path}};
  for (const char* place : kOutputFolders) {
    for (const char* name : {"out", "other", "theirs"}) {
      if (fs::exists(fixture.dir / name / "texts")) {
        fs::permissions(fixture.dir / name / "texts", fs::perms(0755));
      }
      fs::remove_all(fixture.dir / name);
    }
    const Fingerprints before = fingerprints(make_output_folder(fixture, place, out));
    const auto check = [&](const Args& args) {
      const RunResult result = run_moe(args);
      INFO(fmt::format("{}: moe {}: {}", place, fmt::join(args, " "), result.err));
      CHECK((result.exit_code == 0 || result.exit_code == 2));
      check_unchanged(before);
    };
    std::for_each(replacing.begin(), replacing.end(), check);
    if (place == kOutputFolders[0]) {
      std::for_each(others.begin(), others.end(), check);
    }
    const RunResult quickstart = run_program(
        "bash", {source_folder() / "recipes/quickstart.sh", path, "--short"}, "MOE=/bin/false");
    INFO(place << ": quickstart: " << quickstart.err);
    CHECK(quickstart.exit_code == 2);
    check_unchanged(before);
  }
}

TEST_CASE("an output that is a symbolic link is refused, and link and target are kept", "[cli]") {
  const Fixture fixture;
  const Fingerprints user_paths = write_user_files(
      {{fixture.dir / "real/thesis.txt", "years"}, {fixture.dir / "page", "years"}});
  fs::create_directory_symlink(fixture.dir / "real", fixture.dir / "out");
  check_refused(fixture.upcycle_to("out", {"--force"}), "is a link to " + fixture.path("real"));
  write_file(fixture.dir / "run/metrics.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  fs::create_symlink(fixture.dir / "page", fixture.dir / "link.html");
  check_refused({"report", fixture.path("run"), "-o", fixture.path("link.html"), "--force"},
                "is a link to " + fixture.path("page"));
  CHECK(fs::is_symlink(fixture.dir / "out"));
  CHECK(fs::is_symlink(fixture.dir / "link.html"));
  check_unchanged(user_paths);
}

TEST_CASE("control characters in names are escaped in all output", "[cli]") {
  const Fixture fixture;
  const std::string name = "model\x1b[2J\nmoe: all is well";
  const auto missing = run_moe({"inspect", fixture.path(name)});
  check_refused(missing, fixture.path("model\\x1b[2J\\nmoe: all is well"));
  CHECK(missing.err.find('\x1b') == std::string::npos);
  fs::rename(fixture.dir / "dense", fixture.dir / name);
  const auto found = succeed({"inspect", fixture.path(name)});
  CHECK(found.out.find('\x1b') == std::string::npos);
  CHECK(says(found.out, "model\\x1b[2J\\nmoe: all is well\n"));
  const auto trained = succeed(fixture.training({"--steps", "1"}, name));
  CHECK(trained.err.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace moe
