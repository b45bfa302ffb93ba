#include "core/route/router_override.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"

namespace moe::route {

namespace {

// Returns true if the text of --router contains "OPTION=".
bool contains_option(const std::string& router, std::string_view option) {
  const std::string text = lower(router);
  const size_t at = text.find(std::string(option) + "=");
  return at != std::string::npos && at > 0 && (text[at - 1] == ':' || text[at - 1] == ',');
}

// Sets the capacity factor of --cf, if given.
void apply_cf(const RouterRequest& request, RouterSettings& router) {
  if (request.cf.empty()) {
    return;
  }
  RouterSettings parsed;
  const RouterOption option = capacity_option(parsed);
  const std::optional<double>& cf = parsed.capacity_factor;  // empty for "inf"
  USER_ERROR_IF(!set_option(option, lower(request.cf)) || (cf && !holds(option.range, *cf)),
                "--cf '{}' is not a positive number or 'inf'", request.cf);
  if (!router.family->has_slots) {
    std::vector<std::string> titles;
    for (const auto& family : router_families()) {
      if (family.has_slots) {
        titles.push_back(family.title);
      }
    }
    throw UserError("--cf {}: only {} routers have a capacity, this one is {}", request.cf,
                    fmt::join(titles, " and "), to_string(router));
  }
  USER_ERROR_IF(contains_option(request.router, "cf") && router.capacity_factor != cf,
                "--cf {} contradicts --router {}; give one of them", request.cf, request.router);
  router.capacity_factor = cf;
}

struct StoredOption {
  RouterOption option;       // bound to the new router
  std::string stored_value;  // value_text() in the stored router
};

// Returns the options of `router` with their stored values; none if the families differ.
std::vector<StoredOption> stored_options(RouterSettings stored, RouterSettings& router) {
  std::vector<StoredOption> list;
  if (stored.family == router.family) {
    const RouterOptions options = router_options(router), before = router_options(stored);
    for (size_t i = 0; i < options.size(); ++i) {
      list.push_back({options[i], value_text(before[i].member)});
    }
  }
  return list;
}

// Adds the notes of changed options. Throws UserError if an option needs --force.
void note_changes(const std::string& change, const std::vector<StoredOption>& changed, bool force,
                  Purpose purpose, std::vector<std::string>& notes) {
  for (const auto& [option, stored_value] : changed) {
    const auto reason = option.messages.find(OptionMessage::kNeedsForce);
    USER_ERROR_IF(reason != option.messages.end() && !force,
                  "--router: {}: {}; use --force to change it anyway", change, reason->second);
    if (reason != option.messages.end()) {
      notes.push_back(fmt::format("warning: {}: {}", change, reason->second));
    }
  }
  for (const auto& [option, stored_value] : changed) {
    for (const auto& [kind, message] : option.messages) {
      if (!stored_value.empty() &&
          (kind == OptionMessage::kNote ||
           (kind == OptionMessage::kNoteInTraining && purpose == Purpose::kTrain))) {
        notes.push_back(change + ": " + fmt::format(fmt::runtime(message), stored_value));
      }
    }
  }
}

// Restores the stored values of options that only training uses.
void restore_training_options(const std::string& change, const std::vector<StoredOption>& changed,
                              std::vector<std::string>& notes) {
  std::vector<std::string> ignored;
  for (const auto& [option, stored_value] : changed) {
    if (option.has(kTrainingOnly)) {
      set_value(option.member, stored_value);
      ignored.emplace_back(option.name);
    }
  }
  if (!ignored.empty()) {
    notes.push_back(fmt::format("{}: {} {} in training only, ignored here", change,
                                fmt::join(ignored, ", "),
                                ignored.size() == 1 ? "matters" : "matter"));
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
       .help = "logical expert-parallel ranks W that share tokens and experts"},
  };
}

RouterSettings requested_router(const RouterRequest& request, const RouterSettings& fallback) {
  RouterSettings router = request.router.empty() ? fallback : parse_router(request.router);
  apply_cf(request, router);
  return router;
}

ResolvedRouter override_router(const StoredRouter& stored, const RouterRequest& request, bool force,
                               Purpose purpose) {
  ResolvedRouter resolved{requested_router(request, stored.router),
                          request.ep_ranks.value_or(stored.ep_ranks),
                          {},
                          contains_option(request.router, "lambda0")};
  RouterSettings& router = resolved.router;
  std::vector<std::string>& notes = resolved.notes;
  const bool is_same_family = stored.router.family == router.family;
  std::vector<StoredOption> changed = stored_options(stored.router, router);
  for (const auto& [option, stored_value] : changed) {
    if (option.position == OptionPosition::kNamed && !option.has(kResetIfUnnamed) &&
        !request.router.empty() && !contains_option(request.router, option.name)) {
      set_value(option.member, stored_value);
    }
  }
  apply_cf(request, router);
  std::erase_if(changed, [](const StoredOption& each) {
    return value_text(each.option.member) == each.stored_value;
  });
  const std::string change =
      fmt::format("{} in place of the stored {}", to_string(router), to_string(stored.router));
  USER_ERROR_IF(stored.router.family->has_softmax_scores != router.family->has_softmax_scores,
                "--router: {}: ReLU and softmax logits mean different things; choose a router of "
                "the stored family, or upcycle the dense model again",
                change);
  if (!is_same_family) {
    notes.push_back("warning: " + change +
                    ": the same softmax scores, but weights that sum to another value; "
                    "the quality may change");
  }
  note_changes(change, changed, force, purpose, notes);
  const bool changes_gates =
      !is_same_family || std::any_of(changed.begin(), changed.end(), [](const auto& each) {
        return each.option.has(kChangesGates);
      });
  if (stored.gate_scale != 1.0 && changes_gates) {
    notes.push_back(fmt::format(
        "warning: {}: the folder's gate_scale {:.6g}, chosen for the stored router, is kept",
        change, stored.gate_scale));
  }
  check_router(router, stored.experts);
  if (purpose == Purpose::kEvaluate) {
    restore_training_options(change, changed, notes);
    check_inference(router, "name another router with softmax scores (--router top2)");
  }
  USER_ERROR_IF(resolved.ep_ranks < 1 || stored.experts % resolved.ep_ranks != 0,
                "--ep-ranks {} does not divide the {} experts; use a divisor", resolved.ep_ranks,
                stored.experts);
  if (router.fr && !router.capacity_factor) {
    notes.push_back(
        fmt::format("without a capacity +fr accepts every request: this is top-{}", router.k + 1));
  }
  return resolved;
}

}  // namespace moe::route
