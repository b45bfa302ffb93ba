// Marks beside a weight: + filled a spare slot, * rectified at home, x refused by this expert. They
// say the same as the colours, so that nothing is lost in a pipe.

#include "cli/route_table.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/route/decisions.h"
#include "core/route/router.h"

namespace moe::cli {
namespace {

using route::Decisions;

constexpr int64_t kCellColumns = 9, kHeadColumns = 13;
constexpr size_t kMaxSlotTokens = 16;

enum Mark : unsigned { kAccepted = 1, kFilled = 2, kRectified = 4, kDropped = 8 };

// Everything the drawing reads, on the host.
struct Drawing {
  const route::RoutingProblem& problem;
  route::Routing routing;
  Decisions decisions;
  route::CounterValues counted;
  at::Tensor weights;                                     // [T, E] f32
  std::map<std::pair<int64_t, int64_t>, unsigned> marks;  // by (token, expert)
  TableStyle style;
  std::string text;

  int64_t experts() const { return problem.logits.size(1); }
  int64_t local() const { return experts() / problem.group.ranks; }
  float weight(int64_t token, int64_t expert) const {
    return weights.data_ptr<float>()[token * experts() + expert];
  }
  unsigned mark(int64_t token, int64_t expert) const {
    const auto mark = marks.find({token, expert});
    return mark == marks.end() ? 0 : mark->second;
  }
};

Drawing prepare(const route::RoutingProblem& problem, const TableStyle& style) {
  const at::NoGradGuard no_gradients;
  Drawing drawing{
      problem, route::route(problem.logits, problem.router, problem.group), {}, {}, {}, {}, style,
      ""};
  drawing.decisions = route::decisions_of(drawing.routing.input, drawing.routing.plan);
  drawing.counted = route::read_counters({drawing.routing.counters})[0];
  drawing.weights = drawing.routing.combine.cpu().contiguous();
  for (size_t token = 0; token < drawing.decisions.accepted.size(); ++token) {
    for (const int64_t expert : drawing.decisions.accepted[token]) {
      drawing.marks[{static_cast<int64_t>(token), expert}] |= kAccepted;
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

std::string painted(const std::string& text, unsigned mark, bool color) {
  if (!color || mark == 0) {
    return text;
  }
  const char* code = (mark & kRectified) != 0 ? "33"
                     : (mark & kFilled) != 0  ? "36"
                     : (mark & kDropped) != 0 ? "31"
                                              : "32";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

std::string signs(unsigned mark) {
  std::string text;
  text += (mark & kFilled) != 0 ? "+" : "";
  text += (mark & kDropped) != 0 ? "x" : "";
  text += (mark & kRectified) != 0 ? "*" : "";
  return text;
}

// "  0.731+ ", "       x ", "       . ": kCellColumns wide.
std::string cell(const Drawing& drawing, int64_t token, int64_t expert) {
  const unsigned mark = drawing.mark(token, expert);
  const bool served = (mark & (kAccepted | kRectified)) != 0;
  const std::string number = served      ? fmt::format("{:.3f}", drawing.weight(token, expert))
                             : mark == 0 ? "."
                                         : "";
  return painted(fmt::format("{:>6}{:<3}", number, signs(mark)), mark, drawing.style.color);
}

std::string without_trailing_blanks(const std::string& text) {
  std::string trimmed;
  for (const char c : text) {
    if (c == '\n') {
      trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    }
    trimmed += c;
  }
  return trimmed;
}

std::string home_text(const Drawing& drawing, int64_t token) {
  const int64_t home = drawing.problem.group.home[token];
  return home < 0 ? "pad" : fmt::format("{}", home);
}

void draw_grid(Drawing& drawing, int64_t tokens) {
  std::string ranks = fmt::format("{:<{}}", "", kHeadColumns);
  std::string head = fmt::format("{:>5}  {:>4}  ", "token", "rank");
  for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
    const bool opens = expert % drawing.local() == 0;
    const std::string name =
        opens ? fmt::format("rank {}", expert / drawing.local()) : std::string();
    ranks += fmt::format("{}{:<{}}", opens ? "| " : "", "  " + name, kCellColumns);
    head += fmt::format("{}{:>6}   ", opens ? "| " : "", fmt::format("e{}", expert));
  }
  drawing.text += ranks + "\n" + head + "\n";
  for (int64_t token = 0; token < tokens; ++token) {
    drawing.text += fmt::format("{:>5}  {:>4}  ", token, home_text(drawing, token));
    for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
      drawing.text += expert % drawing.local() == 0 ? "| " : "";
      drawing.text += cell(drawing, token, expert);
    }
    drawing.text += "\n";
  }
}

// Too many experts for columns: "    3     0  e2 0.881  e1 0.119*  e3 x".
void draw_lists(Drawing& drawing, int64_t tokens) {
  drawing.text += fmt::format("{:>5}  {:>4}  experts\n", "token", "rank");
  for (int64_t token = 0; token < tokens; ++token) {
    drawing.text += fmt::format("{:>5}  {:>4}", token, home_text(drawing, token));
    for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
      const unsigned mark = drawing.mark(token, expert);
      if (mark == 0) {
        continue;
      }
      const bool served = (mark & (kAccepted | kRectified)) != 0;
      const std::string number =
          served ? fmt::format("{:.3f}", drawing.weight(token, expert)) : std::string();
      drawing.text += painted(fmt::format("  e{} {}{}", expert, number, signs(mark)), mark,
                              drawing.style.color);
    }
    drawing.text += "\n";
  }
}

// Which tokens hold the slots of each expert, and what stays empty.
void draw_slots(Drawing& drawing) {
  const auto& input = drawing.routing.input;
  if (!route::has_capacity(drawing.problem.router)) {
    return;
  }
  drawing.text += "\nslots of each expert, in order of acceptance (- is padding)\n";
  for (int64_t expert = 0; expert < drawing.experts(); ++expert) {
    drawing.text += fmt::format("{:>5}  ", fmt::format("e{}", expert));
    for (int64_t rank = 0; rank < input.ranks; ++rank) {
      const auto& tokens = drawing.decisions.slots[rank][expert];
      std::vector<std::string> words;
      for (const int64_t token : tokens) {
        words.push_back(
            fmt::format("t{}{}", token, (drawing.mark(token, expert) & kFilled) != 0 ? "+" : ""));
      }
      words.resize(std::max(words.size(), static_cast<size_t>(input.capacity[rank])), "-");
      const size_t hidden = words.size() - std::min(words.size(), kMaxSlotTokens);
      words.resize(words.size() - hidden);
      drawing.text +=
          fmt::format("{}from rank {}: {}{}", rank == 0 ? "" : "   ", rank, fmt::join(words, " "),
                      hidden == 0 ? "" : fmt::format(" and {} more", hidden));
    }
    drawing.text += "\n";
  }
}

double percent_share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string loss_words(const route::AuxLosses& losses) {
  std::string text;
  const auto add = [&](const char* name, const at::Tensor& loss) {
    if (loss.defined()) {
      text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, loss.item<double>());
    }
  };
  add("load balance", losses.load_balance);
  add("entropy", losses.entropy);
  add("L1", losses.l1);
  return text;
}

void draw_counts(Drawing& drawing) {
  const auto& counted = drawing.counted;
  const route::RouterFamily& family = *drawing.problem.router.family;
  if (family.tokens_request) {
    drawing.text += fmt::format("\nrequests     {}, {} dropped ({:.1f} %)", counted.requests,
                                counted.dropped_requests,
                                percent_share(counted.dropped_requests, counted.requests));
    if (counted.fr_requests > 0) {
      drawing.text +=
          fmt::format("; {} of {} fill-ins accepted (+)", counted.fr_filled, counted.fr_requests);
    }
    if (drawing.problem.router.ir) {
      drawing.text += fmt::format("; {} tokens rectified at home (*)", counted.ir_tokens);
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
      "\nexperts      {:.3f} a token, {} tokens without any; rows of each: {} (max {:.2f} x mean)",
      counted.experts_per_token(), counted.unserved_tokens,
      fmt::join(counted.tokens_per_expert, " "), counted.load_max_over_mean());
  const std::string losses = loss_words(drawing.routing.losses);
  drawing.text += losses.empty() ? "\n" : fmt::format("\nlosses       {} (unscaled)\n", losses);
}

}  // namespace

std::string route_table(const route::RoutingProblem& problem, const TableStyle& style) {
  Drawing drawing = prepare(problem, style);
  const int64_t all = problem.logits.size(0), tokens = std::min(all, style.max_tokens);
  drawing.text =
      fmt::format("{}: {} tokens, {} experts on {} rank{}", route::to_string(problem.router), all,
                  drawing.experts(), problem.group.ranks, problem.group.ranks == 1 ? "" : "s");
  const auto& input = drawing.routing.input;
  if (problem.router.family->has_slots) {
    drawing.text += input.dropless ? ", no capacity"
                                   : fmt::format(", slots an expert takes from each rank: {}",
                                                 fmt::join(input.capacity, " "));
  }
  drawing.text += "\n\n";
  const int64_t width = kHeadColumns + drawing.experts() * kCellColumns + 2 * problem.group.ranks;
  if (width <= style.columns) {
    draw_grid(drawing, tokens);
  } else {
    draw_lists(drawing, tokens);
  }
  drawing.text = without_trailing_blanks(drawing.text);
  if (tokens < all) {
    drawing.text += fmt::format("       and {} more tokens (--tokens draws more)\n", all - tokens);
  }
  draw_slots(drawing);
  draw_counts(drawing);
  return drawing.text;
}

}  // namespace moe::cli
