// NCCL as far as one GPU goes: it refuses two ranks on one, so the only rank talks to itself.
// Several ranks of one GPU are threads (threads.h); several GPUs have not been tried.

#include "core/distributed/process_group.h"
#include "tests/support/catch.h"

using namespace moe;
using at::Tensor;

TEST_CASE("one rank through NCCL gets what it sends", "[gpu][nccl]") {
  if (!at::hasCUDA()) {
    MOE_SKIP("no GPU");
  }
  const at::Device device(at::kCUDA, 0);
  const auto membership = std::make_shared<distributed::Membership>(distributed::local_store(), 0,
                                                                    1, distributed::Seconds{30});
  membership->check_in(distributed::this_member("127.0.0.1"), "moe");
  const auto comm = distributed::process_comm(membership, device);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
    const Tensor rows = at::arange(6, at::TensorOptions(device)).to(type).view({3, 2});
    const Tensor output = at::empty_like(rows);
    comm->all_to_all(rows, {3}, output, {3})->wait();
    CHECK(at::equal(rows, output));
    comm->all_gather(rows, output.zero_());
    CHECK(at::equal(rows, output));
    comm->broadcast(output, 0);
    CHECK(at::equal(rows, output));
  }
  const Tensor nothing = at::empty({0, 2}, at::TensorOptions(device));
  comm->all_to_all(nothing, {0}, nothing.clone(), {0})->wait();
  const Tensor sum = at::arange(6, at::TensorOptions(device).dtype(at::kFloat));
  const Tensor piece = at::empty_like(sum);
  comm->reduce_scatter(sum, piece);
  comm->all_reduce(sum);
  comm->barrier();
  CHECK(at::equal(sum, piece));
  CHECK(distributed::gather_texts(*comm, "text") == std::vector<std::string>{"text"});
}
