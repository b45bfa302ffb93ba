#include "core/distributed/solo.h"

namespace moe::distributed {
namespace {

class Solo : public Comm {
 public:
  explicit Solo(at::Device device) : device_(device) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const at::Tensor& input,
                                       const std::vector<int64_t>& /*input_rows*/,
                                       const at::Tensor& output,
                                       const std::vector<int64_t>& /*output_rows*/) override {
    output.copy_(input);
    return finished_transfer();
  }
  void all_reduce(const at::Tensor& /*tensor*/) override {}
  void reduce_scatter(const at::Tensor& input, const at::Tensor& output) override {
    output.copy_(input);
  }
  void all_gather(const at::Tensor& input, const at::Tensor& output) override {
    output.copy_(input);
  }
  void broadcast(const at::Tensor& /*tensor*/, int64_t /*root*/) override {}
  void barrier() override {}
  std::unique_ptr<Comm> part(const std::string& /*name*/,
                             const std::vector<int64_t>& /*members*/) override {
    return solo_comm(device_);
  }

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<Transfer> finished_transfer() {
  class Finished : public Transfer {
    void wait() override {}
  };
  return std::make_unique<Finished>();
}

std::unique_ptr<Comm> solo_comm(at::Device device) { return std::make_unique<Solo>(device); }

}  // namespace moe::distributed
