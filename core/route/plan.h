#pragma once
// A Plan says which token goes to which expert in which slot: integers only, no gradients, no hidden state.
// Rules (rule.h) make better plans out of plans; gates read scores at a plan's rows.

#include <torch/types.h>

#include <cstdint>

namespace moe::route {

// rows_max is known on the host from T, E, k, W and the capacities: no rule reads a size back from the device.
struct Plan {
  torch::Tensor token, expert;  // [rows_max] i64, sorted by (expert, home, slot); unused rows last with expert = E
  torch::Tensor choice;         // [rows_max] i64: 0..k-1 = that choice, k = fill-in, k+1 = IR
  torch::Tensor count;          // [rows_max] i64: multiplicity of the row (m for IR, else 1)
  torch::Tensor rows;           // [E] i64: rows in use of each expert
  torch::Tensor overflow_token, overflow_expert, overflow_choice;  // [T * k] i64: refused requests, same convention
};

}  // namespace moe::route
