#include "core/train/config/losses.h"

#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/route/router.h"
#include "core/train/config/options.h"

namespace moe::train {

namespace {

// Throws UserError if `coefficient` is set and is not 0.
void refuse(const TrainSettings& settings, std::optional<double> TrainSettings::*coefficient,
            const std::string& reason) {
  if (const double value = (settings.*coefficient).value_or(0); value != 0) {
    throw UserError("{} {}: {}; leave it out", flag_of(coefficient), value, reason);
  }
}

// Returns the names of the router families that satisfy `has`: "relu".
template <typename Has>
std::string family_names(const Has& has) {
  std::vector<std::string> words;
  for (const auto& family : route::router_families()) {
    if (has(family)) {
      words.push_back(family.word);
    }
  }
  return fmt::format("{}", fmt::join(words, " and "));
}

void refuse_others(const TrainSettings& settings, const route::RouterSettings& router) {
  const std::string name = to_string(router);
  const route::RouterFamily& family = *router.family;
  if (!family.load_balance_coef) {
    refuse(settings, &TrainSettings::lb_coef,
           fmt::format("{} has no load-balance loss, {}", name, family.no_load_balance));
    refuse(settings, &TrainSettings::seq_lb_coef,
           fmt::format("{} has no load-balance loss within sequences, {}", name,
                       family.no_load_balance));
  }
  if (!family.has_softmax_scores) {
    refuse(settings, &TrainSettings::z_coef,
           fmt::format("{} has no softmax, whose normaliser the z-loss keeps small", name));
  }
  if (!family.has_adaptive_l1) {
    refuse(settings, &TrainSettings::lambda,
           fmt::format("{} has no L1 loss that lambda would weigh, only {} has", name,
                       family_names([](const auto& each) { return each.has_adaptive_l1; })));
  }
  if (!family.entropy_coef) {
    refuse(settings, &TrainSettings::entropy_coef,
           fmt::format("{} has no entropy loss, only {} has", name,
                       family_names([](const auto& each) { return each.entropy_coef; })));
  }
}

// Returns " + 0.01 x load balance (..)", or a clause that the loss is off.
std::string term(const std::optional<double>& coefficient, const std::string& loss) {
  return coefficient.value_or(0) == 0 ? fmt::format("; {} is off (coefficient 0)", loss)
                                      : fmt::format(" + {} x {}", *coefficient, loss);
}

std::string l1_term(double lambda, const route::RouterSettings& router, int64_t experts,
                    bool router_trains) {
  const std::string loss = router.l1 == route::L1Weights::kRefined
                               ? "L1 (refined by load, l1=refined)"
                               : "L1 (l1=plain)";
  if (lambda == 0) {
    return fmt::format("; {} is off (lambda 0 stays 0)", loss);
  }
  if (!router_trains) {
    return fmt::format(" + lambda x {}; lambda stays {}, as no router is trained", loss, lambda);
  }
  const double target = 1.0 - static_cast<double>(router.k) / static_cast<double>(experts);
  return fmt::format(
      " + lambda x {}; lambda is {} at first, then times {} after a step of a sparsity below S* = "
      "1 "
      "- {}/{} = {:.6g}, else divided by it",
      loss, lambda, router.lambda_multiplier, router.k, experts, target);
}

}  // namespace

void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved) {
  const route::RouterSettings& router = resolved.router;
  refuse_others(settings, router);
  const route::RouterFamily& family = *router.family;
  const bool keeps = same_family(router, stored.router);
  const auto fill = [&](std::optional<double>& coefficient, bool has_loss, double other) {
    coefficient = has_loss ? std::optional(coefficient.value_or(other)) : std::nullopt;
  };
  fill(settings.lambda, family.has_adaptive_l1,
       resolved.names_lambda0 ? router.lambda0 : stored.lambda.value_or(router.lambda0));
  const bool keeps_bias = router.bias_rate.has_value() == stored.router.bias_rate.has_value();
  fill(settings.lb_coef, family.load_balance_coef.has_value(),
       keeps && keeps_bias ? stored.lb_coef : default_lb_coef(router));
  fill(settings.entropy_coef, family.entropy_coef.has_value(),
       keeps ? stored.entropy_coef : default_entropy_coef(router));
  // Leaves a coefficient unset if it is 0 by default and by setting, so that it is not printed.
  const auto fill_if_used = [&](std::optional<double>& coefficient, bool has_loss, double other) {
    const double value = coefficient.value_or(other);
    const bool is_said = has_loss && (value != 0 || other != 0);
    coefficient = is_said ? std::optional(value) : std::nullopt;
  };
  fill_if_used(settings.z_coef, family.has_softmax_scores, keeps ? stored.z_coef : 0);
  fill_if_used(settings.seq_lb_coef, family.load_balance_coef.has_value(),
               keeps ? stored.seq_lb_coef : 0);
}

void refuse_coefficients(const TrainSettings& settings) {
  const std::string reason = fmt::format(
      "{} is a dense folder, which has no router to weigh a loss of", settings.model.string());
  refuse(settings, &TrainSettings::lb_coef, reason);
  refuse(settings, &TrainSettings::entropy_coef, reason);
  refuse(settings, &TrainSettings::z_coef, reason);
  refuse(settings, &TrainSettings::seq_lb_coef, reason);
  refuse(settings, &TrainSettings::lambda, reason);
}

std::string describe_losses(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains) {
  const route::RouterFamily& family = *router.family;
  std::string words = "language model";
  if (family.has_adaptive_l1) {
    words += l1_term(settings.lambda.value_or(0), router, experts, router_trains);
  }
  if (family.load_balance_coef) {
    const char* counted =
        router.lb_count == route::LbCount::kFirst ? "of first choices" : "of selected experts";
    words += term(settings.lb_coef, fmt::format("load balance ({})", counted));
  }
  if (family.entropy_coef) {
    words += term(settings.entropy_coef, "entropy");
  }
  for (const auto& [coefficient, loss] :
       {std::pair(settings.z_coef, "z-loss"),
        std::pair(settings.seq_lb_coef, "load balance within each sequence")}) {
    if (coefficient.value_or(0) != 0) {
      words += term(coefficient, loss);
    }
  }
  if (router.bias_rate) {
    if (*router.bias_rate == 0) {
      words += "; a bias of the choice that stands still (bias=0)";
    } else if (!router_trains) {
      words += "; a bias of the choice that keeps its value, as no router is trained";
    } else {
      words += fmt::format("; a bias of the choice balances, by {} a step", *router.bias_rate);
    }
  }
  return words;
}

}  // namespace moe::train
