// Stands in for every *_cuda entry point in builds without CUDA. Nothing of ours makes a CUDA
// tensor there (flags refuse
// --device cuda by name), so reaching one of these is a defect of ours.

#include <stdexcept>
#include <string>

#include "kernels/ops/adamw.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/device.h"
#include "kernels/ops/expert_rows.h"
#include "kernels/ops/graph.h"
#include "kernels/ops/logsumexp.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/router.h"
#include "kernels/ops/row_gates.h"
#include "kernels/ops/stochastic_round.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::kernels {

namespace {

[[noreturn]] void refuse(const char* entry) {
  throw std::logic_error(std::string(entry) + ": this build has no CUDA");
}

}  // namespace

bool built_with_cuda() { return false; }

int64_t card_count() { return 0; }

std::string card_name(int64_t) { refuse("card_name"); }

uint64_t card_peak_bytes(int64_t) { refuse("card_peak_bytes"); }

std::unique_ptr<RecordedWork> record_work(const std::function<void()>&, c10::Device) {
  refuse("record_work");
}

void* current_stream(const at::Tensor&) { refuse("current_stream"); }

void swiglu_forward_cuda(const void*, void*, int64_t, int64_t, const int32_t*, bool, void*) {
  refuse("swiglu_forward_cuda");
}

void swiglu_backward_cuda(const void*, const void*, void*, int64_t, int64_t, const int32_t*, bool,
                          void*) {
  refuse("swiglu_backward_cuda");
}

void stochastic_round_cuda(const float*, void*, int64_t, uint64_t, int64_t, void*) {
  refuse("stochastic_round_cuda");
}

void softmax_nll_cuda(float*, const int64_t*, double*, int64_t, int64_t, double, void*) {
  refuse("softmax_nll_cuda");
}

void row_scores_cuda(const float*, float*, int64_t*, int64_t, int64_t, void*) {
  refuse("row_scores_cuda");
}

void rms_norm_forward_cuda(const void*, const float*, void*, float*, int64_t, int64_t, double, bool,
                           void*) {
  refuse("rms_norm_forward_cuda");
}

void rms_norm_backward_cuda(const RmsNormGradients&, const void*, const void*, const float*,
                            const float*, int64_t, int64_t, bool, void*) {
  refuse("rms_norm_backward_cuda");
}

void rope_cuda(const void*, const float*, const float*, const int32_t*, void*, const RopeShape&,
               bool, void*) {
  refuse("rope_cuda");
}

void router_logits_cuda(const void*, const float*, float*, int64_t, int64_t, int64_t, bool, void*) {
  refuse("router_logits_cuda");
}

void router_choices_cuda(const float*, const int32_t*, const RouterShape&, const RouterChoices&,
                         void*) {
  refuse("router_choices_cuda");
}

void select_rows_cuda(const SelectShape&, const SelectInput&, const SelectedRows&, int32_t*,
                      void*) {
  refuse("select_rows_cuda");
}

void lay_out_cuda(const LayoutShape&, const PlanRows&, const LayoutMemory&, void*) {
  refuse("lay_out_cuda");
}

void gather_rows_cuda(const RowsShape&, const int32_t*, const int32_t*, const void*, void*, bool,
                      void*) {
  refuse("gather_rows_cuda");
}

void combine_rows_cuda(const RowsShape&, const int32_t*, const float*, const void*, void*, bool,
                       bool, void*) {
  refuse("combine_rows_cuda");
}

void combine_rows_backward_cuda(const RowsShape&, const int32_t*, const int32_t*, const float*,
                                const void*, const float*, void*, float*, bool, void*) {
  refuse("combine_rows_backward_cuda");
}

void row_gates_cuda(const GateShape&, const float*, const int32_t*, const int32_t*, float*, void*) {
  refuse("row_gates_cuda");
}

void row_gates_backward_cuda(const GateShape&, const float*, const int32_t*, const int32_t*,
                             const float*, const float*, float*, void*) {
  refuse("row_gates_backward_cuda");
}

void adamw_cuda(const AdamWMemory&, const AdamWNumbers&, void*) { refuse("adamw_cuda"); }

}  // namespace moe::kernels
