#include "core/model/llama/weight_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/base/error.h"
#include "kernels/ops/bf16_working_copy.h"

namespace moe::model {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Reallocates the memory of `tensor` for `elements` values; 0 frees it.
void resize_memory(const Tensor& tensor, int64_t elements) {
  c10::StorageImpl& storage =
      *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<size_t>(elements * tensor.element_size());
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

Tensor without_memory(at::IntArrayRef shape, const at::TensorOptions& options) {
  const Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

// The backward of Enter runs after that of the unit: it is the last node to be ready, and autograd
// accumulates gradients of leaves before it runs other ready nodes (finish_backward() checks this).
struct Enter : torch::autograd::Function<Enter> {
  static Tensor forward(AutogradContext* context, const Tensor& x, WeightShards* shards,
                        int64_t unit) {
    context->saved_data["shards"] = reinterpret_cast<int64_t>(shards);
    context->saved_data["unit"] = unit;
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* shards = reinterpret_cast<WeightShards*>(context->saved_data["shards"].toInt());
    const auto unit = context->saved_data["unit"].toInt();
    shards->reduce_gradients(unit);
    shards->release(unit);
    return {gradients[0], Tensor(), Tensor()};
  }
};

// The backward of Leave runs before that of the unit.
struct Leave : torch::autograd::Function<Leave> {
  static variable_list forward(AutogradContext* context, at::TensorList outputs,
                               WeightShards* shards, int64_t unit, int64_t previous) {
    context->set_materialize_grads(false);  // an unused loss has no backward
    context->saved_data["shards"] = reinterpret_cast<int64_t>(shards);
    context->saved_data["unit"] = unit;
    context->saved_data["previous"] = previous;
    return outputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* shards = reinterpret_cast<WeightShards*>(context->saved_data["shards"].toInt());
    shards->begin_backward(context->saved_data["unit"].toInt(),
                           context->saved_data["previous"].toInt());
    gradients.resize(gradients.size() + 3);
    return gradients;
  }
};

}  // namespace

WeightShards::WeightShards(distributed::Comm& ranks, at::Device device, size_t units)
    : ranks_(ranks), options_(at::TensorOptions(device).dtype(at::kFloat)), units_(units) {}

Tensor WeightShards::add(size_t unit, at::IntArrayRef shape) {
  const distributed::Part part(c10::multiply_integers(shape), ranks_);
  const Tensor whole = without_memory(shape, options_);
  const Tensor padded = at::zeros({part.length}, options_);
  weights_.push_back({whole, part, padded, padded.narrow(0, 0, part.size()), whole});
  units_.at(unit).weights.push_back(&weights_.back());
  return whole;
}

void WeightShards::gather_in_bf16(size_t unit) {
  for (ShardedWeight* weight : units_.at(unit).weights) {
    weight->gathered = without_memory(weight->whole.sizes(), options_.dtype(at::kBFloat16));
    kernels::set_bf16_working_copy(weight->whole, weight->gathered);
  }
}

const ShardedWeight* WeightShards::find(const Tensor& whole) const {
  const auto weight =
      std::ranges::find_if(weights_, [&](const auto& entry) { return entry.whole.is_same(whole); });
  return weight == weights_.end() ? nullptr : &*weight;
}

void WeightShards::start(size_t number) {
  Unit& unit = units_.at(number);
  if (unit.state != State::kReleased) {
    return;
  }
  const at::NoGradGuard no_gradients;
  for (ShardedWeight* weight : unit.weights) {
    const int64_t elements = weight->part.length * ranks_.size();
    resize_memory(weight->gathered, elements);
    weight->sent = weight->padded.to(weight->gathered.scalar_type());
    // A flat alias with its own version counter: otherwise autograd would report a modification
    // between forward and backward.
    const Tensor memory = at::empty({0}, weight->gathered.options());
    memory.set_(weight->gathered.unsafeGetTensorImpl()->unsafe_storage(), 0, {elements}, {1});
    unit.transfers.push_back(ranks_.start_all_gather(weight->sent, memory));
  }
  unit.state = State::kGathering;
}

void WeightShards::gather(size_t number) {
  RECORD_USER_SCOPE("gather weights");
  start(number);
  Unit& unit = units_[number];
  for (const auto& transfer : unit.transfers) {
    transfer.wait();
  }
  unit.transfers.clear();
  for (ShardedWeight* weight : unit.weights) {
    weight->sent = Tensor();
  }
  unit.state = State::kGathered;
}

void WeightShards::release(size_t number) {
  Unit& unit = units_.at(number);
  if (unit.state == State::kGathering) {
    gather(number);
  }
  if (unit.state == State::kGathered) {
    for (const ShardedWeight* weight : unit.weights) {
      resize_memory(weight->gathered, 0);
    }
  }
  unit.state = State::kReleased;
}

Tensor WeightShards::gather_values(const Tensor& whole) const {
  const ShardedWeight* weight = find(whole);
  MOE_CHECK(weight != nullptr);
  const at::NoGradGuard no_gradients;
  const Tensor all = at::empty({weight->part.length * ranks_.size()}, options_);
  ranks_.all_gather(weight->padded, all);
  return all.narrow(0, 0, whole.numel()).view(whole.sizes());
}

Tensor WeightShards::enter(size_t unit, const Tensor& x, int64_t next) {
  gather(unit);
  if (next >= 0) {
    start(next);
  }
  const bool has_backward = at::GradMode::is_enabled() && x.requires_grad();
  return has_backward ? Enter::apply(x, this, static_cast<int64_t>(unit)) : x;
}

void WeightShards::leave(size_t unit, const std::vector<Tensor*>& outputs, int64_t previous) {
  std::vector<Tensor*> with_gradient;
  std::vector<Tensor> values;
  for (Tensor* output : outputs) {
    if (at::GradMode::is_enabled() && output->defined() && output->requires_grad()) {
      with_gradient.push_back(output);
      values.push_back(*output);
    }
  }
  if (!values.empty()) {
    const auto left =
        Leave::apply(at::TensorList(values), this, static_cast<int64_t>(unit), previous);
    for (size_t i = 0; i < left.size(); ++i) {
      *with_gradient[i] = left[i];
    }
  }
  release(unit);
}

void WeightShards::expect_gradients(size_t unit) {
  units_.at(unit).is_reduced = !at::GradMode::is_enabled();
}

void WeightShards::begin_backward(size_t unit, int64_t previous) {
  gather(unit);
  units_[unit].is_reduced = false;
  if (previous >= 0) {
    start(previous);
  }
}

void WeightShards::reduce_gradients(size_t number) {
  RECORD_USER_SCOPE("reduce gradients");
  const at::NoGradGuard no_gradients;
  Unit& unit = units_.at(number);
  for (ShardedWeight* weight : unit.weights) {
    if (!weight->whole.requires_grad()) {
      continue;
    }
    Tensor& own = weight->whole.mutable_grad();
    Tensor& sum = weight->shard.mutable_grad();
    weight->had_gradient = own.defined() || (sum.defined() && weight->had_gradient);
    const int64_t elements = weight->whole.numel(), all = weight->part.length * ranks_.size();
    Tensor flat = own.defined() ? own.contiguous().view({-1}) : at::zeros({elements}, options_);
    own = Tensor();
    flat = all == elements ? flat : at::constant_pad_nd(flat, {0, all - elements});
    const Tensor part = at::empty({weight->part.length}, options_);
    ranks_.reduce_scatter(flat, part);
    const Tensor new_sum = part.narrow(0, 0, weight->part.size());
    sum = sum.defined() ? sum.add_(new_sum) : new_sum;
  }
  unit.is_reduced = true;
}

void WeightShards::finish_backward() {
  std::vector<double> had_gradient;
  for (size_t number = units_.size(); number-- > 0;) {
    if (!units_[number].is_reduced) {
      reduce_gradients(number);
    }
    release(number);
  }
  for (const auto& weight : weights_) {
    MOE_CHECK(!weight.whole.grad().defined(),
              "a gradient was added outside of the backward of its unit");
    had_gradient.push_back(weight.had_gradient ? 1 : 0);
  }
  had_gradient = distributed::sum_numbers(ranks_, had_gradient);
  size_t index = 0;
  for (const auto& weight : weights_) {
    if (had_gradient[index++] == 0) {
      weight.shard.mutable_grad() = Tensor();
    }
  }
}

}  // namespace moe::model
