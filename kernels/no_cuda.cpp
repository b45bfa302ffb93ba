// Stands in for every *_cuda entry point in builds without CUDA. Nothing of ours makes a CUDA
// tensor there (flags refuse
// --device cuda by name), so reaching one of these is a defect of ours.

#include <stdexcept>
#include <string>

#include "kernels/stochastic_round.h"
#include "kernels/stream.h"
#include "kernels/swiglu.h"

namespace moe::kernels {

namespace {

[[noreturn]] void refuse(const char* entry) {
  throw std::logic_error(std::string(entry) + ": this build has no CUDA");
}

}  // namespace

bool built_with_cuda() { return false; }

void* current_stream(const at::Tensor&) { refuse("current_stream"); }

void swiglu_forward_cuda(const void*, void*, int64_t, int64_t, bool, void*) {
  refuse("swiglu_forward_cuda");
}

void swiglu_backward_cuda(const void*, const void*, void*, int64_t, int64_t, bool, void*) {
  refuse("swiglu_backward_cuda");
}

void stochastic_round_cuda(const float*, void*, int64_t, uint64_t, int64_t, void*) {
  refuse("stochastic_round_cuda");
}

}  // namespace moe::kernels
