#include "core/route/route.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>

#include "core/base/error.h"
#include "core/route/routers/all.h"
#include "kernels/ops/operations.h"

namespace moe::route {

namespace {

template <typename... Router>
std::deque<RouterFunctions> make_functions(std::type_identity<std::tuple<Router...>>) {
  return {Router::functions()...};
}

// Functions of each family, in the order of router_families().
std::deque<RouterFunctions>& all_functions() {
  static std::deque<RouterFunctions> all = make_functions(std::type_identity<AllRouters>());
  return all;
}

bool use_fused_kernels(const at::Tensor& logits, const RouterSettings& settings) {
  return logits.scalar_type() == at::kFloat && router_functions(settings).fused_plan != nullptr &&
         kernels::call<"moe::fits_top_k_plan", bool(const at::Tensor&, bool)>(
             logits, settings.bias_rate.has_value());
}

// Sets the members of `routing` that have a gradient.
void set_gates(Routing& routing, const at::Tensor& logits, const RouterSettings& settings) {
  const RouterFunctions& functions = router_functions(settings);
  if (use_fused_kernels(logits, settings)) {
    functions.fused_gate_weights(logits, settings, routing);
    return;
  }
  routing.combine = functions.gates(logits, routing.count, settings);
  routing.weights = row_weights(routing.combine, routing.count, routing.input, routing.plan);
  if (functions.losses != nullptr) {
    routing.losses = functions.losses(logits, routing.input, routing.count, settings);
  }
  if (routing.input.compute_z_loss && settings.family->has_softmax_scores) {
    routing.losses.z = z_loss(logits, routing.input);
  }
}

// Returns n e^{a - max} / sum_l n_l e^{a_l - max}, over the experts of each token with n > 0.
at::Tensor normalised_weights(const at::Tensor& logits, const at::Tensor& count) {
  const at::Tensor none = count <= 0;
  const at::Tensor selected = logits.masked_fill(none, -std::numeric_limits<double>::infinity());
  const at::Tensor empty = none.all(1, /*keepdim=*/true);
  const at::Tensor highest = selected.amax(1, /*keepdim=*/true).masked_fill(empty, 0);
  const at::Tensor mass = (selected - highest).exp() * count;
  return mass / mass.sum(1, /*keepdim=*/true).masked_fill(empty, 1);
}

struct SoftmaxGates : torch::autograd::Function<SoftmaxGates> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& count, bool normalise, bool straight_through) {
    const bool through_all = straight_through || !normalise;
    const at::Tensor probabilities = through_all ? at::softmax(logits, 1) : at::Tensor();
    at::Tensor weights = normalise ? normalised_weights(logits, count) : probabilities * count;
    context->save_for_backward({weights, through_all ? probabilities : weights});
    return weights;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const at::Tensor product = saved[0] * upstream[0];  // w U
    return {product - saved[1] * product.sum(1, /*keepdim=*/true), {}, {}, {}};
  }
};

// Returns the index of the (token, expert) of each row in a flattened [T, E] matrix, [rows_max]
// i64; 0 for unused rows.
at::Tensor matrix_index(const RouteInput& input, const Plan& plan) {
  const at::Tensor unused = plan.expert == input.experts();
  return (plan.token * input.experts() + plan.expert).masked_fill(unused, 0);
}

// Returns the sums of `values` [T] or [T, E] over the tokens with each index, [size] or [size, E].
// index [T] i64 is in 0..size-1.
at::Tensor sum_by_index(const at::Tensor& index, int64_t size, const at::Tensor& values) {
  auto shape = values.sizes().vec();
  shape[0] = size;
  return at::zeros(shape, values.options()).index_add_(0, index, values);
}

// Returns the sums over the tokens of each rank, [W + 1] or [W + 1, E]. The last one is of padding.
at::Tensor sum_by_rank(const RouteInput& input, const at::Tensor& values) {
  return sum_by_index(input.source_rank, input.ranks + 1, values);
}

// Weights of the tokens in a mean over ranks of means over tokens, or in a sum. A loss is a sum
// over tokens of a constant (the weight, and counts of the rank or sequence) times a differentiable
// term.
struct TokenWeight {
  at::Tensor weight;       // [T], 1 / (T_r * number of ranks with tokens), or 1; 0 for padding
  at::Tensor rank_tokens;  // [T], T_r of the token's rank; undefined for a sum
};

