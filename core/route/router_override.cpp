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

// Returns --cf as the router grammar reads it; open for "inf".
std::optional<double> capacity_factor(const std::string& cf) {
  RouterSettings settings;
  const RouterOption option = capacity_option(settings);
  if (!set_option(option, lower(cf)) ||
      (settings.capacity_factor && !holds(option.option.range, *settings.capacity_factor))) {
    throw UserError("--cf '{}' is not a positive number or 'inf'", cf);
  }
  return settings.capacity_factor;
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

// Between routers of one family, keeps the stored value of each option that --router may name and
// does not.
void keep_unnamed_options(const std::string& text, RouterSettings stored, RouterSettings& router) {
  const RouterOptions options = options_of(router), kept = options_of(stored);
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].position == OptionPosition::kNamed && !options[i].has(kResetIfUnnamed) &&
        !names_option(text, options[i].option.name)) {
      set_value(options[i].option.member, value_text(kept[i].option.member));
    }
  }
}

void apply_cf(const RouterRequest& given, RouterSettings& router) {
  if (given.cf.empty()) {
    return;
  }
  const std::optional<double> cf = capacity_factor(given.cf);
  if (!router.family->has_slots) {
    throw UserError("--cf {}: only {} routers have a capacity, this one is {}", given.cf,
                    families_with_slots(), to_string(router));
  }
  if (names_option(given.router, "cf") && router.capacity_factor != cf) {
    throw UserError("--cf {} contradicts --router {}; give one of them", given.cf, given.router);
  }
  router.capacity_factor = cf;
}

// What changes from the stored router to the one that stands in for it.
struct Change {
  const RouterSettings& stored;
  RouterSettings& router;
  std::string words;  // "top2 in place of the stored top1"
  std::vector<std::string>& notes;

  struct ChangedOption {
    RouterOption option;  // bound to `router`
    std::string before;   // value_text() in `stored`
  };
  // Returns the options that differ; none between two families.
  std::vector<ChangedOption> options() const {
    std::vector<ChangedOption> changed;
    RouterSettings read = stored;
    const RouterOptions now = options_of(router), before = options_of(read);
    for (size_t i = 0; same_family(stored, router) && i < now.size(); ++i) {
      const std::string text = value_text(before[i].option.member);
      if (text != value_text(now[i].option.member)) {
        changed.push_back({now[i], text});
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
  for (const auto& [option, before] : change.options()) {
    const auto reason = option.sentences.find(Sentence::kNeedsForce);
    if (reason == option.sentences.end()) {
      continue;
    }
    if (!force) {
      throw UserError("--router: {}: {}; add --force if that is meant", change.words,
                      reason->second);
    }
    change.note("warning: " + change.words + ": " + reason->second);
  }
  for (const auto& [option, before] : change.options()) {
    for (const auto& [kind, sentence] : option.sentences) {
      if (!before.empty() && (kind == Sentence::kNote ||
                              (kind == Sentence::kNoteInTraining && purpose == Purpose::kTrain))) {
        change.note(change.words + ": " + fmt::format(fmt::runtime(sentence), before));
      }
    }
  }
}

// Evaluation does not read these: the stored ones stay, so that results name a router that was.
void ignore_training_options(const Change& change) {
  std::vector<std::string> ignored;
  for (const auto& [option, before] : change.options()) {
    if (option.has(kTrainingOnly)) {
      set_value(option.option.member, before);
      ignored.emplace_back(option.option.name);
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
                          std::none_of(options.begin(), options.end(), [](const auto& changed) {
                            return changed.option.has(kChangesGates);
                          });
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
