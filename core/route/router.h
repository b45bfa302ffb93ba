#pragma once
// Router settings and the descriptors of router families (listed in routers/all.h), from which
// parsing and printing of --router, the "router" object of config.json, overrides, range checks and
// help are generated. The tensor functions of a family are in route.h, because code without
// LibTorch includes this header.
//
// T tokens, E experts.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/option.h"

namespace moe::route {

inline constexpr int64_t kMaxExperts = 1 << 20;  // so that T * k cannot overflow

struct RouterFamily;
struct RouterFunctions;                // route.h
const RouterFamily& default_family();  // top-k

enum class GateNorm { kSelected, kNone };  // softmax over the accepting experts, or over all
enum class LbCount { kFirst, kSelected };  // load-balance loss: first choices, or all selected
enum class SlotOrder { kChoice, kScore };  // slots are assigned choice by choice, or by score alone
enum class L1Weights { kRefined, kPlain };  // L1 loss: experts weighted by load, or equally

// Bounds of ReLU's lambda: L1 has no effect at the floor, and outweighs the language model at the
// ceiling.
inline constexpr double kLambdaFloor = 1e-10, kLambdaCeiling = 1;

// Tokens over which the load-balance loss of a layer is computed (README.md, "Groups of the balance
// loss"). All but kRank apply to every auxiliary loss except the balance within sequences.
enum class LossGroup {
  kRank,     // those of a logical rank in a micro-batch
  kMicro,    // a micro-batch
  kRunning,  // the micro-batches of the step so far
  kGlobal,   // all micro-batches of the step
};

// Union of the options of all families. A family leaves the members of other families at their
// defaults.
struct RouterSettings {
  const RouterFamily* family = &default_family();  // an entry of router_families(), never null
  int64_t k = 1;                // top-k: experts per token; relu: sets the target sparsity 1 - k/E
  bool ir = false, fr = false;  // top-k: rectification
  std::optional<double> capacity_factor;  // slots = ceil(CF * T_r / E); empty = dropless
  GateNorm gate_norm = GateNorm::kSelected;
  bool straight_through = true;
  LbCount lb_count = LbCount::kFirst;
  SlotOrder slot_order = SlotOrder::kChoice;
  std::optional<double> bias_rate;     // top-k: update rate of the balancing bias; empty = no bias
  double p = 0;                        // top-p: probability mass to reach
  std::optional<int64_t> max_experts;  // top-p: upper bound of experts per token
  double lambda0 = 1e-8, lambda_multiplier = 1.2;  // relu: adaptive L1
  L1Weights l1 = L1Weights::kRefined;

  bool operator==(const RouterSettings&) const = default;
};

// --------------------------------------------------------------------------------------- options

// Place of an option in --router.
enum class OptionPosition {
  kHead,      // a number directly after the name: the 2 of top2
  kModifier,  // a switch after a plus sign: +ir
  kFirst,     // the first value after the colon, without a name: the 0.4 of topp:0.4
  kNamed,     // name=value
};

enum OptionTrait : unsigned {
  kTrainingOnly = 1,           // not used in inference
  kChangesGates = 2,           // affects the sum of a token's weights
  kScalesWithGranularity = 4,  // multiplied by the number of parts of an expert
  kResetIfUnnamed = 8,         // a --router of the stored family that omits the option resets it
};

// Messages of an option. Each {} is replaced by the next of the values in parentheses.
enum class OptionMessage {
  kMissing,         // error: --router must contain the option; follows the family's name
  kNoKey,           // error: config.json must have the key
  kTooMany,         // error: the value exceeds the number of experts (router, value, experts)
  kNeedsForce,      // reason why a value that differs from the stored one needs --force
  kNote,            // note on a value that differs from the stored one (stored value)
  kNoteInTraining,  // as kNote, in training only
};

// Option of a family, bound to a member of one RouterSettings. The error for a value out of range
// is range.rule, formatted with the value; if that is null, it lists `values`.
struct RouterOption {
  const char* name;  // "cf" for cf=1.5 and "ir" for +ir
  const char* key;   // in config.json: "capacity_factor"
  Member member;
  const char* values = "";  // accepted values: "a number above 0, or inf"
  const char* help = "";
  unsigned traits = 0;  // OptionTrait
  std::map<OptionMessage, std::string> messages = {};
  Range range = {};
  OptionPosition position = OptionPosition::kNamed;
  const char* empty_word = "";  // text of an empty optional in --router: "inf"
  const char* fallback = "";    // the default in words; "": the member's value

