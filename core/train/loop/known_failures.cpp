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

// Returns E[(X - above)+] of X ~ Binomial(n, p), 0 < p < 1, for `above` >= the mean. Each term is
// computed from the one before, until terms are negligible.
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

// Returns E[(X - above)+] for any `above`. Below the mean it is E[X] - above + E[(above - X)+], and
// n - X is binomial too.
double expected_overflow(int64_t n, double p, int64_t above) {
  const double beyond = static_cast<double>(n) * p - static_cast<double>(above);
  return beyond > 0 ? beyond + upper_tail(n, 1 - p, n - above) : upper_tail(n, p, above);
}

void check_router_gradient(const RunFacts& facts, std::vector<std::string>& found) {
  if (!facts.trains_router || router_learns_from_task(*facts.router, facts.experts)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: router {} learns nothing from the task: a token has one expert, whose weight is 1 "
      "whatever the logits are, so {}; st=on or gate=none gives it a gradient",
      route::to_string(*facts.router),
      facts.other_loss     ? "only the auxiliary losses move the router"
      : facts.balance_loss ? "only the load-balance loss moves the router"
                           : "with --lb-coef 0 nothing moves the router"));
}

void check_chance_refusals(const RunFacts& facts, std::vector<std::string>& found) {
  const double share = chance_refusal_share(*facts.router, facts.rank_tokens, facts.experts);
  if (share <= kMaxChanceRefusal) {
    return;
  }
  found.push_back(fmt::format(
      "warning: capacity is counted over {} tokens a logical rank, where a router that chooses "
      "evenly "
      "at random has {:.1f} % of its requests refused by chance alone; a larger --micro-batch or "
      "--seq-len, fewer --ep-ranks or a larger --cf refuse fewer",
      facts.rank_tokens, 100 * share));
}

void check_learning_rate(const RunFacts& facts, std::vector<std::string>& found) {
  // The tolerance accepts exactly ten times the last rate, which is the parent's maximum.
  const double ratio = *facts.last_lr > 0 ? facts.lr / *facts.last_lr : 0;
  if (ratio <= kMaxLrRatio * (1 + 1e-6)) {
    return;
  }
  found.push_back(fmt::format(
      "warning: --lr {:g} is {:.0f} times the last learning rate that the model was trained with "
      "({:g}), more than a schedule usually falls by, so that what the parent knows may be lost "
      "before the experts differ; {:g} or less goes on from it",
      facts.lr, ratio, *facts.last_lr, kMaxLrRatio * *facts.last_lr));
}

}  // namespace

bool router_learns_from_task(const route::RouterSettings& router, int64_t experts) {
  const int64_t choices = router.family->most_choices(router, experts) + (router.fr ? 1 : 0);
  const bool has_one_expert = std::min(choices, experts) == 1;
  return experts == 1 || !has_one_expert || router.straight_through ||
         !route::weights_sum_to_one(router);
}

double chance_refusal_share(const route::RouterSettings& router, int64_t rank_tokens,
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
      p < 1 ? expected_overflow(rank_tokens, p, slots) : tokens - static_cast<double>(slots);
  return excess / (p * tokens);
}

RunFacts run_facts(const TrainSettings& settings, const model::ModelConfig& config,
                   const route::RouterSettings& router, int64_t ep_ranks, int64_t group_tokens) {
  RunFacts facts;
  facts.lr = settings.lr;
  facts.last_lr = last_learning_rate(settings.model);
  if (config.moe) {
    facts.router = router;
    facts.trains_router = trains_router(settings.trained, config);
    facts.experts = config.moe->experts;
    facts.rank_tokens = group_tokens / ep_ranks;
    facts.balance_loss = settings.lb_coef.value_or(0) > 0;
    facts.other_loss = settings.z_coef.value_or(0) > 0 || settings.seq_lb_coef.value_or(0) > 0;
  }
  return facts;
}

std::vector<std::string> known_failures(const RunFacts& facts) {
  std::vector<std::string> found;
  if (facts.router) {
    check_router_gradient(facts, found);
    check_chance_refusals(facts, found);
  }
  if (facts.last_lr) {
    check_learning_rate(facts, found);
  }
  return found;
}

}  // namespace moe::train
