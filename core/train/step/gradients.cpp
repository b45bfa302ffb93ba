#include "core/train/step/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

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

// Results on the device of the model, not synchronized.
struct MicroBatchResult {
  Tensor nll_sum;           // [] f64
  route::AuxLosses losses;  // without gradients
  std::vector<route::Counters> counters;
};

// Returns the sum of coefficient * loss over the losses with a gradient; undefined if none has.
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

// Runs backward from the gradient of `hidden` and, if defined, from `auxiliary`. With `joins`, runs
// it even if `hidden` has no rows, because other processes wait in the collectives of backward.
void backward_from(const Tensor& hidden, const Tensor& gradient, const Tensor& auxiliary,
                   bool joins) {
  std::vector<Tensor> roots, gradients;
  if ((joins || hidden.size(0) > 0) && hidden.requires_grad()) {
    roots.push_back(hidden);
    gradients.push_back(gradient);
  }
  if (auxiliary.defined()) {
    roots.push_back(auxiliary);
    gradients.push_back(at::ones_like(auxiliary));
  }
  if (!roots.empty()) {
    torch::autograd::backward(roots, gradients);
  }
}

// Adds the gradient of target_share * NLL + coefficients * losses of `batch` to the model's
// parameters. `joins`: see backward_from().
MicroBatchResult add_micro_batch(const model::Llama& model, const data::Batch& batch,
                                 const model::RoutingOptions& routing, double target_share,
                                 const AuxCoefficients& coefficients, bool joins) {
  auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing);
  HeadLoss language;
  model.with_head([&](const Tensor& weight) {
    language = head_loss(weight, result.hidden, batch.targets, target_share, model.product_type());
  });
  backward_from(language.hidden, language.gradient, weighted_sum(result.losses, coefficients),
                joins);
  model.finish_backward();
  return {language.nll_sum, result.losses, std::move(result.counters)};
}

// Copies the f64 scalars that are defined to the host in one transfer.
void bring_to_host(std::vector<Tensor*> scalars) {
  std::erase_if(scalars, [](const Tensor* scalar) { return !scalar->defined(); });
  if (scalars.empty()) {
    return;
  }
  std::vector<Tensor> all;
  for (const Tensor* scalar : scalars) {
    all.push_back(*scalar);
  }
  const Tensor host = at::stack(all).cpu();
  for (size_t i = 0; i < scalars.size(); ++i) {
    *scalars[i] = host[static_cast<int64_t>(i)];
  }
}

// Sums the auxiliary losses over ranks. A loss is unset if no rank has it.
void sum_over_ranks(StepLosses& step, distributed::Comm& comm) {
  std::vector<double> sums;
  for (const auto loss : StepLosses::members()) {
    sums.push_back((step.*loss).value_or(0));
    sums.push_back((step.*loss).has_value() ? 1 : 0);
  }
  sums = distributed::sum_numbers(comm, sums);
  auto sum = sums.begin();
  for (const auto loss : StepLosses::members()) {
    const double total = *sum++, ranks = *sum++;
    step.*loss = ranks > 0 ? std::optional(total) : std::nullopt;
  }
}

// Part of a step that one process computes.
struct Share {
  std::vector<data::Batch> batches;
  std::vector<size_t> numbers;  // indices of their micro-batches
};

Share local_share(const std::vector<data::Batch>& micro_batches, const distributed::World* world) {
  Share share;
  const distributed::Layout layout = world == nullptr ? distributed::Layout() : world->layout;
  for (size_t number = 0; number < micro_batches.size(); ++number) {
    if (static_cast<int64_t>(number) % layout.replicas != layout.replica()) {
      continue;
    }
    const data::Batch& batch = micro_batches[number];
    const auto rows = std::ssize(batch.rows);
    share.batches.push_back(world == nullptr
                                ? batch
                                : data::rows_of(batch, layout.first_row(rows, layout.ep_rank()),
                                                layout.first_row(rows, layout.ep_rank() + 1)));
    share.numbers.push_back(number);
  }
  return share;
}

