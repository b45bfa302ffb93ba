#pragma once
// What --router says: the settings of a router, parsed, checked, printed back and stored in
// config.json. router.h says which of them each family has, what they may be and how they are
// written; nothing here knows a family by its name. No tensors.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"

namespace moe::route {

struct RouterFamily;  // router.h

// The family that settings belong to as long as nobody says another: top-k.
const RouterFamily& default_family();

enum class GateNorm { kSelected, kNone };
enum class LbCount { kFirst, kSelected };
enum class SlotOrder { kChoice, kScore };
enum class L1Weights { kRefined, kPlain };

// One member for each option that some family has. A family reads its own and leaves the others at
// their defaults.
struct RouterSettings {
  const RouterFamily* family = &default_family();  // an entry of router_families(), never null
  int64_t k = 1;                // top-k: experts per token; relu: sets the target sparsity 1 - k/E
  bool ir = false, fr = false;  // top-k: rectification
  std::optional<double> capacity_factor;  // slots = ceil(CF * T_r / E); empty = dropless
  GateNorm gate_norm = GateNorm::kSelected;
  bool straight_through = true;
  LbCount lb_count = LbCount::kFirst;
  SlotOrder slot_order = SlotOrder::kChoice;
  std::optional<double> bias_rate;     // top-k: a step of the bias that balances; empty = no bias
  double p = 0;                        // top-p: probability mass to reach
  std::optional<int64_t> max_experts;  // top-p: keep at most so many
  double lambda0 = 1e-8, lambda_multiplier = 1.2;  // relu: adaptive L1
  L1Weights l1 = L1Weights::kRefined;

  bool operator==(const RouterSettings&) const = default;
};

// Parses --router, in any case of letters:
//
//   NAME[HEAD]{+MODIFIER}[:[FIRST][,]{NAME=VALUE,}]      top2+ir:cf=1.5   topp:0.4,max=2   relu:k=1
//
// router_help() lists the families and their options. Throws UserError that names the offending
// part and the known forms.
std::string lower(std::string text);  // A to Z alone
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

// UserError for a router that may only train, because its decisions on a token read other tokens;
// `mend` says what the user can do instead.
void check_inference(const RouterSettings& settings, const std::string& mend);

// Whether experts take a bounded number of tokens, so that buffers between ranks have sizes that
// follow from the number of tokens alone, and a token's output depends on what shares its batch.
bool has_capacity(const RouterSettings& settings);

// Whether both are of one family.
bool same_family(const RouterSettings& a, const RouterSettings& b);

// The router of experts that are cut into `granularity` parts each. Capacity is counted in slots of
// T / E: with G times the requests for G times the experts, CF must grow as k does to keep its
// slack.
RouterSettings with_granularity(RouterSettings settings, int64_t granularity);

// The router as generation wants it: without a capacity and without fill-in, so that a token is
// routed as it would be alone. UserError: check_inference.
RouterSettings generation_router(RouterSettings settings);

// Default coefficients of the auxiliary losses; 0 for a loss that the router does not have.
double default_lb_coef(const RouterSettings& settings);
double default_entropy_coef(const RouterSettings& settings);

// Whether the weights of every token that an expert serves sum to 1, whatever the logits are.
bool weights_sum_to_one(const RouterSettings& settings);

// Says whether an upcycled model computes its dense parent by construction, that is, in exact
// arithmetic. Measured differences are a Certificate (core/model/convert/verify.h).
struct FunctionPreservation {
  bool exact = false;
  std::string words;  // why, and what would make it exact
};
// Returns it for a router whose gates are multiplied by `gate_scale` (README.md, "What upcycling
// keeps").
FunctionPreservation preserves_function(const RouterSettings& settings, double gate_scale = 1.0);

// For people: every family, how it is written, and its options with values, defaults and meaning.
std::string router_help();
// The same in one line, for a flag: "top{K}[+ir][+fr][:cf=X|inf,...], topp:P or relu:k=K".
std::string router_forms();

}  // namespace moe::route
