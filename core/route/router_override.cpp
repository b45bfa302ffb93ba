#include "core/route/router_override.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/base/error.h"
#include "core/route/router.h"

namespace moe::route {
namespace {

// Whether the text of --router names the option itself.
bool names_option(const std::string& router, std::string_view option) {
  const std::string text = lower(router);
  const size_t at = text.find(std::string(option) + "=");
  return at != std::string::npos && at > 0 &&
         (text[at - 1] == ':' || text[at - 1] == ',' || text[at - 1] == ' ');
}

// --cf as the router grammar reads it, so that both spellings mean the same.
OptionValue capacity_factor(const std::string& cf) {
  const RouterOption option = capacity_option();
  const auto value = parse_value(option, lower(cf));
  const auto* number = value ? std::get_if<double>(&*value) : nullptr;
  if (!value || (number != nullptr && !option.in_range(*number))) {
    throw UserError("--cf '{}' is not a positive number or 'inf'", cf);
  }
  return *value;
}

// "top-k and expert-choice"
std::string families_with_slots() {
  std::vector<std::string> titles;
  for (const auto& family : router_families()) {
    if (family.has_slots) {
      titles.push_back(family.title);
    }
  }
  return fmt::format("{}", fmt::join(titles, " and "));
}

// Between routers of one family: what --router leaves out is not changed. What stands in the name,
// after a plus sign or must be said is always said.
void keep_unnamed_options(const std::string& text, const RouterSettings& stored,
                          RouterSettings& router) {
  for (const auto& option : router.family->options) {
    if (option.position == OptionPosition::kNamed && option.is_kept &&
        !names_option(text, option.name)) {
      option.value.set(router, option.value.get(stored));
    }
  }
}

void apply_cf(const RouterRequest& given, RouterSettings& router) {
  if (given.cf.empty()) {
    return;
  }
  const OptionValue cf = capacity_factor(given.cf);
  const RouterOption* option = find_option(*router.family, "cf");
  if (option == nullptr) {
    throw UserError("--cf {}: only {} routers have a capacity, this one is {}", given.cf,
                    families_with_slots(), to_string(router));
  }
  if (names_option(given.router, "cf") && option->value.get(router) != cf) {
    throw UserError("--cf {} contradicts --router {}; give one of them", given.cf, given.router);
  }
  option->value.set(router, cf);
}

// What changes from the stored router to the one that stands in for it.
struct Change {
  const RouterSettings& stored;
  RouterSettings& router;
  std::string words;  // "top2 in place of the stored top1"
  std::vector<std::string>& notes;

  // The options that differ, none between two families.
  std::vector<const RouterOption*> options() const {
    std::vector<const RouterOption*> changed;
    for (const auto& option : router.family->options) {
      if (same_family(stored, router) && option.value.get(stored) != option.value.get(router)) {
        changed.push_back(&option);
      }
    }
    return changed;
  }

  void note(const std::string& text) const { notes.push_back(text); }
};

// Another family: refused, or noted.
void check_family(const Change& change) {
  if (change.stored.family->has_softmax_scores != change.router.family->has_softmax_scores) {
    throw UserError(
        "--router: {}: ReLU and softmax logits mean different things; choose a router of the "
        "stored family, or upcycle "
        "the dense model again",
        change.words);
  }
  if (!same_family(change.stored, change.router)) {
    change.note(
        "warning: " + change.words +
        ": the same softmax scores, but weights that sum to another value; expect other quality");
  }
}

// What rescales the model is refused, or noted when forced; the rest is noted where it matters.
void note_options(const Change& change, bool force, Purpose purpose) {
  for (const auto* option : change.options()) {
    if (option->needs_force.empty()) {
      continue;
    }
    if (!force) {
      throw UserError("--router: {}: {}; add --force if that is meant", change.words,
                      option->needs_force);
    }
    change.note("warning: " + change.words + ": " + option->needs_force);
  }
  for (const auto* option : change.options()) {
    const OptionValue stored = option->value.get(change.stored);
    const bool had_none = std::holds_alternative<std::monostate>(stored);
    if (!option->note.empty() && !had_none &&
        (purpose == Purpose::kTrain || !option->note_in_training_only)) {
      const std::string before = value_text(*option, stored);
      change.note(change.words + ": " + fmt::format(fmt::runtime(option->note), before));
    }
  }
}

// Evaluation does not read these: the stored ones stay, so that results name a router that was.
void ignore_training_options(const Change& change) {
  std::vector<std::string> ignored;
  for (const auto* option : change.options()) {
    if (option->is_training_only) {
      option->value.set(change.router, option->value.get(change.stored));
      ignored.push_back(option->name);
    }
  }
  if (!ignored.empty()) {
    change.note(fmt::format("{}: {} {} in training only, ignored here", change.words,
                            fmt::join(ignored, ", "), ignored.size() == 1 ? "matters" : "matter"));
  }
}

// gate_scale was measured for the stored gates; other gates have another sum.
void note_gate_scale(const Change& change, double gate_scale) {
  const auto options = change.options();
  const bool same_gates = same_family(change.stored, change.router) &&
                          std::none_of(options.begin(), options.end(),
                                       [](const auto* option) { return option->changes_gates; });
  if (gate_scale != 1.0 && !same_gates) {
    change.note(
        fmt::format("warning: {}: the folder's gate_scale {:.6g} was chosen for the stored "
                    "router and stays",
                    change.words, gate_scale));
  }
}

}  // namespace

Options request_options(RouterRequest& request) {
  return {
      {.name = "router",
       .member = &request.router,
       .group = group::kRouter,
       .help = router_forms() + ", e.g. top1+ir+fr"},
      {.name = "cf",
       .member = &request.cf,
       .group = group::kRouter,
       .help = "capacity factor of a top-k router, or inf"},
      {.name = "ep-ranks",
       .member = &request.ep_ranks,
       .group = group::kRouter,
       .help = "logical expert-parallel ranks W, over which tokens and experts are divided"},
  };
}

RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback) {
  RouterSettings router = request.router.empty() ? fallback : parse_router(request.router);
  apply_cf(request, router);
  return router;
}

ResolvedRouter override_router(const StoredRouter& stored, const RouterRequest& request, bool force,
                               Purpose purpose) {
  ResolvedRouter resolved{
      requested_router(request, stored.router), request.ep_ranks.value_or(stored.ep_ranks), {}};
  RouterSettings& router = resolved.router;
  if (!request.router.empty() && same_family(stored.router, router)) {
    keep_unnamed_options(request.router, stored.router, router);
    apply_cf(request, router);
  }
  resolved.names_lambda0 = names_option(request.router, "lambda0");
  const Change change{
      stored.router, router,
      fmt::format("{} in place of the stored {}", to_string(router), to_string(stored.router)),
      resolved.notes};
  check_family(change);
  note_options(change, force, purpose);
  note_gate_scale(change, stored.gate_scale);
  check_router(router, stored.experts);
  if (purpose == Purpose::kEvaluate) {
    ignore_training_options(change);
    check_inference(router, "name another router with softmax scores (--router top2)");
  }
  if (resolved.ep_ranks < 1 || stored.experts % resolved.ep_ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; use a divisor",
                    resolved.ep_ranks, stored.experts);
  }
  if (router.fr && !router.capacity_factor) {
    resolved.notes.push_back(
        fmt::format("without a capacity +fr accepts every request: this is top-{}", router.k + 1));
  }
  return resolved;
}

}  // namespace moe::route