TokenWeight token_weight(const RouteInput& input) {
  if (input.sum_losses) {
    return {(input.source_rank < input.ranks).to(input.logits.scalar_type()), {}};
  }
  const at::Tensor by_rank = sum_by_rank(input, at::ones({input.tokens()}, input.logits.options()));
  const at::Tensor ranks = (by_rank.narrow(0, 0, input.ranks) > 0).sum().clamp_min(1);
  const at::Tensor rank_tokens = by_rank.index_select(0, input.source_rank);
  return {(input.source_rank < input.ranks) / (rank_tokens * ranks), rank_tokens};
}

// Returns f_j of each token's rank, [T, E]: the share of the rank's tokens i with counted[i, j]
// = 1. counted [T, E] is 0 or 1.
at::Tensor rank_fractions(const RouteInput& input, const at::Tensor& counted,
                          const at::Tensor& rank_tokens) {
  return sum_by_rank(input, counted).index_select(0, input.source_rank) / rank_tokens.unsqueeze(1);
}

// Returns the sums over tokens that are not padding. counted, scores [T, E].
BalanceSums balance_sums(const RouteInput& input, const at::Tensor& counted,
                         const at::Tensor& scores) {
  const at::Tensor weight = token_weight(input).weight.unsqueeze(1);
  return {(counted * weight).sum(0, /*keepdim=*/false, at::kDouble),
          (scores * weight).sum(0, /*keepdim=*/false, at::kDouble)};
}

}  // namespace

const RouterFunctions& router_functions(const RouterSettings& settings) {
  const auto& families = router_families();
  const auto found =
      std::ranges::find(families, settings.family, [](const auto& family) { return &family; });
  const size_t index = found - families.begin();
  MOE_CHECK(index < all_functions().size(), "router '{}' has no functions", settings.family->name);
  return all_functions()[index];
}

void add_router(RouterFamily family, const RouterFunctions& functions) {
  MOE_CHECK(all_functions().size() == router_families().size(),
            "a family was added without functions: call add_router(), not add_router_family()");
  add_router_family(std::move(family));
  all_functions().push_back(functions);
}

Routing route(const at::Tensor& logits, const RouterSettings& settings, const RoutingGroup& group,
              const at::Tensor& bias) {
  Routing routing;
  {
    const at::NoGradGuard no_grad;
    const RouterFunctions& functions = router_functions(settings);
    routing.input = make_input(logits, functions.scores(logits), settings, group, bias);
    if (use_fused_kernels(logits, settings)) {
      functions.fused_plan(settings, routing);
    } else {
      for (const auto& rule : functions.rules(settings)) {
        routing.plan = rule(routing.input, routing.plan);
      }
      routing.count = multiplicities(routing.input, routing.plan);
      routing.counters = count_plan(routing.input, routing.plan, settings);
    }
  }
  set_gates(routing, logits, settings);
  return routing;
}

Routing recompute_gates(const at::Tensor& logits, const Routing& saved,
                        const RouterSettings& settings) {
  Routing routing = saved;
  set_gates(routing, logits, settings);
  return routing;
}

// ----------------------------------------------------------------------------------------- gates

at::Tensor softmax_scores(const at::Tensor& logits) { return at::softmax(logits, 1); }

at::Tensor multiplicities(const RouteInput& input, const Plan& plan) {
  return at::zeros({input.tokens() * input.experts()}, input.logits.options())
      .scatter_add_(0, matrix_index(input, plan), plan.count.to(input.logits.scalar_type()))
      .view({input.tokens(), input.experts()});
}

at::Tensor softmax_gates(const at::Tensor& logits, const at::Tensor& count, bool normalise,
                         bool straight_through) {
  return SoftmaxGates::apply(logits, count, normalise, straight_through);
}

at::Tensor probability_gates(const at::Tensor& logits, const at::Tensor& count,
                             const RouterSettings& /*settings*/) {
  return softmax_gates(logits, count, /*normalise=*/false, /*straight_through=*/true);
}

at::Tensor row_weights(const at::Tensor& combine, const at::Tensor& count, const RouteInput& input,
                       const Plan& plan) {
  const at::Tensor index = matrix_index(input, plan);
  const at::Tensor share =
      plan.count.to(combine.scalar_type()) / count.reshape(-1).index_select(0, index).clamp_min(1);
  return combine.reshape(-1).index_select(0, index) * share;
}

// ---------------------------------------------------------------------------------------- losses

AuxLosses& AuxLosses::operator+=(const AuxLosses& other) {
  for (const auto loss : kAllLosses) {
    at::Tensor& sum = this->*loss;
    if (const at::Tensor& term = other.*loss; term.defined()) {
      sum = sum.defined() ? sum + term : term;
    }
  }
  return *this;
}

