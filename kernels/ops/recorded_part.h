#pragma once
// Parts of a model name themselves with RECORD_USER_SCOPE where they compute. One that multiplies
// also says how many floating-point operations it makes, for whoever compares its time with the
// machine's rate (core/bench/parts.h):
//
//   RECORD_USER_SCOPE_WITH_INPUTS("attention", flop_input(flop));
//
// Nothing of it is evaluated while nobody records.

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <vector>

namespace moe::kernels {

inline std::vector<c10::IValue> flop_input(double flop) { return {c10::IValue(flop)}; }

}  // namespace moe::kernels
