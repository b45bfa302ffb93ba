#include "tests/kernels/reference/swiglu.h"

#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

SwigluResults on_gpu(const Tensor& hidden, const Tensor& grad_out, const int32_t* used = nullptr) {
  const int64_t rows = grad_out.size(0), width = grad_out.size(1);
  const bool is_bf16 = hidden.scalar_type() == at::kBFloat16;
  const Tensor in = to_gpu(hidden), upstream = to_gpu(grad_out);
  const Tensor out = poisoned(grad_out.sizes(), grad_out.scalar_type());
  const Tensor grad = poisoned(hidden.sizes(), hidden.scalar_type()), again = grad.clone();
  swiglu_forward_cuda({in.data_ptr(), out.data_ptr(), rows, width, is_bf16, used}, stream_of(in));
  swiglu_backward_cuda(
      {upstream.data_ptr(), in.data_ptr(), grad.data_ptr(), rows, width, is_bf16, used},
      stream_of(in));
  swiglu_backward_cuda({upstream.data_ptr(), in.data_ptr(), again.data_ptr(), rows, width, is_bf16,
                        used, upstream.data_ptr()},
                       stream_of(in));
  return {out.cpu(), grad.cpu(), upstream.cpu(), again.cpu()};
}

}  // namespace

TEST_CASE("the swiglu kernels equal the formula in double on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  const auto run = [](const Tensor& hidden, const Tensor& grad) { return on_gpu(hidden, grad); };
  for (const int64_t width : {1, 7, 12, 33, 64, 300}) {
    for (const int64_t rows : {0, 1, 31, 33}) {
      check_swiglu(run, rows, width);
    }
  }
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {300, 12}, {300, 33}, {1, 1028}, {3, 2056}}) {  // wide rows take two blocks
    check_swiglu(run, rows, width);
  }
}

TEST_CASE("the swiglu kernels do not write rows after the used ones", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(4);
  for (const int64_t width : {3, 8}) {
    for (const int used : {0, 5, 9, 20}) {
      CAPTURE(width, used);
      const Tensor hidden = at::randn({9, 2 * width}), grad_out = at::randn({9, width});
      const Tensor limit = to_gpu(at::tensor({used}, at::kInt));
      const SwigluResults actual = on_gpu(hidden, grad_out, limit.const_data_ptr<int32_t>());
      const SwigluResults all = on_gpu(hidden, grad_out);
      const int64_t rows = std::min(used, 9), rest = 9 - rows;
      for (const auto& [found, whole, before] : {std::tuple{actual.out, all.out, Tensor()},
                                                 {actual.grad, all.grad, Tensor()},
                                                 {actual.same_grad, all.grad, Tensor()},
                                                 {actual.rewritten, all.out, grad_out}}) {
        CHECK(at::equal(found.narrow(0, 0, rows), whole.narrow(0, 0, rows)));
        const Tensor unwritten = found.narrow(0, rows, rest);
        CHECK((before.defined() ? at::equal(unwritten, before.narrow(0, rows, rest))
                                : unwritten.isnan().all().item<bool>()));
      }
    }
  }
}
