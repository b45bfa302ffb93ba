// moe route: prints the decisions of a router for given logits, as JSON or as a table
// (Rectify-Router, Figure 2). Colors and marks after the weights: + fill-in of a spare slot, *
// rectified to the token's own rank, x dropped by this expert.

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <regex>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/route/read_logits.h"
#include "core/route/router.h"
#include "core/route/routing_json.h"

namespace moe::cli {
namespace {

struct TableStyle {
  int64_t max_tokens = 64;  // number of lines
  int64_t columns = 100;  // width of the terminal; a wider grid becomes a list of experts per token
  bool use_color = false;
};

constexpr int64_t kCellColumns = 9, kHeadColumns = 13;
constexpr size_t kMaxSlotTokens = 16;

enum Mark : unsigned { kAccepted = 1, kFilled = 2, kRectified = 4, kDropped = 8 };

// A routing on the host, and the text of its table.
struct Drawing {
  const route::RoutingProblem& problem;
  TableStyle style;
  route::Routing routing = {};
  route::Decisions decisions = {};
  route::CounterValues counters = {};
  at::Tensor weights = {};                                     // [T, E] f32
  std::map<std::pair<int64_t, int64_t>, unsigned> marks = {};  // by (token, expert)
  std::string text = {};

  int64_t experts() const { return problem.logits.size(1); }
  int64_t experts_per_rank() const { return experts() / problem.group.ranks; }
  // Returns the gate weight as text if the token is accepted or rectified, else "".
  std::string weight_text(int64_t token, int64_t expert) const {
    const bool is_served = (mark(token, expert) & (kAccepted | kRectified)) != 0;
    return is_served ? fmt::format("{:.3f}", weights.data_ptr<float>()[token * experts() + expert])
                     : "";
  }
  unsigned mark(int64_t token, int64_t expert) const {
    const auto mark = marks.find({token, expert});
    return mark == marks.end() ? 0 : mark->second;
  }
};

Drawing prepare(const route::RoutingProblem& problem, const TableStyle& style) {
  const at::NoGradGuard no_gradients;
  Drawing drawing{problem, style};
  drawing.routing = route::route(problem.logits, problem.router, problem.group);
  drawing.decisions = route::list_decisions(drawing.routing.input, drawing.routing.plan);
  drawing.counters = route::read_counters({drawing.routing.counters})[0];
  drawing.weights = drawing.routing.combine.cpu().contiguous();
  for (int64_t token = 0; token < std::ssize(drawing.decisions.accepted); ++token) {
    for (const int64_t expert : drawing.decisions.accepted[token]) {
      drawing.marks[{token, expert}] |= kAccepted;
    }
  }
  for (const auto& row : drawing.decisions.fr_filled) {
    drawing.marks[{row[0], row[1]}] |= kFilled;
  }
  for (const auto& row : drawing.decisions.ir) {
    drawing.marks[{row[0], row[1]}] |= kRectified;
  }
  for (const auto& row : drawing.decisions.drops) {
    drawing.marks[{row[0], row[2]}] |= kDropped;
  }
  return drawing;
}

std::string paint(const std::string& text, unsigned mark, bool use_color) {
  if (!use_color || mark == 0) {
    return text;
  }
  const char* code = (mark & kRectified) != 0 ? "33"
                     : (mark & kFilled) != 0  ? "36"
                     : (mark & kDropped) != 0 ? "31"
                                              : "32";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

std::string mark_text(unsigned mark) {
  return fmt::format("{}{}{}", (mark & kFilled) != 0 ? "+" : "", (mark & kDropped) != 0 ? "x" : "",
                     (mark & kRectified) != 0 ? "*" : "");
}

void draw_grid_heads(Drawing& drawing) {
  std::string ranks = fmt::format("{:<{}}", "", kHeadColumns), experts = "token  rank  ";
  for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
    const bool is_first_of_rank = expert % drawing.experts_per_rank() == 0;
    const char* const border = is_first_of_rank ? "| " : "";
    const int64_t rank = expert / drawing.experts_per_rank();
    ranks += fmt::format("{}{:<{}}", border, is_first_of_rank ? fmt::format("  rank {}", rank) : "",
                         kCellColumns);
    experts += fmt::format("{}{:>6}   ", border, fmt::format("e{}", expert));
  }
  drawing.text += ranks + "\n" + experts + "\n";
}

// Draws a line per token: in a grid, a cell of kCellColumns characters per expert ("  0.731+ ",
// "       x ", "       . "); otherwise a list ("    3     0  e2 0.881  e1 0.119*  e3 x").
void draw_tokens(Drawing& drawing, int64_t tokens, bool is_grid) {
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t source_rank = drawing.problem.group.source_rank[token];
    drawing.text +=
        fmt::format("{:>5}  {:>4}{}", token,
                    source_rank < 0 ? "pad" : fmt::format("{}", source_rank), is_grid ? "  " : "");
    for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
      const unsigned mark = drawing.mark(token, expert);
      if (mark == 0 && !is_grid) {
        continue;
      }
      const std::string weight = mark == 0 ? "." : drawing.weight_text(token, expert);
      drawing.text += is_grid && expert % drawing.experts_per_rank() == 0 ? "| " : "";
      drawing.text += paint(is_grid ? fmt::format("{:>6}{:<3}", weight, mark_text(mark))
                                    : fmt::format("  e{} {}{}", expert, weight, mark_text(mark)),
                            mark, drawing.style.use_color);
    }
    drawing.text += "\n";
  }
}

