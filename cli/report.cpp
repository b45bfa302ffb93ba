// moe report: the page of a run of moe train, also of one that still runs or was cut off, or of
// numbers of any kind that a JSON file describes.

#include "core/train/observe/report.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/page/page.h"
#include "core/base/text.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::cli {

namespace {

struct ReportFlags {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path out;
  bool force = false;
};

namespace fs = std::filesystem;

// The page that a JSON file describes (core/base/page/page.h).
void write_described_page(const ReportFlags& flags, const fs::path& file) {
  const fs::path out = flags.out.empty() ? fs::path(file).replace_extension(".html") : flags.out;
  const bool is_named_by_file = flags.out.empty();
  io::check_output({out}, flags.force || is_named_by_file, "-o", {file});
  if (is_named_by_file && !flags.force) {
    io::check_is_own_page(out);
  }
  const Json described = read_json(file, uint64_t{256} << 20);
  std::string page;
  try {
    page = make_page(OrderedJson(described));
  } catch (const Json::exception&) {  // a value is missing or of another type
    throw UserError(
        "{}: is not a page as JSON, an object with a title and panels; give the folder of a run",
        file.string());
  }
  io::write_whole(out, page);
  print_text("{}\n", out.string());
}

train::History history_of(const fs::path& run) {
  train::History history = train::read_history(run);
  if (history.curves().empty()) {
    throw UserError("{}: the run has finished no step yet; there is nothing to show", run.string());
  }
  return history;
}

// What a page of these runs is made of, and so never its file.
void check_out(const ReportFlags& flags) {
  std::vector<fs::path> inputs;
  for (const auto& run : flags.runs) {
    for (const char* name : {"metrics.jsonl", "samples.jsonl", "starts.jsonl", "settings.toml"}) {
      inputs.push_back(run / name);
    }
  }
  io::check_output({flags.out}, flags.force, "-o", inputs);
}

void write_comparison(const ReportFlags& flags) {
  if (flags.out.empty()) {
    throw UserError("-o is required with several runs: their page belongs to none of them");
  }
  check_out(flags);
  std::vector<train::ComparedRun> runs;
  std::set<fs::path> known;
  for (const auto& run : flags.runs) {
    if (!known.insert(fs::weakly_canonical(run)).second) {
      throw UserError("{}: is given twice; give each run once", run.string());
    }
    runs.push_back({run, history_of(run)});
  }
  io::write_whole(flags.out, train::comparison_page(runs));
  print_text("{}\n", flags.out.string());
}

void run(const ReportFlags& flags) {
  if (flags.runs.size() > 1) {
    return write_comparison(flags);
  }
  const fs::path& run = flags.runs.front();
  if (fs::is_regular_file(run)) {
    return write_described_page(flags, run);
  }
  const bool is_own = flags.out.empty();  // RUN/report.html, which moe train writes anyway
  if (is_own) {
    io::check_is_own_page(run / "report.html");
  } else {
    check_out(flags);
  }
  const fs::path out = is_own ? run / "report.html" : flags.out;
  train::write_report(run, history_of(run), out);
  print_text("{}\n", out.string());
}

}  // namespace

void add_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command =
      app.add_subcommand("report",
                         "runs of moe train as a page: curves, load, samples, settings; or any "
                         "numbers that a JSON file describes");
  add_options(*command, {{.name = "run",
                          .member = &flags->runs,
                          .group = group::kOutput,
                          .help = "the folder of a run, finished or not; several: their curves "
                                  "over each other; or a page as JSON",
                          .spelled = "RUN",
                          .is_required = true},
                         {.name = "out",
                          .member = &flags->out,
                          .group = group::kOutput,
                          .help = "where the page goes",
                          .fallback = "of one run RUN/report.html, of a page PAGE.html",
                          .spelled = "-o,--out"}});
  add_force(*command, flags->force);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
