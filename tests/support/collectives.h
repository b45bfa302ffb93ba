#pragma once
// Checks of collectives for any Comm. Each returns false on a rank that received wrong data.

#include <ATen/ATen.h>

#include "core/distributed/comm.h"

namespace moe::test {

inline at::Tensor numbers(std::vector<float> values) { return at::tensor(values); }

// Rank r sends (r + to) % 3 rows of the number 10 r + to; some send none.
inline bool rows_arrive_in_rank_order(distributed::Comm& comm, at::ScalarType type = at::kFloat) {
  std::vector<int64_t> sent, received;
  std::vector<at::Tensor> parts, wanted;
  for (int64_t other = 0; other < comm.size(); ++other) {
    sent.push_back((comm.rank() + other) % 3);
    received.push_back((other + comm.rank()) % 3);
    parts.push_back(at::full({sent.back(), 2}, 10.0 * comm.rank() + other));
    wanted.push_back(at::full({received.back(), 2}, 10.0 * other + comm.rank()));
  }
  const at::Tensor expected = at::cat(wanted).to(type);
  const at::Tensor output = at::empty_like(expected);
  comm.all_to_all(at::cat(parts).to(type), sent, output, received).wait();
  return at::equal(output, expected);
}

// All rows go to rank 0.
inline bool one_rank_may_get_all(distributed::Comm& comm) {
  std::vector<int64_t> sent(comm.size(), 0), received(comm.size(), 0);
  sent[0] = comm.rank();  // rank 0 has no row at all
  if (comm.rank() == 0) {
    for (int64_t other = 0; other < comm.size(); ++other) {
      received[other] = other;
    }
  }
  const int64_t rows = comm.rank() == 0 ? comm.size() * (comm.size() - 1) / 2 : 0;
  const at::Tensor output = at::full({rows, 3}, -1.0);
  comm.all_to_all(at::full({comm.rank(), 3}, 1.0 * comm.rank()), sent, output, received).wait();
  bool is_right = true;
  for (int64_t other = 0, row = 0; comm.rank() == 0 && other < comm.size(); row += other++) {
    is_right = is_right && output.narrow(0, row, other).eq(other).all().item<bool>();
  }
  return is_right;
}

// For three ranks.
inline bool sums_and_pieces_are_right(distributed::Comm& comm) {
  const auto r = static_cast<float>(comm.rank());
  const at::Tensor sum = numbers({r, 1});
  comm.all_reduce(sum);
  const at::Tensor gathered = at::empty({6});
  comm.all_gather(numbers({r, 10 * r}), gathered);
  const at::Tensor in_place = at::full({6}, -1.0F);
  const at::Tensor own = in_place.narrow(0, 2 * comm.rank(), 2);
  own.copy_(numbers({r, 10 * r}));
  comm.all_gather(own, in_place);
  const at::Tensor piece = at::empty({1});
  comm.reduce_scatter(numbers({r, r + 1, r + 2}), piece);
  comm.barrier();
  return at::equal(sum, numbers({3, 3})) && at::equal(gathered, numbers({0, 0, 1, 10, 2, 20})) &&
         at::equal(in_place, gathered) && at::equal(piece, numbers({3 + 3 * r}));
}

// For three ranks.
inline bool numbers_and_texts_travel(distributed::Comm& comm) {
  const auto numbers = distributed::gather_numbers(comm, {comm.rank(), 7});
  const auto texts = distributed::gather_texts(comm, std::string(comm.rank(), 'x'));
  const auto sums = distributed::sum_numbers(comm, {0.5, 1.0 * comm.rank()});
  return numbers == std::vector<std::vector<int64_t>>{{0, 7}, {1, 7}, {2, 7}} &&
         texts == std::vector<std::string>{"", "x", "xx"} && sums == std::vector<double>{1.5, 3};
}

// For four ranks.
inline bool splits_exchange_among_themselves(distributed::Comm& comm) {
  const bool is_odd = comm.rank() % 2 == 1;
  const auto part = comm.split(is_odd ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{0, 2});
  const at::Tensor sum = numbers({static_cast<float>(comm.rank())});
  part->all_reduce(sum);
  const auto alone = comm.split({comm.rank()});
  return part->size() == 2 && part->rank() == comm.rank() / 2 && alone->size() == 1 &&
         at::equal(sum, numbers({is_odd ? 4.0F : 2.0F}));
}

}  // namespace moe::test
