#include "core/train/loop/micro_batch_graphs.h"

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"
#include "core/model/llama/gpu_attention.h"
#include "core/route/route.h"
#include "core/train/loop/head_loss.h"
#include "kernels/ops/permute.h"

namespace moe::train {

using at::Tensor;

namespace {

// Of a replay, whose memory the next one writes.
std::vector<route::Counters> copies_of(std::vector<route::Counters> counters) {
  for (route::Counters& of_layer : counters) {
    for (Tensor* counted :
         {&of_layer.tokens_per_expert, &of_layer.counted, &of_layer.requests_per_expert}) {
      *counted = counted->defined() ? counted->clone() : Tensor();
    }
  }
  return counters;
}

route::AuxLosses copies_of(const route::AuxLosses& losses) {
  route::AuxLosses copies;
  for (const auto loss : route::kAllLosses) {
    copies.*loss = (losses.*loss).defined() ? (losses.*loss).detach().clone() : Tensor();
  }
  return copies;
}

}  // namespace

void check_graph(bool on_cuda, const model::ComputeOptions& compute,
                 const route::RouterSettings* router, int64_t experts) {
  if (!on_cuda || compute.precision != model::Precision::kBf16) {
    throw UserError(
        "--graph records the launches of a GPU's products in bf16; give --device cuda and "
        "--precision bf16, or leave --graph out");
  }
  if (router == nullptr) {
    return;
  }
  if (!route::has_kernel_plan(*router, experts) || experts > kernels::kMaxSegmentExperts) {
    throw UserError(
        "--graph records launches that never wait for the host, and {} over {} experts is planned "
        "by operations that do; leave --graph out",
        route::to_string(*router), experts);
  }
  if (compute.grouped_gemm == kernels::GroupedGemm::kLoop) {
    throw UserError(
        "--graph records launches that never wait for the host, and --expert-products loop waits "
        "for the tokens per expert; leave one of them out");
  }
}

MicroBatchGraphs::MicroBatchGraphs(const model::Llama& model,
                                   std::vector<model::NamedParameter> trained, bool several)
    : model_(model), several_(several) {
  for (auto& parameter : trained) {
    if (parameter.name == "lm_head") {  // whose gradient no graph writes
      continue;
    }
    if (parameter.name == "model.embed_tokens" && model.config().tie_word_embeddings) {
      tied_ = parameter.tensor;
      tied_gradient_ = at::zeros_like(tied_.detach());
      continue;
    }
    written_.push_back(std::move(parameter));
  }
  gradients_.resize(written_.size());
}

void MicroBatchGraphs::clear_gradients() {
  for (size_t i = 0; i < written_.size(); ++i) {
    written_[i].tensor.mutable_grad() = gradients_[i] = Tensor();
  }
}

void MicroBatchGraphs::clear_tied_gradient() {
  if (tied_.defined()) {
    tied_gradient_.zero_();
    tied_.mutable_grad() = tied_gradient_;
  }
}

void MicroBatchGraphs::forward(Recorded& recorded, const model::RoutingOptions& routing,
                               const MicroBatchScale& scale) const {
  recorded.result = model_.forward({ids_, lengths_, {}, tables_}, routing);
  recorded.auxiliary = weighted_sum(recorded.result.losses, scale);
}

void MicroBatchGraphs::backward(const Recorded& recorded, bool is_first) {
  if (is_first) {
    clear_gradients();
  }
  backward_from(recorded.result.hidden, hidden_gradient_, recorded.auxiliary, /*joins=*/false);
  for (size_t i = 0; i < written_.size(); ++i) {
    gradients_[i] = written_[i].tensor.grad();
  }
}

// Recording runs them, so that gradients are left which mean nothing; a replay of the first one
// writes them anew.
void MicroBatchGraphs::record(const data::Batch& batch, const model::RoutingOptions& routing,
                              const MicroBatchScale& scale) {
  const auto device = model_.device();
  const auto tokens = static_cast<int64_t>(batch.ids.size());
  lengths_ = batch.lengths;
  coefficients_ = scale.coefficients;
  batch_share_ = scale.batch_share;
  if (auto made =
          model::pack_tables(lengths_, model_.config(), device, model_.compute().attention)) {
    tables_ = std::make_shared<const model::PackTables>(std::move(*made));
  }
  MOE_CHECK(tables_ != nullptr, "rows of one length have one table of rotations");
  ids_ = at::tensor(batch.ids, at::kLong).to(device);
  hidden_gradient_ = at::zeros({tokens, model_.config().hidden_size},
                               at::TensorOptions(at::kFloat).device(device));
  clear_tied_gradient();
  recorded_.resize(several_ ? 2 : 1);
  std::vector<std::function<void()>> works;
  for (Recorded& recorded : recorded_) {
    const bool is_first = &recorded == recorded_.data();
    works.emplace_back([this, &recorded, routing, scale] { forward(recorded, routing, scale); });
    works.emplace_back([this, &recorded, is_first] { backward(recorded, is_first); });
  }
  auto graphs = kernels::record_graphs(works, device, [this] { clear_gradients(); });
  for (size_t i = 0; i < recorded_.size(); ++i) {
    recorded_[i].forward = std::move(graphs[2 * i]);
    recorded_[i].backward = std::move(graphs[2 * i + 1]);
  }
}

MicroBatchResult MicroBatchGraphs::run(const data::Batch& batch,
                                       const model::RoutingOptions& routing,
                                       const MicroBatchScale& scale, bool is_first) {
  if (recorded_.empty()) {
    record(batch, routing, scale);
  }
  MOE_CHECK(batch.lengths == lengths_ && scale.coefficients == coefficients_ &&
                scale.batch_share == batch_share_ && (is_first || several_),
            "a micro-batch of another form than the recorded one");
  if (is_first) {
    clear_tied_gradient();
  }
  Recorded& recorded = recorded_[is_first ? 0 : 1];
  ids_.copy_(at::tensor(batch.ids, at::kLong));
  recorded.forward->replay();
  HeadLoss language;
  model_.with_head([&](const Tensor& weight) {
    language = head_loss(weight, recorded.result.hidden.detach(), batch.targets, scale.target_share,
                         model_.product_type());
  });
  {
    const at::NoGradGuard no_gradients;
    hidden_gradient_.zero_().index_copy_(0, language.rows, language.gradient);
  }
  recorded.backward->replay();
  for (size_t i = 0; i < written_.size(); ++i) {
    written_[i].tensor.mutable_grad() = gradients_[i];
  }
  return {language.nll_sum, copies_of(recorded.result.losses), copies_of(recorded.result.counters)};
}

}  // namespace moe::train
