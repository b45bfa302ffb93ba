#include "core/train/step/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/data/examples.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/device.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/permutation.h"

namespace moe::train {
namespace {

using at::Tensor;

// Computes weight.grad += left^T right, in f32.
void add_to_gradient(const Tensor& weight, const Tensor& left, const Tensor& right,
                     at::ScalarType type) {
  Tensor& gradient = weight.mutable_grad();
  const bool is_new = !gradient.defined();
  if (is_new) {
    gradient = at::empty_like(weight, at::MemoryFormat::Contiguous);
  }
  kernels::matmul_out(gradient, left.t(), right, type, !is_new);
}

// Results of a micro-batch on the device of the model, not synchronized.
struct MicroBatchResult {
  Tensor nll_sum;           // [] f64
  route::AuxLosses losses;  // without gradients
  std::vector<route::Counters> counters;
};

// Returns the sum of coefficient * loss over the losses with a gradient; undefined if there is
// none.
Tensor weighted_sum(const route::AuxLosses& losses, const AuxCoefficients& coefficients) {
  Tensor sum;
  for (size_t i = 0; i < route::kAllLosses.size(); ++i) {
    const Tensor& loss = losses.*route::kAllLosses[i];
    const double coefficient = coefficients.*AuxCoefficients::members()[i];
    if (loss.defined() && loss.requires_grad() && coefficient != 0) {
      sum = sum.defined() ? sum + loss * coefficient : loss * coefficient;
    }
  }
  return sum;
}

Tensor stack_layers(const std::vector<route::BalanceSums>& layers,
                    Tensor route::BalanceSums::*sums) {
  MOE_CHECK(!layers.empty(), "the router has no sums for a balance loss (route/route.h)");
  std::vector<Tensor> all;
  for (const auto& layer : layers) {
    all.push_back(layer.*sums);
  }
  return at::stack(all);  // [L, E]
}

// Balance losses of groups of tokens that are larger than a rank (route::LossGroup). f of the
// group, a constant of the loss, is complete before the backward of its first micro-batch.
class GroupedBalance {
 public:
  GroupedBalance(const model::RoutingOptions& routing, distributed::World* world)
      : routing_(routing), world_(world) {}

  // Adds the counts of all `batches` but the first, whose forward is the next. Required by kGlobal.
  void count_ahead(const model::Llama& model, const std::vector<data::Batch>& batches) {
    const at::NoGradGuard no_gradients;
    for (size_t i = 1; i < batches.size(); ++i) {
      const data::Batch& batch = batches[i];
      add(model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing_).balance);
    }
  }

  // Sets the balance loss of a micro-batch to its share in the sum over the tokens of the group.
  // `group_tokens`: tokens of the group up to this micro-batch, on all processes.
  void add_loss(const std::vector<route::BalanceSums>& layers, int64_t group_tokens,
                route::AuxLosses& losses) {
    const bool is_complete = routing_.loss_group == route::LossGroup::kGlobal && factors_.defined();
    if (!is_complete) {
      if (routing_.loss_group == route::LossGroup::kMicro) {
        counted_ = Tensor();
      }
      add(layers);
      Tensor counted = counted_.clone();
      if (world_ != nullptr) {
        (routing_.loss_group == route::LossGroup::kMicro ? *world_->group : world_->all)
            .all_reduce(counted);
      }
      factors_ = route::balance_factors(counted, group_tokens, routing_.router);
    }
    const bool is_l1 = routing_.router.family->has_adaptive_l1;
    losses.*(is_l1 ? &route::AuxLosses::l1 : &route::AuxLosses::load_balance) =
        (factors_ * stack_layers(layers, &route::BalanceSums::scores)).sum();
  }

 private:
  void add(const std::vector<route::BalanceSums>& layers) {
    const Tensor counted = stack_layers(layers, &route::BalanceSums::counted);
    counted_ = counted_.defined() ? counted_ + counted : counted;
  }