  bool has(OptionTrait trait) const { return (traits & trait) != 0; }
  bool is_required() const { return messages.contains(OptionMessage::kMissing); }
};
using RouterOptions = std::vector<RouterOption>;

// Return the options cf and k, which several families share. A family that requires k adds the
// message kMissing; one that writes it after its word sets the position kHead.
RouterOption capacity_option(RouterSettings& settings);
RouterOption k_option(RouterSettings& settings);

// -------------------------------------------------------------------------------------- families

// model_type and class name that transformers refuses to load; empty if transformers may load the
// folder.
struct OwnArchitecture {
  std::string model_type = {}, name = {};
};

// Parts of the router that transformers computes, and parts that it ignores; one sentence each.
struct HfCompatibility {
  std::vector<std::string> computed, not_computed;
};

// Descriptor of a router family.
struct RouterFamily {
  // Names and help.
  std::string name;                   // in config.json: "topk"
  std::string word;                   // in --router, before k: "top"
  std::string title;                  // in messages: "top-k"
  std::string syntax;                 // in help: "top{K}[+ir][+fr][:cf=X|inf,...]"
  std::string forms;                  // in errors: examples that show every option
  std::vector<std::string> examples;  // valid routers; suggested for misspelled names
  std::string help;
  RouterOptions (*options)(RouterSettings&);  // in the order of --router and config.json
  // Sets the defaults that depend on k or differ from those of RouterSettings.
  void (*set_defaults)(RouterSettings&) = {};

  // Routing.
  bool has_softmax_scores = true;  // logits are log-probabilities up to a constant per token
  bool has_slots = false;  // an expert takes at most C_r tokens of rank r (capacity_slots())
  bool has_token_requests = false;  // every token requests k experts, which may refuse it (top-k)
  bool has_ranked_choices = true;   // the experts of a token are ordered, best first
  bool can_leave_experts_dead = false;  // experts of an untrained router may get no token
  std::string no_inference = {};        // reason if the router is for training only

  // Default coefficients of auxiliary losses; empty if the family does not have the loss.
  std::optional<double> load_balance_coef = {}, entropy_coef = {};
  std::string no_load_balance = {};  // reason why there is no load-balance loss
  bool has_adaptive_l1 = false;      // the coefficient lambda of L1 follows the sparsity

  // Estimates of the routed rows, and of the experts per token.
  double (*expected_rows_at_init)(const RouterSettings&, int64_t tokens, int64_t experts);
  int64_t (*active_experts)(const RouterSettings&, int64_t experts);  // to count active parameters
  int64_t (*typical_active_experts)(const RouterSettings&, int64_t experts);  // of a trained model

  bool can_normalize = false;       // with gate=selected the weights of a token sum to 1
  std::string unnormalized_reason;  // reason why the weights of a token do not sum to 1

