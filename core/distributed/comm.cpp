// One rank alone, and numbers and texts of the host, sent as tensors.

#include "core/distributed/comm.h"

#include <algorithm>
#include <cstring>

namespace moe::distributed {

using at::Tensor;

namespace {

class Solo : public Comm {
 public:
  explicit Solo(at::Device device) : device_(device) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input,
                                       const std::vector<int64_t>& /*input_rows*/,
                                       const Tensor& output,
                                       const std::vector<int64_t>& /*output_rows*/) override {
    output.copy_(input);
    return finished_transfer();
  }
  void all_reduce(const Tensor& /*tensor*/) override {}
  void reduce_scatter(const Tensor& input, const Tensor& output) override { output.copy_(input); }
  void all_gather(const Tensor& input, const Tensor& output) override { output.copy_(input); }
  void broadcast(const Tensor& /*tensor*/, int64_t /*root*/) override {}
  void barrier() override {}
  std::unique_ptr<Comm> part(const std::string& /*name*/,
                             const std::vector<int64_t>& /*members*/) override {
    return solo_comm(device_);
  }

 private:
  at::Device device_;
};

}  // namespace

std::unique_ptr<Transfer> Comm::start_all_gather(const Tensor& input, const Tensor& output) {
  all_gather(input, output);
  return finished_transfer();
}

std::unique_ptr<Transfer> finished_transfer() {
  class Finished : public Transfer {
    void wait() override {}
  };
  return std::make_unique<Finished>();
}

std::unique_ptr<Comm> solo_comm(at::Device device) { return std::make_unique<Solo>(device); }

std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& values) {
  const auto length = static_cast<int64_t>(values.size());
  const Tensor input = at::tensor(values, at::kLong).to(comm.device());
  const Tensor output = at::empty({comm.size() * length}, input.options());
  comm.all_gather(input, output);
  comm.synchronize();
  const Tensor host = output.cpu();
  const int64_t* next = host.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < comm.size(); ++rank, next += length) {
    all.emplace_back(next, next + length);
  }
  return all;
}

std::vector<std::string> gather_texts(Comm& comm, const std::string& text) {
  const auto lengths = gather_numbers(comm, {static_cast<int64_t>(text.size())});
  const int64_t longest = std::max_element(lengths.begin(), lengths.end())->front();
  const Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  const Tensor output = at::empty({comm.size() * longest}, padded.options().device(comm.device()));
  comm.all_gather(padded.to(comm.device()), output);
  comm.synchronize();
  const Tensor host = output.cpu();
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < comm.size(); ++rank) {
    const auto* next = reinterpret_cast<const char*>(host.const_data_ptr<uint8_t>());
    all.emplace_back(next + rank * longest, static_cast<size_t>(lengths[rank].front()));
  }
  return all;
}

std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values) {
  const Tensor sums = at::tensor(values, at::kDouble).to(comm.device());
  comm.all_reduce(sums);
  comm.synchronize();
  const Tensor host = sums.cpu();
  const double* begin = host.const_data_ptr<double>();
  return {begin, begin + values.size()};
}

}  // namespace moe::distributed
