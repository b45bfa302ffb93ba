#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/route/router.h"
#include "core/route/rule.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"
#include "core/train/step/trainable.h"

namespace moe::train {

namespace {

// E[(X - above)+] of X ~ Binomial(n, p), 0 < p < 1 and `above` not below the mean: term by term,
// each made from the one before, until the rest no longer counts.
double upper_tail(int64_t n, double p, int64_t above) {
  const auto count = static_cast<double>(n);
  const auto first = static_cast<double>(above + 1);
  double probability =
      std::exp(std::lgamma(count + 1) - std::lgamma(first + 1) - std::lgamma(count - first + 1) +
               first * std::log(p) + (count - first) * std::log1p(-p));
  double sum = 0;
  for (double x = first; x <= count; ++x) {
    const double term = (x - first + 1) * probability;
    sum += term;
    if (term <= 1e-17 * sum) {
      break;
    }
    probability *= (count - x) / (x + 1) * p / (1 - p);
  }
  return sum;
}

// The same for any `above`: where that is below the mean, E[X] - above + E[(above - X)+], and n - X
// is binomial too.
double expected_excess(int64_t n, double p, int64_t above) {
  const double beyond = static_cast<double>(n) * p - static_cast<double>(above);
  return beyond > 0 ? beyond + upper_tail(n, 1 - p, n - above) : upper_tail(n, p, above);
}

void check_router_gradient(const StartingPoint& start, std::vector<std::string>& found) {
  if (!start.trains_router || router_learns_from_task(*start.router, start.experts)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: router {} learns nothing from the task: a token has one expert, whose weight is 1 "
      "whatever the logits are, so {}; st=on or gate=none gives it a gradient",
      route::to_string(*start.router),
      start.other_loss     ? "only the auxiliary losses move the router"
      : start.balance_loss ? "only the load-balance loss moves the router"
                           : "with --lb-coef 0 nothing moves the router"));
}

void check_refusals(const StartingPoint& start, std::vector<std::string>& found) {
  const double share = share_refused_by_chance(*start.router, start.rank_tokens, start.experts);
  if (share <= kMostRefusedByChance) {
    return;
  }
  found.push_back(fmt::format(
      "warning: capacity is counted over {} tokens a logical rank, where a router that chooses "
      "evenly "
      "at random has {:.1f} % of its requests refused by chance alone; a larger --micro-batch or "
      "--seq-len, fewer --ep-ranks or a larger --cf refuse fewer",
      start.rank_tokens, 100 * share));
}

void check_rate(const StartingPoint& start, std::vector<std::string>& found) {
  // A rate that is ten times the last but for rounding is the parent's highest.
  const double ratio = *start.last_lr > 0 ? start.lr / *start.last_lr : 0;
  if (ratio <= kMostRateRatio * (1 + 1e-6)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: --lr {:g} is {:.0f} times the last learning rate that the model was trained with "
      "({:g}), more than a schedule usually falls by, so that what the parent knows may be lost "
      "before the experts differ; {:g} or less goes on from it",
      start.lr, ratio, *start.last_lr, kMostRateRatio * *start.last_lr));
}

}  // namespace

bool router_learns_from_task(const route::RouterSettings& router, int64_t experts) {
  const int64_t choices = router.family->most_choices(router, experts) + (router.fr ? 1 : 0);
  const bool has_one_expert = std::min(choices, experts) == 1;
  return experts == 1 || !has_one_expert || router.straight_through ||
         !route::weights_sum_to_one(router);
}

double share_refused_by_chance(const route::RouterSettings& router, int64_t rank_tokens,
                               int64_t experts) {
  if (!router.family->tokens_request || !route::has_capacity(router) || rank_tokens < 1) {
    return 0;
  }
  const int64_t slots = route::capacity_slots(router.capacity_factor, rank_tokens, experts);
  if (slots >= rank_tokens) {
    return 0;
  }
  const auto tokens = static_cast<double>(rank_tokens);
  const double p = static_cast<double>(router.k) / static_cast<double>(experts);
  const double excess =
      p < 1 ? expected_excess(rank_tokens, p, slots) : tokens - static_cast<double>(slots);
  return excess / (p * tokens);
}

StartingPoint starting_point(const TrainSettings& settings, const model::ModelConfig& config,
                             const route::RouterSettings& router, int64_t ep_ranks,
                             int64_t group_tokens) {
  StartingPoint start;
  start.lr = settings.lr;
  start.last_lr = last_learning_rate(settings.model);
  if (config.moe) {
    start.router = router;
    start.trains_router = trains_router(settings.trained, config);
    start.experts = config.moe->experts;
    start.rank_tokens = group_tokens / ep_ranks;
    start.balance_loss = settings.lb_coef.value_or(0) > 0;
    start.other_loss = settings.z_coef.value_or(0) > 0 || settings.seq_lb_coef.value_or(0) > 0;
  }
  return start;
}

std::vector<std::string> known_failures(const StartingPoint& start) {
  std::vector<std::string> found;
  if (start.router) {
    check_router_gradient(start, found);
    check_refusals(start, found);
  }
  if (start.last_lr) {
    check_rate(start, found);
  }
  return found;
}

}  // namespace moe::train
