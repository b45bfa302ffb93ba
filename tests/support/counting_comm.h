#pragma once
// A Comm that counts what passes through it.

#include <map>
#include <numeric>
#include <string>

#include "core/distributed/comm.h"

namespace moe::test {

class CountingComm : public distributed::Comm {
 public:
  explicit CountingComm(distributed::Comm& inner) : inner_(inner) {}

  struct Count {
    int64_t calls = 0, bytes = 0;  // bytes sent to other ranks
    bool operator==(const Count&) const = default;
  };
  std::map<std::string, Count> counts;  // by operation

  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  at::Device device() const override { return inner_.device(); }

  std::unique_ptr<distributed::Transfer> all_to_all(
      const at::Tensor& input, const std::vector<int64_t>& input_rows, const at::Tensor& output,
      const std::vector<int64_t>& output_rows) override {
    int64_t rows = std::accumulate(input_rows.begin(), input_rows.end(), int64_t{0});
    rows -= input_rows[rank()];
    const int64_t width = input.dim() > 1 ? input.size(1) : 1;
    add("all_to_all", rows * width * static_cast<int64_t>(input.element_size()));
    return inner_.all_to_all(input, input_rows, output, output_rows);
  }
  void all_reduce(const at::Tensor& tensor) override {
    add("all_reduce", 0);
    inner_.all_reduce(tensor);
  }
  void reduce_scatter(const at::Tensor& input, const at::Tensor& output) override {
    add("reduce_scatter", 0);
    inner_.reduce_scatter(input, output);
  }
  void all_gather(const at::Tensor& input, const at::Tensor& output) override {
    add("all_gather", 0);
    inner_.all_gather(input, output);
  }
  void broadcast(const at::Tensor& tensor, int64_t root) override {
    add("broadcast", 0);
    inner_.broadcast(tensor, root);
  }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<distributed::Comm> part(const std::string& name,
                                          const std::vector<int64_t>& members) override {
    return inner_.part(name, members);
  }

 private:
  void add(const std::string& operation, int64_t bytes) {
    ++counts[operation].calls;
    counts[operation].bytes += bytes;
  }

  distributed::Comm& inner_;
};

}  // namespace moe::test