  const model::RoutingOptions& routing_;
  distributed::World* world_;
  Tensor counted_;  // [L, E] f64, of this process
  Tensor factors_;  // [L, E] f64
};

// Shares of a micro-batch in the losses of a step.
struct MicroBatchShare {
  double targets = 0;                 // factor of the NLL
  PerAuxLoss<double> auxiliary = {};  // factors of the auxiliary losses
  AuxCoefficients coefficients = {};  // the same times the coefficients
  int64_t group_tokens = 0;           // GroupedBalance::add_loss()
};

// Adds the gradient of targets * NLL + coefficients * losses of `batch` to the model's parameters.
// With `joins`, runs backward even if there are no targets, because other processes wait in its
// collectives.
MicroBatchResult add_micro_batch(const model::Llama& model, const data::Batch& batch,
                                 const model::RoutingOptions& routing, const MicroBatchShare& share,
                                 GroupedBalance& balance, bool joins) {
  auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing);
  if (routing.loss_group != route::LossGroup::kRank && model.config().moe) {
    balance.add_loss(result.balance, share.group_tokens, result.losses);
  }
  HeadLoss language;
  model.with_head([&](const Tensor& weight) {
    language = head_loss(weight, result.hidden, batch.targets, share.targets, model.product_type());
  });
  std::vector<Tensor> roots, gradients;
  if ((joins || language.hidden.size(0) > 0) && language.hidden.requires_grad()) {
    roots.push_back(language.hidden);
    gradients.push_back(language.gradient);
  }
  if (const Tensor sum = weighted_sum(result.losses, share.coefficients); sum.defined()) {
    roots.push_back(sum);
    gradients.push_back(at::ones_like(sum));
  }
  if (!roots.empty()) {
    torch::autograd::backward(roots, gradients);
  }
  model.finish_backward();
  return {language.nll_sum, result.losses, std::move(result.counters)};
}

// Sums the losses over ranks. An auxiliary loss is unset if no rank has it.
void sum_over_ranks(StepLosses& step, distributed::Comm& comm) {
  std::vector<double> sums = {step.loss};
  for (const auto loss : StepLosses::members()) {
    sums.push_back((step.*loss).value_or(0));
    sums.push_back((step.*loss).has_value() ? 1 : 0);
  }
  sums = distributed::sum_numbers(comm, sums);
  auto sum = sums.begin();
  step.loss = *sum++;
  for (const auto loss : StepLosses::members()) {
    const double total = *sum++, ranks = *sum++;
    step.*loss = ranks > 0 ? std::optional(total) : std::nullopt;
  }
}

// Returns the batches that this process computes: its rows of the micro-batches that its replica
// computes, which are every `replicas`-th.
std::vector<data::Batch> local_share(const std::vector<data::Batch>& micro_batches,
                                     const distributed::World* world) {
  if (world == nullptr) {
    return micro_batches;
  }
  std::vector<data::Batch> share;
  const distributed::Layout& layout = world->layout;
  for (size_t i = layout.replica(); i < micro_batches.size(); i += layout.replicas) {
    const auto rows = std::ssize(micro_batches[i].rows);
    share.push_back(data::rows_of(micro_batches[i], layout.first_row(rows, layout.ep_rank()),
                                  layout.first_row(rows, layout.ep_rank() + 1)));
  }
  return share;
}

