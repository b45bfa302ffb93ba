#pragma once
// What --router says (SPEC section 10), parsed, checked, printed back and stored in config.json. No
// tensors here.
//
//   router := "top" INT { "+ir" | "+fr" } [":" opt {"," opt}]
//               opt := cf=FLOAT|inf  gate=selected|none  st=on|off  lb=first|selected
//               order=choice|score
//           | "topp:" FLOAT {"," "max=" INT}
//           | "relu:k=" INT {"," ("lambda0=" FLOAT | "mult=" FLOAT | "l1=refined|plain")}

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"

namespace moe::route {

enum class Family { kTopK, kTopP, kRelu };
enum class GateNorm { kSelected, kNone };
enum class LbCount { kFirst, kSelected };
enum class SlotOrder { kChoice, kScore };

struct RouterSettings {
  Family family = Family::kTopK;
  int64_t k = 1;                // top-k: experts per token; relu: sets the target sparsity 1 - k/E
  bool ir = false, fr = false;  // top-k only
  std::optional<double> capacity_factor;  // top-k: slots = ceil(CF * T_r / E); empty = dropless
  GateNorm gate_norm = GateNorm::kSelected;
  bool straight_through = true;
  LbCount lb_count = LbCount::kFirst;  // top-p: always selected
  SlotOrder slot_order = SlotOrder::kChoice;
  double p = 0;                                    // top-p: probability mass to reach
  std::optional<int64_t> max_experts;              // top-p: keep at most so many
  double lambda0 = 1e-8, lambda_multiplier = 1.2;  // relu: adaptive L1
  bool l1_refined = true;

  bool operator==(const RouterSettings&) const = default;
};

// Parses the grammar above, in any case of letters. Default capacity factor of top-k: k. Throws
// UserError that names the offending part and the known forms.
RouterSettings parse_router(const std::string& text);

// The canonical form: parse_router(to_string(s)) == s. Only what differs from the defaults is
// printed.
std::string to_string(const RouterSettings& settings);

// The same with every option named, defaults too: given as --router it makes this very router in
// place of any that a folder stores (router_override.h keeps what is not named).
std::string to_full_string(const RouterSettings& settings);

// The "router" object of config.json's "moe" object, and back. Keys that mean nothing to the family
// are null. Throws UserError, opened by `where`, on an unknown key, a wrong type or a value out of
// range.
OrderedJson to_json(const RouterSettings& settings);
RouterSettings router_from_json(const Json& json, const std::string& where);

// UserError, opened by `where`, when a number is out of range whatever the model is. Both parsers
// call it.
void check_ranges(const RouterSettings& settings, const std::string& where);

// UserError when the settings do not fit E experts (k > E; k + 1 > E is fine with fr, which then
// does nothing).
void check_router(const RouterSettings& settings, int64_t experts);

// Default coefficients (SPEC section 10): load balance 1e-2 for top-k and top-p, entropy 1e-4 for
// top-p, else 0.
double default_lb_coef(const RouterSettings& settings);
double default_entropy_coef(const RouterSettings& settings);

// Whether the weights of every token that an expert serves sum to 1, whatever the logits are.
bool weights_sum_to_one(const RouterSettings& settings);

// Whether an upcycled model with this router, its weights times `gate_scale`, computes its dense
// parent exactly (SPEC section 11), and why, in words.
struct Preserves {
  bool exact = false;
  std::string words;
};
Preserves preserves_function(const RouterSettings& settings, double gate_scale = 1.0);

}  // namespace moe::route
