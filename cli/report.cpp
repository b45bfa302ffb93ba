// moe report: writes an HTML page about training runs, or one that a JSON file describes.

#include "core/train/observe/report.h"

#include <set>

#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/json.h"
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

void write_described_page(const ReportFlags& flags, const fs::path& file) {
  const fs::path out = flags.out.empty() ? fs::path(file).replace_extension(".html") : flags.out;
  const bool is_default_out = flags.out.empty();
  io::check_output({out}, flags.force || is_default_out, "-o", {file});
  if (is_default_out && !flags.force) {
    io::check_is_own_page(out);
  }
  const Json described = read_json(file, uint64_t{256} << 20);
  std::string page;
  try {
    page = make_page(OrderedJson(described));
  } catch (const Json::exception&) {  // a value is missing or of another type
    throw UserError(
        "{}: not the JSON of a page (an object with title and panels); give a run directory",
        file.string());
  }
  io::write_whole(out, page);
  print_text("{}\n", out.string());
}

train::History read_history(const fs::path& run) {
  train::History history = train::read_history(run);
  USER_ERROR_IF(history.curves().empty(), "{}: no step of the run is finished yet; try again later",
                run.string());
  return history;
}

// Throws UserError if -o exists and --force is not set, or if -o is an input of the page.
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
  USER_ERROR_IF(flags.out.empty(), "-o is required with several runs");
  check_out(flags);
  std::vector<train::ComparedRun> runs;
  std::set<fs::path> known;
  for (const auto& run : flags.runs) {
    USER_ERROR_IF(!known.insert(fs::weakly_canonical(run)).second,
                  "{}: given twice; name each run once", run.string());
    runs.push_back({run, read_history(run)});
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
  const fs::path out = flags.out.empty() ? run / "report.html" : flags.out;
  if (flags.out.empty()) {
    io::check_is_own_page(out);  // moe train also writes it
  } else {
    check_out(flags);
  }
  io::write_whole(out, train::report_page(run, read_history(run)));
  print_text("{}\n", out.string());
}

Options options(ReportFlags& flags) {
  Option out = output_path(&flags.out, "output file", /*is_required=*/false);
  out.fallback = "RUN/report.html, or PAGE.html for PAGE.json";
  return {positional("RUN", &flags.runs, group::kOutput,
                     "one run directory, several to compare, or a JSON file of a page"),
          out, force_option(flags.force)};
}

}  // namespace

void add_report(CLI::App& app) {
  add_config(add_command<const ReportFlags&>(
                 app, "report", "write an HTML page about training runs", run, options),
             "moe report run\nmoe report run-a run-b -o compared.html");
}

}  // namespace moe::cli
