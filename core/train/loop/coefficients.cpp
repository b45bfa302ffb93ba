#include "core/train/loop/coefficients.h"

#include "core/base/error.h"

namespace moe::train {

using route::Family;

namespace {

// 0 may be said of a loss that is not there.
void refuse(const std::optional<double>& coefficient, const char* flag, const std::string& reason) {
  if (coefficient.value_or(0) != 0) {
    throw UserError("{} {}: {}; leave it out", flag, *coefficient, reason);
  }
}

void refuse_others(const TrainSettings& settings, const route::RouterSettings& router) {
  const std::string name = to_string(router);
  if (router.family == Family::kRelu) {
    refuse(settings.lb_coef, "--lb-coef",
           fmt::format("{} has no load-balance loss, its adaptive L1 spreads the load", name));
  } else {
    refuse(settings.lambda, "--lambda",
           fmt::format("{} has no L1 loss that lambda would weigh, only relu has", name));
  }
  if (router.family != Family::kTopP) {
    refuse(settings.entropy_coef, "--entropy-coef",
           fmt::format("{} has no entropy loss, only topp has", name));
  }
}

// " + 0.01 x load balance (..)", or that it is off.
std::string term(const std::optional<double>& coefficient, const std::string& loss) {
  return coefficient.value_or(0) == 0 ? fmt::format("; {} is off (coefficient 0)", loss)
                                      : fmt::format(" + {} x {}", *coefficient, loss);
}

std::string l1_term(double lambda, const route::RouterSettings& router, int64_t experts) {
  const std::string loss = router.l1_refined ? "L1 (refined by load, l1=refined)" : "L1 (l1=plain)";
  if (lambda == 0) {
    return fmt::format("; {} is off (lambda 0 stays 0)", loss);
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
  const bool same_family = router.family == stored.router.family;
  if (router.family == Family::kRelu) {
    settings.lb_coef.reset();
    const double start =
        resolved.names_lambda0 ? router.lambda0 : stored.lambda.value_or(router.lambda0);
    settings.lambda = settings.lambda.value_or(start);
  } else {
    settings.lambda.reset();
    settings.lb_coef =
        settings.lb_coef.value_or(same_family ? stored.lb_coef : default_lb_coef(router));
  }
  if (router.family == Family::kTopP) {
    settings.entropy_coef = settings.entropy_coef.value_or(
        same_family ? stored.entropy_coef : default_entropy_coef(router));
  } else {
    settings.entropy_coef.reset();
  }
}

void refuse_coefficients(const TrainSettings& settings) {
  const std::string reason = fmt::format(
      "{} is a dense folder, which has no router to weigh a loss of", settings.model.string());
  refuse(settings.lb_coef, "--lb-coef", reason);
  refuse(settings.entropy_coef, "--entropy-coef", reason);
  refuse(settings.lambda, "--lambda", reason);
}

std::string losses_in_force(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts) {
  std::string words = "language model";
  if (router.family == Family::kRelu) {
    return words + l1_term(settings.lambda.value_or(0), router, experts);
  }
  const char* counted =
      router.lb_count == route::LbCount::kFirst ? "of first choices" : "of selected experts";
  words += term(settings.lb_coef, fmt::format("load balance ({})", counted));
  if (router.family == Family::kTopP) {
    words += term(settings.entropy_coef, "entropy");
  }
  return words;
}

}  // namespace moe::train