void draw_slots(Drawing& drawing) {
  const auto& input = drawing.routing.input;
  drawing.text += "\nslots of each expert, in order of acceptance (- is padding)\n";
  for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
    drawing.text += fmt::format("{:>5}  ", fmt::format("e{}", expert));
    for (int64_t rank = 0; rank < input.ranks; ++rank) {
      std::vector<std::string> slots;
      for (const int64_t token : drawing.decisions.slots[rank][expert]) {
        slots.push_back(
            fmt::format("t{}{}", token, (drawing.mark(token, expert) & kFilled) != 0 ? "+" : ""));
      }
      slots.resize(std::max(slots.size(), static_cast<size_t>(input.capacity[rank])), "-");
      const size_t num_hidden = slots.size() - std::min(slots.size(), kMaxSlotTokens);
      slots.resize(slots.size() - num_hidden);
      drawing.text +=
          fmt::format("{}from rank {}: {}{}", rank == 0 ? "" : "   ", rank, fmt::join(slots, " "),
                      num_hidden == 0 ? "" : fmt::format(" and {} more", num_hidden));
    }
    drawing.text += "\n";
  }
}

void draw_counts(Drawing& drawing) {
  const auto& counted = drawing.counters;
  const route::AuxLosses& losses = drawing.routing.losses;
  const route::RouterFamily& family = *drawing.problem.router.family;
  if (family.has_token_requests) {
    drawing.text += fmt::format("\nrequests     {}, {} dropped ({:.1f} %)", counted.requests,
                                counted.dropped_requests,
                                100 * route::ratio(counted.dropped_requests, counted.requests));
    if (counted.fr_requests > 0) {
      drawing.text +=
          fmt::format("; {} of {} fill-ins accepted (+)", counted.fr_filled, counted.fr_requests);
    }
    if (drawing.problem.router.ir) {
      drawing.text += fmt::format("; {} tokens rectified to their own rank (*)", counted.ir_tokens);
    }
  }
  if (family.has_slots) {
    drawing.text += fmt::format("\nslots        {}, {} used, {} padding", counted.slots_total,
                                counted.slots_used, counted.padding);
  }
  if (family.has_adaptive_l1) {
    drawing.text += fmt::format("\nsparsity     {:.3f}", counted.sparsity());
  }
  drawing.text += fmt::format(
      "\nexperts      {:.3f} per token, {} tokens without any; rows per expert: {} (max {:.2f} x "
      "mean)",
      counted.experts_per_token(), counted.unserved_tokens,
      fmt::join(counted.tokens_per_expert, " "), counted.load_max_over_mean());
  std::vector<std::string> texts;
  for (const auto& [name, loss] : {std::pair("load balance", &losses.load_balance),
                                   {"entropy", &losses.entropy},
                                   {"L1", &losses.l1}}) {
    if (loss->defined()) {
      texts.push_back(fmt::format("{} {:.4f}", name, loss->item<double>()));
    }
  }
  drawing.text +=
      texts.empty() ? "\n" : fmt::format("\nlosses       {} (unscaled)\n", fmt::join(texts, ", "));
}

