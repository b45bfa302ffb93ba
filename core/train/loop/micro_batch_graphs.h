#pragma once
// The forward and the backward of a micro-batch as CUDA graphs (kernels/ops/graph.h): what they
// launch is recorded once and replayed for each, with the same numbers. Between them, launch by
// launch, is the head, which takes as many rows as there are targets, and behind them the update
// (graph.h says why).
//
// A step's first micro-batch leaves gradients where there were none, later ones add to them: two
// graphs each way. The gradients stay in the memory in which they were recorded.
//
// What can be recorded never waits for the host and has one form: a micro-batch's tokens differ,
// their number and the lengths of their sequences do not; routers are planned by our kernels
// (route::has_kernel_plan), products are in bf16, experts are those of one process.

#include <memory>
#include <vector>

#include "core/train/loop/micro_batch.h"
#include "kernels/ops/graph.h"

namespace moe::train {

// UserError where a run cannot be recorded, whatever its data: what --graph says. `router` of
// `experts`; null: a dense model.
void check_graph(bool on_cuda, const model::ComputeOptions& compute,
                 const route::RouterSettings* router, int64_t experts);

class MicroBatchGraphs {
 public:
  // `model` outlives it; `trained`: its parameters that have gradients. `several`: steps have more
  // than one micro-batch.
  MicroBatchGraphs(const model::Llama& model, std::vector<model::NamedParameter> trained,
                   bool several);

  // add_micro_batch() by graphs, recorded in the first call: of all others lengths, routing and
  // weights of the auxiliary losses are those of the first. `is_first`: of its step, before which
  // no parameter has a gradient.
  MicroBatchResult run(const data::Batch& batch, const model::RoutingOptions& routing,
                       const MicroBatchScale& scale, bool is_first);

 private:
  // Of a step's first micro-batch, or of all others.
  struct Recorded {
    model::ForwardResult result;
    at::Tensor auxiliary;  // [], undefined where there is none
    std::unique_ptr<kernels::RecordedGraph> forward, backward;
  };

  void record(const data::Batch& batch, const model::RoutingOptions& routing,
              const MicroBatchScale& scale);
  void forward(Recorded& recorded, const model::RoutingOptions& routing,
               const MicroBatchScale& scale) const;
  void backward(const Recorded& recorded, bool is_first);
  void clear_gradients();
  void clear_tied_gradient();

  const model::Llama& model_;
  // Those whose gradients the graphs write first, and the gradients.
  std::vector<model::NamedParameter> written_;
  std::vector<at::Tensor> gradients_;
  // Of an embedding that is the head too: the head writes first, here.
  at::Tensor tied_, tied_gradient_;
  bool several_;
  std::vector<Recorded> recorded_;  // empty until the first call; then one, or two with `several`
  // What the graphs read: [T] i64, and d loss / d hidden [T, D] f32.
  at::Tensor ids_, hidden_gradient_;
  std::shared_ptr<const model::PackTables> tables_;
  std::vector<int64_t> lengths_;
  AuxCoefficients coefficients_;
  double batch_share_ = 0;
};

}  // namespace moe::train
