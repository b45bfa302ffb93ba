#include "kernels/ops/rope.h"

#include "tests/kernels/reference/rope.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

void run(const RopeCase& one, const RopeParts& parts, const Tensor& y, bool backwards) {
  const int64_t half = one.cosine.size(1), heads = one.x.size(1) / 2 / half;
  const Tensor c = to_gpu(one.cosine), s = to_gpu(one.sine), position = to_gpu(one.position);
  rope_cuda({parts,
             c.const_data_ptr<float>(),
             s.const_data_ptr<float>(),
             position.const_data_ptr<int32_t>(),
             y.data_ptr(),
             {one.x.size(0), heads, one.rotated, half, backwards},
             y.dtype() == at::kBFloat16},
            stream_of(y));
}

}  // namespace

TEST_CASE("the rope kernel rotates in both directions, in place and from three tensors",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t half : {1, 3, 4, 8, 24, 33}) {  // in bf16 16 bytes are 8 numbers
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const bool backwards : {false, true}) {
          CAPTURE(tokens, half, static_cast<int>(type), backwards);
          const RopeCase one(tokens, 5, 3, half);
          const Tensor in = to_gpu(one.x.to(type)), y = poisoned(one.x.sizes(), type);
          run(one, {{in.const_data_ptr()}, {5}}, y, backwards);
          CHECK(is_close_rotation(y, one.expected(one.x, backwards)));
        }
        for (const int64_t rotated : {0, 3, 5}) {
          CAPTURE(tokens, half, static_cast<int>(type), rotated);
          const RopeCase one(tokens, 5, rotated, half);
          const Tensor y = to_gpu(one.x.to(type));
          run(one, {{y.const_data_ptr()}, {5}}, y, false);
          CHECK(is_close_rotation(y, one.expected(one.x, false)));
          const int64_t first = rotated * 2 * half, rest = (5 - rotated) * 2 * half;
          CHECK(at::equal(y.cpu().narrow(1, first, rest), one.x.to(type).narrow(1, first, rest)));
        }
        for (const int64_t kv_heads : {1, 3}) {
          CAPTURE(tokens, half, static_cast<int>(type), kv_heads);
          const RopeCase one(tokens, 3 + 2 * kv_heads, 3 + kv_heads, half);
          const std::vector<int64_t> widths = {6 * half, 2 * half * kv_heads, 2 * half * kv_heads};
          std::vector<Tensor> parts;
          for (const Tensor& part : one.x.to(type).split_with_sizes(widths, 1)) {
            parts.push_back(to_gpu(part.contiguous()));
          }
          const Tensor y = poisoned(one.x.sizes(), type);
          run(one,
              {{parts[0].const_data_ptr(), parts[1].const_data_ptr(), parts[2].const_data_ptr()},
               {3, kv_heads, kv_heads}},
              y, true);
          CHECK(is_close_rotation(y, one.expected(one.x, true)));
        }
      }
    }
  }
}
