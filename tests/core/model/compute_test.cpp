#include "core/model/llama/compute.h"

#include "tests/support/catch.h"
#include "tests/support/user_error.h"

using namespace moe::model;

TEST_CASE("a model that is only run computes in bf16 on a GPU unless asked otherwise", "[model]") {
  CHECK(inference_precision({}, /*on_cuda=*/true) == Precision::kBf16);
  CHECK(inference_precision({}, /*on_cuda=*/false) == Precision::kF32);
  for (const auto asked : {Precision::kF32, Precision::kTf32, Precision::kBf16}) {
    CHECK(inference_precision(asked, true) == asked);
  }
  CHECK(inference_precision(Precision::kBf16, false) == Precision::kBf16);
}

TEST_CASE("TF32 without a GPU is refused", "[model]") {
  CHECK(moe::test::user_error_of([] { inference_precision(Precision::kTf32, false); }) ==
        "--precision tf32: CUDA GPUs alone multiply in TF32, and this run is on the CPU; use fp32 "
        "or bf16, or --device cuda");
}

TEST_CASE("cuDNN's attention is refused where it does not attend", "[model]") {
  const std::string refused =
      "--attention cudnn: cuDNN attends on a GPU in bf16 alone; give --device cuda --precision "
      "bf16, or leave it out";
  const auto error = [](Precision precision, bool on_cuda) {
    return moe::test::user_error_of(
        [&] { check_attention(AttentionKernel::kCudnn, precision, on_cuda); });
  };
  CHECK(error(Precision::kBf16, false) == refused);
  CHECK(error(Precision::kF32, true) == refused);
  check_attention(AttentionKernel::kCudnn, Precision::kBf16, true);
  check_attention(AttentionKernel::kFlash, Precision::kF32, false);
  CHECK(parse_attention("cudnn") == AttentionKernel::kCudnn);
  CHECK(moe::test::user_error_of([] { parse_attention("fast"); }) ==
        "--attention 'fast' is unknown; known: flash, cudnn");
}