std::string route_table(const route::RoutingProblem& problem, const TableStyle& style) {
  Drawing drawing = prepare(problem, style);
  const int64_t all = problem.logits.size(0), tokens = std::min(all, style.max_tokens);
  drawing.text =
      fmt::format("{}: {} tokens, {} experts on {} rank{}", route::to_string(problem.router), all,
                  drawing.experts(), problem.group.ranks, problem.group.ranks == 1 ? "" : "s");
  const auto& input = drawing.routing.input;
  if (problem.router.family->has_slots) {
    drawing.text += input.is_dropless ? ", no capacity"
                                      : fmt::format(", slots per expert and rank: {}",
                                                    fmt::join(input.capacity, " "));
  }
  drawing.text += "\n\n";
  const bool is_grid =
      kHeadColumns + drawing.experts() * kCellColumns + 2 * problem.group.ranks <= style.columns;
  if (is_grid) {
    draw_grid_heads(drawing);
  } else {
    drawing.text += "token  rank  experts\n";
  }
  draw_tokens(drawing, tokens, is_grid);
  drawing.text = std::regex_replace(drawing.text, std::regex(" +\n"), "\n");
  if (tokens < all) {
    drawing.text += fmt::format("       and {} more tokens (see --tokens)\n", all - tokens);
  }
  if (route::has_capacity(problem.router)) {
    draw_slots(drawing);
  }
  draw_counts(drawing);
  return drawing.text;
}

struct RouteFlags {
  std::vector<std::string> files;
  route::RouterRequest router;
  TableStyle style;
  bool json = false;
};

void run(RouteFlags flags) {
  apply_threads();
  flags.style.use_color = use_color();
  if (is_terminal(1)) {
    flags.style.columns = static_cast<int64_t>(terminal_width(1));
  }
  for (const auto& file : flags.files) {
    const std::string where = file == "-" ? "standard input" : file;
    Json input = route::read_route_input(route::read_input_text(file), where);
    USER_ERROR_IF(flags.router.router.empty(),
                  "{}: --router is required, such as --router top1+ir+fr", where);
    if (flags.router.ep_ranks) {
      input["num_ranks"] = *flags.router.ep_ranks;
    }
    const auto problem =
        route::read_problem(input, route::requested_router(flags.router, {}), where);
    if (flags.json) {
      print_json(route::route_to_json(problem));
    } else {  // not print_text(): the table has color codes, and no strings of the input
      std::fputs(route_table(problem, flags.style).c_str(), stdout);
    }
  }
}

Options options(RouteFlags& flags) {
  return concat({{positional("FILE", &flags.files, group::kData,
                             "logits: CSV with a token per line, a JSON list of rows, or - for "
                             "standard input")},
                 route::request_options(flags.router),
                 {{"tokens", &flags.style.max_tokens, group::kOutput,
                   "maximum number of tokens in the table", whole_between(1, 1 << 20)},
                  json_option(flags.json)}});
}

}  // namespace

void add_route(CLI::App& app) {
  CLI::App& command = add_command<RouteFlags>(
      app, "route", "print the decisions of a router for logits", run, options);
  add_config(command,
             "moe route logits.csv --router top1+ir+fr --ep-ranks 2\n"
             "moe route logits.json --router topp:0.4 --json");
  command.footer(route::router_help() + "\n" + command.get_footer());
}

}  // namespace moe::cli
