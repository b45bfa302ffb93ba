// moe report: the page of a run of moe train, also of one that still runs or was cut off, or of
// numbers of any kind that a JSON file describes.

#include "core/train/observe/report.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/page/page.h"
#include "core/eval/report/output_files.h"
#include "core/io/file.h"

namespace moe::cli {

namespace {

struct ReportFlags {
  std::filesystem::path run, out;
  bool force = false;
};

namespace fs = std::filesystem;

// The page that a JSON file describes (core/base/page/page.h).
void write_described_page(const ReportFlags& flags) {
  const fs::path out =
      flags.out.empty() ? fs::path(flags.run).replace_extension(".html") : flags.out;
  eval::check_output({out}, flags.force || flags.out.empty(), "-o", {flags.run});
  const Json described = read_json(flags.run, uint64_t{256} << 20);
  std::string page;
  try {
    page = make_page(OrderedJson(described));
  } catch (const Json::exception& error) {
    throw UserError(
        "{}: describes no page ({}); give the folder of a run, or a page as core/base/page/page.h "
        "says",
        flags.run.string(), error.what());
  }
  io::write_file(out, page);
  fmt::print("{}\n", out.string());
}

void run(const ReportFlags& flags) {
  if (fs::is_regular_file(flags.run)) {
    return write_described_page(flags);
  }
  const bool is_own = flags.out.empty();  // RUN/report.html, which moe train writes anyway
  const fs::path out = is_own ? flags.run / "report.html" : flags.out;
  if (!is_own) {
    std::vector<fs::path> inputs;
    for (const char* name : {"metrics.jsonl", "samples.jsonl", "starts.jsonl", "settings.toml"}) {
      inputs.push_back(flags.run / name);
    }
    eval::check_output({out}, flags.force, "-o", inputs);
  }
  const auto history = train::read_history(flags.run);
  if (history.curves().empty()) {
    throw UserError("{}: the run has finished no step yet; there is nothing to show",
                    flags.run.string());
  }
  train::write_report(flags.run, history, out);
  fmt::print("{}\n", out.string());
}

}  // namespace

void add_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command =
      app.add_subcommand("report",
                         "a run of moe train as a page: curves, load, samples, settings; or any "
                         "numbers that a JSON file describes");
  add_options(*command, {{.name = "run",
                          .member = &flags->run,
                          .group = group::kOutput,
                          .help = "the folder of a run, finished or not; or a page as JSON "
                                  "(core/base/page/page.h)",
                          .spelled = "RUN",
                          .is_required = true},
                         {.name = "out",
                          .member = &flags->out,
                          .group = group::kOutput,
                          .help = "where the page goes",
                          .fallback = "RUN/report.html, PAGE.html",
                          .spelled = "-o,--out"}});
  add_force(*command, flags->force);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