// Sets the shares of micro-batch `round` of a replica in the auxiliary losses.
void set_auxiliary(const std::vector<data::Batch>& micro_batches, size_t round,
                   route::LossGroup group, const distributed::World* world,
                   const AuxCoefficients& coefficients, MicroBatchShare& share) {
  const auto tokens = [&](size_t first, size_t end) {
    return std::accumulate(
        micro_batches.begin() + first, micro_batches.begin() + end, int64_t{0},
        [](int64_t sum, const data::Batch& batch) { return sum + std::ssize(batch.ids); });
  };
  const size_t all = micro_batches.size();
  const size_t replicas = world == nullptr ? 1 : world->layout.replicas;
  const double batch_share = 1.0 / all;
  double factor = batch_share;
  if (group == route::LossGroup::kMicro) {
    const size_t number = round * replicas + (world == nullptr ? 0 : world->layout.replica());
    share.group_tokens = tokens(number, number + 1);
    factor /= share.group_tokens;
  } else if (group != route::LossGroup::kRank) {
    share.group_tokens =
        tokens(0, group == route::LossGroup::kGlobal ? all : (round + 1) * replicas);
    factor = 1.0 / tokens(0, all);
  }
  for (const auto loss : AuxCoefficients::members()) {
    share.auxiliary.*loss = loss == &AuxCoefficients::sequence_balance ? batch_share : factor;
    share.coefficients.*loss = coefficients.*loss * share.auxiliary.*loss;
  }
}

// Returns the counters of all processes, by micro-batch and layer. `own`: those of local_share().
std::vector<route::CounterValues> gather_counters(const std::vector<route::CounterValues>& own,
                                                  size_t micro_batches,
                                                  const model::ModelConfig& config,
                                                  const model::RoutingOptions& routing,
                                                  distributed::World* world) {
  if (world == nullptr || !config.moe) {
    return own;
  }
  const size_t layers = config.moe->layers.size();
  const size_t length = route::pack_counters(own.at(0)).size();  // every process has a micro-batch
  std::vector<double> all(micro_batches * layers * length);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto numbers = route::pack_counters(own[i]);
    const size_t micro_batch = world->layout.replica() + i / layers * world->layout.replicas;
    const size_t index = micro_batch * layers + i % layers;
    std::copy(numbers.begin(), numbers.end(), all.begin() + index * length);
  }
  all = distributed::sum_numbers(world->all, all);
  std::vector<route::CounterValues> whole;
  for (auto next = all.begin(); next != all.end(); next += length) {
    whole.push_back(
        route::unpack_counters({next, next + length}, config.moe->experts, routing.ep_ranks));
  }
  return whole;
}

}  // namespace

int64_t head_block_rows(int64_t vocabulary, bool on_cuda) {
  constexpr int64_t kCpuLogits = int64_t{1} << 24, kGpuRows = 4096;
  return on_cuda ? kGpuRows : std::max<int64_t>(1, kCpuLogits / vocabulary);
}

HeadLoss head_loss(const Tensor& weight, const Tensor& hidden, const std::vector<int64_t>& targets,
                   double scale, at::ScalarType type, std::optional<int64_t> given_rows) {
  RECORD_USER_SCOPE("head");
  MOE_CHECK(hidden.size(0) == std::ssize(targets));
  std::vector<int64_t> rows, target_ids;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] != data::kNoLoss) {
      rows.push_back(static_cast<int64_t>(t));
      target_ids.push_back(targets[t]);
    }
  }
  HeadLoss loss;
  const Tensor index = at::tensor(rows, at::kLong).to(hidden.device());
  // Unlike index_select, permute() has a parallel backward on the CPU.
  loss.hidden = kernels::permute(hidden, kernels::make_permutation(index, hidden.size(0)));

  const at::NoGradGuard no_gradients;
  loss.gradient = at::empty_like(loss.hidden, at::MemoryFormat::Contiguous);
  const Tensor target = at::tensor(target_ids, at::kLong).to(hidden.device());  // [N]
  const auto sum_type = type == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor head = kernels::weight_operand(weight, type);
  const auto count = std::ssize(rows);
  const int64_t block_rows = given_rows.value_or(
      head_block_rows(weight.size(0), kernels::device_traits(hidden.device()).has_streams));
  // In bf16 the rows and the gradient of the logits are rounded once, for both products.
  const bool is_bf16 = type == at::kBFloat16;
  const Tensor operand = loss.hidden.to(type);
  const Tensor losses = at::empty({count}, hidden.options().dtype(at::kDouble));
  for (int64_t start = 0; start < count; start += block_rows) {
    const int64_t length = std::min(block_rows, count - start);
    const Tensor block = operand.narrow(0, start, length);
    Tensor logits = at::empty({length, weight.size(0)}, hidden.options().dtype(sum_type));
    kernels::matmul_out(logits, block, head.t(), type);
    const Tensor gradient = kernels::cross_entropy_(logits, target.narrow(0, start, length), scale,
                                                    losses.narrow(0, start, length), is_bf16);
    Tensor hidden_gradient = loss.gradient.narrow(0, start, length);
    kernels::matmul_out(hidden_gradient, gradient, head, type);
    if (weight.requires_grad()) {
      add_to_gradient(weight, gradient, block, type);
    }
  }
  loss.nll_sum = losses.sum();
  return loss;
}

