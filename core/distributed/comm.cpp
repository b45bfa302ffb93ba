// Numbers and texts of the host, sent as tensors.

#include "core/distributed/comm.h"

#include <algorithm>
#include <cstring>

namespace moe::distributed {

using at::Tensor;

std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& mine) {
  const auto length = static_cast<int64_t>(mine.size());
  const Tensor input = at::tensor(mine, at::kLong).to(comm.device());
  const Tensor output = at::empty({comm.size() * length}, input.options());
  comm.all_gather(input, output);
  const Tensor host = output.cpu();
  const int64_t* next = host.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < comm.size(); ++rank, next += length) {
    all.emplace_back(next, next + length);
  }
  return all;
}

std::vector<std::string> gather_texts(Comm& comm, const std::string& mine) {
  const auto lengths = gather_numbers(comm, {static_cast<int64_t>(mine.size())});
  const int64_t longest = std::max_element(lengths.begin(), lengths.end())->front();
  const Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  const Tensor output = at::empty({comm.size() * longest}, padded.options().device(comm.device()));
  comm.all_gather(padded.to(comm.device()), output);
  const Tensor host = output.cpu();
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < comm.size(); ++rank) {
    const auto* text = reinterpret_cast<const char*>(host.const_data_ptr<uint8_t>());
    all.emplace_back(text + rank * longest, static_cast<size_t>(lengths[rank].front()));
  }
  return all;
}

std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& mine) {
  const Tensor sums = at::tensor(mine, at::kDouble).to(comm.device());
  comm.all_reduce(sums);
  const Tensor host = sums.cpu();
  const double* begin = host.const_data_ptr<double>();
  return {begin, begin + mine.size()};
}

}  // namespace moe::distributed