  // Export to transformers.
  OwnArchitecture own = {};
  bool (*is_own)(const RouterSettings&) = {};  // true if the settings need `own`; null: always
  int64_t (*hf_experts_per_token)(const RouterSettings&, int64_t experts);  // num_experts_per_tok
  HfCompatibility (*hf_compatibility)(const RouterSettings&, int64_t experts);
};

// Returns all families: those of routers/all.h in their order, then the added ones. References stay
// valid.
const std::deque<RouterFamily>& router_families();
// Adds a family; callers that route use add_router() (route.h). Call it before other functions of
// this header and before threads start: help is generated once, and the list has no lock.
void add_router_family(RouterFamily family);

// Returns the architecture of a folder with this router; empty if transformers may load the folder.
OwnArchitecture own_architecture(const RouterSettings& settings);

// Returns the options of the settings' family, bound to `settings`.
inline RouterOptions router_options(RouterSettings& settings) {
  return settings.family->options(settings);
}

// Sets an option from its text in --router; returns false if the text is not a valid value.
bool set_option(const RouterOption& option, const std::string& text);
// Returns the settings of a --router that names only the family and k.
RouterSettings default_settings(const RouterFamily& family, int64_t k = 1);

// -------------------------------------------------------------------------------- text and JSON

// Parses --router, ignoring case:
//
//   NAME[HEAD]{+MODIFIER}[:[FIRST][,]{NAME=VALUE,}]      top2+ir:cf=1.5   topp:0.4,max=2   relu:k=1
//
// Throws UserError that names the invalid part and the known names or forms.
RouterSettings parse_router(const std::string& text);

// Converts A-Z to lower case.
std::string lower(std::string text);

// Returns the shortest text with parse_router(to_string(s)) == s: options at their defaults are
// omitted. With `every_option`, none is omitted, so that the text also overrides the options of a
// stored router (router_override.h).
std::string to_string(const RouterSettings& settings, bool every_option = false);

// Returns all families with syntax, options, values, defaults and help.
std::string router_help();
// Returns the syntax of all families: "top{K}[+ir][+fr][:cf=X|inf,...], topp:P or relu:k=K".
std::string router_forms();

// Convert settings to and from the "router" object of config.json. Its keys are "family" and the
// options of all families; options of other families are null. router_from_json() throws UserError
// that opens with `where` for an unknown or missing key, a wrong type and a value out of range.
OrderedJson to_json(const RouterSettings& settings);
RouterSettings router_from_json(const Json& json, const std::string& where);

// ---------------------------------------------------------------------------------------- checks

// Throws UserError that opens with `where` if a number is outside the range of its option. Ranges
// do not depend on the number of experts. Both parsers call it.
void check_ranges(const RouterSettings& settings, const std::string& where);

// Throws UserError if the settings do not fit E experts, for example k > E. Fill-in with k = E is
// valid and has no effect.
void check_router(const RouterSettings& settings, int64_t experts);

// Throws UserError if the router is for training only. `fix` is the advice at the end of the
// message.
void check_inference(const RouterSettings& settings, const std::string& fix);

// ------------------------------------------------------------------------------------ properties

// Returns true if experts take a bounded number of tokens. The sizes of the buffers between ranks
// then follow from the number of tokens, and the output of a token depends on its batch.
bool has_capacity(const RouterSettings& settings);

// Returns the maximum number of experts per token, without fill-in and rectification.
int64_t max_choices(const RouterSettings& settings, int64_t experts);

// Returns the router for experts that are cut into `granularity` = G parts each: k, CF and max are
// multiplied by G, which keeps the requests and the capacity CF T / E of an expert.
RouterSettings with_granularity(RouterSettings settings, int64_t granularity);

// Returns the router for generation: no capacity and no fill-in, so that the routing of a token
// does not depend on its batch. Throws UserError if the router is for training only.
RouterSettings generation_router(RouterSettings settings);

// Return the default coefficients of the auxiliary losses, 0 if the router does not have the loss.
double default_lb_coef(const RouterSettings& settings);
double default_entropy_coef(const RouterSettings& settings);

// Returns true if, for any logits, the weights of every token that has an expert sum to 1.
bool weights_sum_to_one(const RouterSettings& settings);

// Result of preserves_function(). Measured differences are a Certificate (core/upcycle/verify.h).
struct FunctionPreservation {
  bool exact = false;
  std::string words;  // reason, and advice if not exact
};
// Predicts whether an upcycled model is identical to its dense parent in exact arithmetic
// (README.md, "Function preservation"), for gate weights that are multiplied by `gate_scale`.
FunctionPreservation preserves_function(const RouterSettings& settings, double gate_scale = 1.0);

}  // namespace moe::route
