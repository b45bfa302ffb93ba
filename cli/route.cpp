// moe route: what a router decides for given logits, as a table or as JSON.

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/route_table.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/text.h"
#include "core/route/read_logits.h"

namespace moe::cli {

namespace {

struct RouteFlags {
  std::vector<std::string> files;
  route::RouterRequest router;
  TableStyle style;
  bool json = false;
};

void run_file(const RouteFlags& flags, Json input, const std::string& where) {
  if (flags.router.router.empty()) {
    throw UserError("{}: logits need a router, such as --router top1+ir+fr", where);
  }
  if (flags.router.ep_ranks) {
    input["num_ranks"] = *flags.router.ep_ranks;
  }
  const auto problem = route::read_problem(input, route::requested_router(flags.router, {}), where);
  if (flags.json) {
    print_text("{}\n", json_text(route::route_to_json(problem)));
  } else {  // a table has colours, and holds numbers and words of ours only
    std::fputs(route_table(problem, flags.style).c_str(), stdout);
  }
}

void run(RouteFlags flags) {
  if (is_terminal(1)) {
    const char* no_color = std::getenv("NO_COLOR");
    flags.style.color = no_color == nullptr || *no_color == '\0';
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      flags.style.columns = size.ws_col;
    }
  }
  for (const auto& file : flags.files) {
    const std::string where = file == "-" ? "standard input" : file;
    run_file(flags, route::read_route_input(route::read_input_text(file), where), where);
  }
}

}  // namespace

void add_route(CLI::App& app) {
  auto flags = std::make_shared<RouteFlags>();
  CLI::App* command = app.add_subcommand("route", "what a router decides for given logits");
  add_options(
      *command,
      {{.name = "file",
        .member = &flags->files,
        .group = group::kData,
        .help = "logits: a JSON list of rows, or CSV, one token a line; - is standard input",
        .spelled = "FILE",
        .is_required = true}});
  add_router_flags(*command, flags->router);
  add_options(*command, {{.name = "tokens",
                          .member = &flags->style.max_tokens,
                          .group = group::kOutput,
                          .help = "tokens that a table draws",
                          .range = whole_between(1, 1 << 20)}});
  add_json(*command, flags->json);
  add_config(*command);
  command->footer(route::router_help() + "\n" + command->get_footer());
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