// Returns the counters of all processes, by micro-batch and layer. `own`: those of `share.numbers`.
std::vector<route::CounterValues> gather_counters(const std::vector<route::CounterValues>& own,
                                                  const Share& share, size_t micro_batches,
                                                  const model::ModelConfig& config,
                                                  const model::RoutingOptions& routing,
                                                  distributed::World* world) {
  if (world == nullptr || !config.moe) {
    return own;
  }
  const size_t layers = config.moe->layers.size();
  const int64_t experts = config.moe->experts, ranks = routing.ep_ranks;
  route::CounterValues none;
  none.tokens_per_expert.resize(experts);
  none.requests_per_expert.resize(routing.router.bias_rate ? experts : 0);
  none.rank_dropped.resize(ranks);
  none.rank_ir.resize(ranks);
  const size_t length = route::pack_counters(none).size();
  std::vector<double> all(micro_batches * layers * length);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto numbers = route::pack_counters(own[i]);
    const size_t index = share.numbers[i / layers] * layers + i % layers;
    std::copy(numbers.begin(), numbers.end(), all.begin() + index * length);
  }
  all = distributed::sum_numbers(world->all, all);
  std::vector<route::CounterValues> whole;
  for (auto next = all.begin(); next != all.end(); next += length) {
    whole.push_back(route::unpack_counters({next, next + length}, experts, ranks));
  }
  return whole;
}

// Sums the counters over micro-batches. `all` has the order of gather_counters().
void add_counters(const std::vector<route::CounterValues>& all, size_t micro_batches,
                  StepLosses& step) {
  const size_t layers = all.size() / micro_batches;
  step.layers.resize(layers);
  for (size_t i = 0; i < all.size(); ++i) {
    step.layers[i % layers].add(all[i]);
    step.sparsity += all[i].sparsity() / all.size();
  }
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
  // Its backward is parallel on the CPU; that of index_select is not.
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
  const bool in_bf16 = type == at::kBFloat16;
  const Tensor left = loss.hidden.to(type);
  const Tensor losses = at::empty({count}, hidden.options().dtype(at::kDouble));
  for (int64_t start = 0; start < count; start += block_rows) {
    const int64_t length = std::min(block_rows, count - start);
    const Tensor block = left.narrow(0, start, length);
    Tensor logits = at::empty({length, weight.size(0)}, hidden.options().dtype(sum_type));
    kernels::matmul_out(logits, block, head.t(), type);
    const Tensor gradient = kernels::cross_entropy_(logits, target.narrow(0, start, length), scale,
                                                    losses.narrow(0, start, length), in_bf16);
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
  const double batch_share = 1.0 / micro_batches.size();
  AuxCoefficients batch_coefficients = coefficients;
  for (const auto coefficient : AuxCoefficients::members()) {
    batch_coefficients.*coefficient *= batch_share;
  }
  model::RoutingOptions options = routing;
  options.compute_z_loss = coefficients.z != 0;
  options.compute_sequence_balance = coefficients.sequence_balance != 0;
  const Share share = local_share(micro_batches, world);
  const bool joins = (world != nullptr && world->layout.group() > 1) || model.is_sharded();
  route::AuxLosses means;  // over micro-batches, f64
  std::vector<route::Counters> counters;
  std::vector<Tensor> nll_sums;  // per micro-batch
  for (const auto& batch : share.batches) {
    MicroBatchResult result =
        add_micro_batch(model, batch, options, target_share, batch_coefficients, joins);
    nll_sums.push_back(result.nll_sum);
    for (const auto loss : route::kAllLosses) {
      if (Tensor& value = result.losses.*loss; value.defined()) {
        value = value.detach().to(at::kDouble) * batch_share;
      }
    }
    means += result.losses;
    counters.insert(counters.end(), result.counters.begin(), result.counters.end());
  }
  std::vector<Tensor*> scalars;
  for (const auto loss : route::kAllLosses) {
    scalars.push_back(&(means.*loss));
  }
  for (Tensor& sum : nll_sums) {
    scalars.push_back(&sum);
  }
  bring_to_host(scalars);
  for (const Tensor& sum : nll_sums) {
    step.loss += sum.item<double>() * target_share;
  }
  for (size_t i = 0; i < route::kAllLosses.size(); ++i) {
    if (const Tensor& mean = means.*route::kAllLosses[i]; mean.defined()) {
      step.*StepLosses::members()[i] = mean.item<double>();
    }
  }
  if (world != nullptr) {
    step.loss = distributed::sum_numbers(world->all, {step.loss}).front();
    sum_over_ranks(step, world->all);
  }
  const auto routed = gather_counters(route::read_counters(counters), share, micro_batches.size(),
                                      model.config(), routing, world);
  if (!routed.empty()) {
    add_counters(routed, micro_batches.size(), step);
  }
  return step;
}

}  // namespace moe::train
