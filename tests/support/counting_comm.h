#pragma once
// A Comm that counts the bytes that all_to_all sends to other ranks.

#include <numeric>

#include "core/distributed/comm.h"

namespace moe::test {

class CountingComm : public distributed::Comm {
 public:
  explicit CountingComm(distributed::Comm& inner)
      : Comm(inner.device(), inner.rank(), inner.size()), inner_(inner) {}

  int64_t bytes_sent = 0;

  distributed::Transfer all_to_all(const at::Tensor& input, at::IntArrayRef input_rows,
                                   const at::Tensor& output, at::IntArrayRef output_rows) override {
    int64_t rows = std::accumulate(input_rows.begin(), input_rows.end(), int64_t{0});
    rows -= input_rows[rank()];
    const int64_t width = input.dim() > 1 ? input.size(1) : 1;
    bytes_sent += rows * width * static_cast<int64_t>(input.element_size());
    return inner_.all_to_all(input, input_rows, output, output_rows);
  }
  void all_reduce(const at::Tensor& tensor) override { inner_.all_reduce(tensor); }
  void reduce_scatter(const at::Tensor& input, const at::Tensor& output) override {
    inner_.reduce_scatter(input, output);
  }
  distributed::Transfer start_all_gather(const at::Tensor& input,
                                         const at::Tensor& output) override {
    return inner_.start_all_gather(input, output);
  }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<distributed::Comm> split(at::IntArrayRef members) override {
    return inner_.split(members);
  }

 private:
  distributed::Comm& inner_;
};

}  // namespace moe::test