StepLosses add_gradients(const model::Llama& model, const std::vector<data::Batch>& micro_batches,
                         const model::RoutingOptions& routing, const AuxCoefficients& coefficients,
                         distributed::World* world) {
  StepLosses step;
  for (const auto& batch : micro_batches) {
    step.tokens += std::ssize(batch.ids);
    step.target_tokens += batch.target_count;
  }
  const double target_share = 1.0 / std::max<int64_t>(1, step.target_tokens);
  model::RoutingOptions options = routing;
  options.compute_z_loss = coefficients.z != 0;
  options.compute_sequence_balance = coefficients.sequence_balance != 0;
  const bool joins = (world != nullptr && world->layout.group() > 1) || model.is_sharded();
  route::AuxLosses means;  // over micro-batches, f64
  std::vector<route::Counters> counters;
  std::vector<Tensor> nll_sums;  // per micro-batch
  const bool has_balance = coefficients.load_balance != 0 || coefficients.l1 != 0;
  if (options.loss_group == route::LossGroup::kGlobal && !has_balance) {
    options.loss_group = route::LossGroup::kRunning;  // without a gradient of f
  }
  const std::vector<data::Batch> batches = local_share(micro_batches, world);
  GroupedBalance balance(options, world);
  if (options.loss_group == route::LossGroup::kGlobal && model.config().moe) {
    balance.count_ahead(model, batches);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    MicroBatchShare share{.targets = target_share};
    set_auxiliary(micro_batches, i, options.loss_group, world, coefficients, share);
    MicroBatchResult result = add_micro_batch(model, batches[i], options, share, balance, joins);
    nll_sums.push_back(result.nll_sum);
    for (size_t loss = 0; loss < route::kAllLosses.size(); ++loss) {
      if (Tensor& value = result.losses.*route::kAllLosses[loss]; value.defined()) {
        value =
            value.detach().to(at::kDouble) * (share.auxiliary.*AuxCoefficients::members()[loss]);
      }
    }
    means += result.losses;
    counters.insert(counters.end(), result.counters.begin(), result.counters.end());
  }
  std::vector<Tensor> scalars = nll_sums;  // copied to the host in one transfer
  for (const auto loss : route::kAllLosses) {
    if ((means.*loss).defined()) {
      scalars.push_back(means.*loss);
    }
  }
  const Tensor values = scalars.empty() ? Tensor() : at::stack(scalars).cpu();
  int64_t next = 0;
  for (; next < std::ssize(nll_sums); ++next) {
    step.loss += values[next].item<double>() * target_share;
  }
  for (size_t i = 0; i < route::kAllLosses.size(); ++i) {
    if ((means.*route::kAllLosses[i]).defined()) {
      step.*StepLosses::members()[i] = values[next++].item<double>();
    }
  }
  if (world != nullptr) {
    sum_over_ranks(step, world->all);
  }
  const auto routed = gather_counters(route::read_counters(counters), micro_batches.size(),
                                      model.config(), routing, world);
  const size_t layers = routed.size() / std::max<size_t>(1, micro_batches.size());
  step.layers.resize(layers);
  for (size_t i = 0; i < routed.size(); ++i) {
    step.layers[i % layers].add(routed[i]);
    step.sparsity += routed[i].sparsity() / routed.size();
  }
  return step;
}

}  // namespace moe::train
