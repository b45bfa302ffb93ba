#pragma once
// The descriptor of a router family: its name, its options and what the rest of the program asks of
// it. Parsing, printing, JSON, overrides, ranges and help are read off these tables, so that they
// know a new family as soon as it stands in the list (routers/all.h). What a family does with
// tensors is its other half (route.h): readers of files build without LibTorch.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/option.h"
#include "core/route/router_settings.h"

namespace moe::route {

inline constexpr int64_t kMaxExperts = 1 << 20;  // beyond any model; keeps T * k far from overflow
inline constexpr double kMaxCapacityFactor = 1 << 20;  // cf=inf is dropless

// ------------------------------------------------------------------------------------ the options

// Where an option is written in --router.
enum class OptionPosition {
  kHead,      // a number right after the name: the 2 of top2
  kModifier,  // a switch after a plus sign: +ir
  kFirst,     // the first value after the colon, without a name: the 0.4 of topp:0.4
  kNamed,     // name=value
};

enum OptionTrait : unsigned {
  kTrainingOnly = 1,           // a forward without a backward does not read it
  kChangesGates = 2,           // the sum of a token's weights depends on it
  kScalesWithGranularity = 4,  // multiplied by the number of parts of an expert
  kResetIfUnnamed = 8,         // a --router of the stored family that does not name it resets it
};

// Sentences about an option; those with braces are formatted with the values named here.
enum class Sentence {
  kMissing,         // --router must name the option: the error after the family's name
  kNoKey,           // config.json must have the key: the error
  kTooMany,         // the value exceeds the number of experts: router, value, experts
  kNeedsForce,      // another value than the stored one needs --force: why
  kNote,            // another value than the stored one: the stored value
  kNoteInTraining,  // as kNote, when training only
};

// An option of a family. `option.range.rule` is the error for a value out of range, formatted with
// the value.
struct RouterOption {
  Option option;    // name: "cf" of cf=1.5, "ir" of +ir; the member is one of a RouterSettings
  const char* key;  // in config.json: "capacity_factor"
  OptionPosition position = OptionPosition::kNamed;
  const char* takes = "";       // the values, in words: "a number above 0, or inf"
  const char* empty_word = "";  // how --router writes an open value
  unsigned traits = 0;          // OptionTrait
  std::map<Sentence, std::string> sentences = {};

  bool has(OptionTrait trait) const { return (traits & trait) != 0; }
  bool must_be_named() const { return sentences.contains(Sentence::kMissing); }
};
using RouterOptions = std::vector<RouterOption>;

// A model_type of our own is one that stock tools refuse; empty where they may load the folder.
struct OwnArchitecture {
  std::string model_type = {}, name = {};
};

// Options that several families have: cf of those with a capacity, and k.
RouterOption capacity_option(RouterSettings& settings);
RouterOption k_option(RouterSettings& settings);

// ------------------------------------------------------------------------------------- the family

// What stock tools compute of a folder, and what they do not, a sentence each.
struct StockWords {
  std::vector<std::string> computed, not_computed;
};

// T tokens, E experts.
struct RouterFamily {
  // How it is written.
  std::string name;                     // in config.json: "topk"
  std::string word;                     // in --router, before k of top-k: "top"
  std::string title;                    // in sentences: "top-k"
  std::string syntax;                   // for a line of help: "top{K}[+ir][+fr][:cf=X|inf,...]"
  std::string forms;                    // for messages, examples that show every option
  std::vector<std::string> near_words;  // what an unknown --router may have meant
  std::vector<std::string> examples;    // that the tests run over
  std::string help;                     // what it does, in words
  std::string no_modifiers = {};        // why there is no +ir and no +fr
  RouterOptions (*options)(RouterSettings&);  // in the order of --router and config.json
  void (*start)(RouterSettings&) = {};   // sets what differs from the defaults of RouterSettings
  void (*derive)(RouterSettings&) = {};  // sets defaults that depend on k

  // How it routes.
  bool has_softmax_scores = true;  // logits mean log-probabilities, up to a constant per token
  bool has_slots = false;       // an expert takes at most C_r tokens from rank r (capacity_factor)
  bool tokens_request = false;  // every token requests k experts and may be refused
  bool ranks_choices = true;    // a token's experts have an order, best first
  bool can_leave_experts_dead = false;  // a fresh router may have experts that no token reaches
  int64_t (*most_choices)(const RouterSettings&, int64_t experts);  // of one token
  RouterSettings (*for_generation)(RouterSettings) = {};
  std::string no_inference = {};  // why it may only train

  // Its auxiliary losses, their default coefficients, and why there is none.
  std::optional<double> load_balance_coef = {}, entropy_coef = {};
  std::string no_load_balance = {};
  bool has_adaptive_l1 = false;  // weighed by lambda, which follows the sparsity

  // What it costs: rows of a layer before the router has learnt anything; experts that a token has
  // at inference, for counting active parameters; and about how many in a trained model.
  double (*fresh_rows)(const RouterSettings&, int64_t tokens, int64_t experts);
  int64_t (*active_experts)(const RouterSettings&, int64_t experts);
  int64_t (*usual_experts)(const RouterSettings&, int64_t experts);

  // Why the weights of a token do not sum to 1; empty where they do.
  std::string (*unnormalised)(const RouterSettings&);

  // What stock tools make of a folder.
  OwnArchitecture own = {};
  bool (*is_own)(const RouterSettings&) = {};  // whether settings need `own`; null: always
  int64_t (*stock_experts)(const RouterSettings&, int64_t experts);  // num_experts_per_tok
  bool stock_experts_are_k = false;  // then config.json must say the same number twice
  StockWords (*stock_words)(const RouterSettings&, int64_t experts);
};

// All of them, in the order of routers/all.h.
const std::vector<RouterFamily>& router_families();

// Returns the architecture of a folder with this router.
OwnArchitecture own_architecture(const RouterSettings& settings);

// Returns the options of the settings' family, bound to `settings`.
inline RouterOptions options_of(RouterSettings& settings) {
  return settings.family->options(settings);
}

// Returns the value of an option as --router writes it.
std::string option_text(const RouterOption& option);
// Sets an option from its text in --router; returns false if it is no value.
bool set_option(const RouterOption& option, const std::string& text);
// Returns the settings of a family before any option is read.
RouterSettings start_of(const RouterFamily& family);
// Returns the settings that --router with the family and k of `settings` alone would give.
RouterSettings defaults_of(const RouterSettings& settings);

}  // namespace moe::route
