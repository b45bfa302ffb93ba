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
