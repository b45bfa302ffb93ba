#pragma once
// A Plan says which token goes to which expert in which slot: integers only, no gradients, no
// hidden state. Rules (rule.h) make better plans out of plans; gates read scores at a plan's rows.

#include <ATen/ATen.h>

#include <cstdint>

namespace moe::route {

// A list of n routed rows. An unused row has expert = E, token = 0, choice = 0 and count = 0.
struct Rows {
  at::Tensor token, expert;  // [n] i64
  at::Tensor choice;         // [n] i64: 0..k-1 = that choice, k = fill-in, k+1 = IR
  at::Tensor count;          // [n] i64: multiplicity of the row (m for IR, else 1)
};

// rows_max is known on the host from T, E, k, W and the capacities: no rule reads a size back from
// the device.
struct Plan {
  at::Tensor token, expert;  // [rows_max] i64, by (expert, home, slot); unused rows last
  at::Tensor choice;         // [rows_max] i64
  at::Tensor count;          // [rows_max] i64
  at::Tensor rows;           // [E] i64: rows in use of each expert
  // Refused requests by (expert, home, order of refusal), same convention: [T * k] i64, and [0] as
  // long as no rule has refused anything.
  at::Tensor overflow_token, overflow_expert, overflow_choice;
};

}  // namespace moe::route
