// moe route: what a router decides, for one's own logits as a table, for cases as their answers.

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
#include "core/base/terminal_text.h"
#include "core/model/moe/layer_case.h"
#include "core/route/read_logits.h"

namespace moe::cli {

namespace {

struct RouteFlags {
  std::vector<std::string> files;
  route::RouterRequest router;
  TableStyle style;
  bool table = false, json = false;
};

// Plain logits under the router of the flags.
route::RoutingCase plain_case(const RouteFlags& flags, Json input, const std::string& where) {
  if (flags.router.router.empty()) {
    throw UserError("{}: plain logits need a router, such as --router top1+ir+fr", where);
  }
  route::RoutingCase routing_case;
  routing_case.router = route::requested_router(flags.router, {});
  routing_case.logits = route::read_matrix(input, "logits", where);
  route::check_router(routing_case.router, routing_case.logits.size(1));
  if (flags.router.ep_ranks) {
    input["num_ranks"] = *flags.router.ep_ranks;
  }
  routing_case.group =
      route::read_group(input, routing_case.logits.size(0), routing_case.logits.size(1), where);
  return routing_case;
}

const Json& input_of(const Json& routing_case, const std::string& where) {
  if (!routing_case.contains("input") || !routing_case["input"].is_object()) {
    throw UserError("{}: a case needs an object 'input' beside its kind", where);
  }
  return routing_case["input"];
}

OrderedJson answer_case(const std::string& kind, const Json& input, const std::string& where) {
  if (kind == "layer") {
    return model::answer_layer_case(input, where);
  }
  if (route::is_rule_case(kind)) {
    return route::answer_rule_case(kind, input, where);
  }
  return route::answer(route::read_routing_case(kind, input, where));
}

void check_kind(const std::string& kind, bool table, const std::string& where) {
  if (kind != "layer" && !route::is_routing_case(kind) && !route::is_rule_case(kind)) {
    throw UserError("{}: unknown kind '{}'; known: {}", where, kind, route::case_kinds());
  }
  if (table && route::is_rule_case(kind)) {
    throw UserError("{}: a case of kind {} routes no tokens, there is no table to draw", where,
                    kind);
  }
}

// Prints a table as it is: it has colours, and holds numbers and words of ours only.
void print_table(const std::string& table) { std::fputs(table.c_str(), stdout); }

void run_case(const RouteFlags& flags, const Json& routing_case, const std::string& where) {
  if (flags.router.any()) {
    throw UserError(
        "{}: a case says its own router; --router, --cf and --ep-ranks are for plain logits",
        where);
  }
  const std::string kind = get_string(routing_case, "kind", where);
  check_kind(kind, flags.table, where);
  const Json& input = input_of(routing_case, where);
  const std::string inside = where + ": input";
  if (flags.table) {
    print_table(route_table(kind == "layer" ? model::read_layer_routing(input, inside)
                                            : route::read_routing_case(kind, input, inside),
                            flags.style));
    return;
  }
  OrderedJson out = OrderedJson::object();
  for (const char* key : {"name", "kind", "note", "input"}) {
    if (routing_case.contains(key)) {
      out[key] = routing_case[key];
    }
  }
  out.update(answer_case(kind, input, inside));
  print_text("{}\n", json_text(out));
}

void run_plain(const RouteFlags& flags, Json input, const std::string& where) {
  const route::RoutingCase routing_case = plain_case(flags, std::move(input), where);
  if (flags.json) {
    OrderedJson out = route::input_json(routing_case);
    out.update(route::answer(routing_case));
    print_text("{}\n", json_text(out));
  } else {
    print_table(route_table(routing_case, flags.style));
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
    Json json = route::read_route_input(route::read_input_text(file), where);
    if (json.contains("kind")) {
      run_case(flags, json, where);
    } else {
      run_plain(flags, std::move(json), where);
    }
  }
}

}  // namespace

void add_route(CLI::App& app) {
  auto flags = std::make_shared<RouteFlags>();
  CLI::App* command =
      app.add_subcommand("route", "what a router decides, for one's own logits or a case");
  add_options(*command,
              {{.name = "file",
                .member = &flags->files,
                .group = group::kData,
                .help = "logits (a JSON list of rows, or CSV, one token a line), or cases "
                        "with kind and input; - is standard input",
                .spelled = "FILE",
                .is_required = true}});
  add_router_flags(*command, flags->router);
  add_options(*command, {{.name = "table",
                          .member = &flags->table,
                          .group = group::kOutput,
                          .help = "draw a case instead of answering it in JSON"},
                         {.name = "tokens",
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