at::Tensor first_choices(const RouteInput& input, int64_t choices) {
  return at::zeros_like(input.logits).scatter_(1, input.experts_by_logit.narrow(1, 0, choices), 1);
}

void add_load_balance_loss(AuxLosses& losses, const at::Tensor& logits, const RouteInput& input,
                           const at::Tensor& counted) {
  if (input.sum_losses) {
    losses.balance = balance_sums(input, counted, at::softmax(logits, 1));
    return;
  }
  const TokenWeight tokens = token_weight(input);
  const at::Tensor coefficient = input.experts() *
                                 rank_fractions(input, counted, tokens.rank_tokens) *
                                 tokens.weight.unsqueeze(1);
  losses.load_balance = (coefficient * at::softmax(logits, 1)).sum();
}

at::Tensor entropy_loss(const at::Tensor& logits, const RouteInput& input) {
  const at::Tensor log_probabilities = at::log_softmax(logits, 1);
  const at::Tensor entropy = -(log_probabilities.exp() * log_probabilities).sum(1);
  return (token_weight(input).weight * entropy).sum();
}

at::Tensor z_loss(const at::Tensor& logits, const RouteInput& input) {
  return (token_weight(input).weight * at::logsumexp(logits, 1).square()).sum();
}

at::Tensor sequence_balance_loss(const at::Tensor& logits, const RouteInput& input,
                                 const at::Tensor& counted) {
  const at::Tensor is_valid = (input.source_rank < input.ranks).to(logits.scalar_type());  // [T]
  const auto sum_by_sequence = [&](const at::Tensor& values) {
    return sum_by_index(input.sequence, input.sequences, values);
  };
  const at::Tensor selections = sum_by_sequence(counted * is_valid.unsqueeze(1));
  const at::Tensor tokens = sum_by_sequence(is_valid);
  const at::Tensor fractions = selections / selections.sum(1, /*keepdim=*/true).clamp_min(1);
  const at::Tensor weight = is_valid / (tokens.index_select(0, input.sequence).clamp_min(1) *
                                        (tokens > 0).sum().clamp_min(1));  // [T]
  const at::Tensor coefficient =
      input.experts() * fractions.index_select(0, input.sequence) * weight.unsqueeze(1);
  return (coefficient * at::softmax(logits, 1)).sum();
}

void add_l1_loss(AuxLosses& losses, const at::Tensor& logits, const RouteInput& input,
                 const at::Tensor& count, const RouterSettings& settings) {
  const at::Tensor active = (count > 0).to(count.scalar_type());
  if (input.sum_losses) {
    losses.balance = balance_sums(input, active, at::relu(logits));
    return;
  }
  const TokenWeight tokens = token_weight(input);
  at::Tensor coefficient = tokens.weight.unsqueeze(1);
  if (settings.l1 == L1Weights::kRefined) {
    coefficient = coefficient * (static_cast<double>(input.experts()) / settings.k) *
                  rank_fractions(input, active, tokens.rank_tokens);
  }
  losses.l1 = (coefficient * at::relu(logits)).sum();
}

at::Tensor balance_factors(const at::Tensor& counted, int64_t tokens,
                           const RouterSettings& settings) {
  const bool is_l1 = settings.family->has_adaptive_l1;
  if (is_l1 && settings.l1 == L1Weights::kPlain) {
    return at::ones_like(counted);
  }
  const auto experts = static_cast<double>(counted.size(-1));
  return counted * (experts / static_cast<double>((is_l1 ? settings.k : 1) * tokens));
}

double next_lambda(double lambda, double sparsity, double target_sparsity, double multiplier) {
  return sparsity < target_sparsity
             ? std::max(lambda, std::min(lambda * multiplier, kLambdaCeiling))
             : std::min(lambda, std::max(lambda / multiplier, kLambdaFloor));
}

void update_bias(at::Tensor bias, const std::vector<int64_t>& requests, double rate) {
  const at::NoGradGuard no_grad;
  const int64_t experts = std::ssize(requests);
  MOE_CHECK(bias.numel() == experts, "a bias of {} experts, requests of {}", bias.numel(), experts);
  const at::Tensor load = at::tensor(requests, at::kLong);
  const at::Tensor deficit = load.sum() - experts * load;  // in integers: E * mean - E * load
  bias += (deficit.sign() * rate).to(bias.options());
}

}  // namespace moe::route
