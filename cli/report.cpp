// moe report: the page of a run of moe train, also of one that still runs or was cut off.

#include "core/train/observe/report.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/eval/report/output_files.h"

namespace moe::cli {

namespace {

struct ReportFlags {
  std::filesystem::path run, out;
  bool force = false;
};

void run(const ReportFlags& flags) {
  namespace fs = std::filesystem;
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
      app.add_subcommand("report", "a run of moe train as a page: curves, load, samples, settings");
  command->option_defaults()->group(group::kOutput);
  command->add_option("RUN", flags->run, "the folder of a run, finished or not")->required();
  command->add_option("-o,--out", flags->out, "where the page goes (RUN/report.html)");
  add_force(*command, flags->force);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
