#pragma once
// The descriptor of a router family: its name, its options and what the rest of the program asks of
// it. Parsing, printing, JSON, overrides, ranges and help are read off these tables, so that they
// know a new family as soon as it stands in the list (routers/all.h). What a family does with
// tensors is its other half (route.h): readers of files build without LibTorch.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/route/router_settings.h"

namespace moe::route {

inline constexpr int64_t kMaxExperts = 1 << 20;  // beyond any model; keeps T * k far from overflow
inline constexpr double kMaxCapacityFactor = 1 << 20;  // a larger one is a slip: cf=inf is dropless

// ------------------------------------------------------------------------------------ the options

// Empty where an option may have no value (cf=inf, no max). Of two words: whether it is the second.
using OptionValue = std::variant<std::monostate, bool, int64_t, double>;

enum class OptionForm { kWhole, kNumber, kSwitch, kWords };

// The member of RouterSettings that holds an option.
struct OptionMember {
  OptionForm form = OptionForm::kWhole;
  bool may_be_empty = false;
  std::function<OptionValue(const RouterSettings&)> get = {};
  std::function<void(RouterSettings&, const OptionValue&)> set = {};
};

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// Of a bool (a switch), an enum of two (words), an int64_t, a double, or an optional number.
template <typename T>
OptionMember member(T RouterSettings::*where) {
  if constexpr (IsOptional<T>::value) {
    using Number = typename T::value_type;
    return {std::is_same_v<Number, double> ? OptionForm::kNumber : OptionForm::kWhole, true,
            [where](const RouterSettings& s) {
              return s.*where ? OptionValue(*(s.*where)) : OptionValue();
            },
            [where](RouterSettings& s, const OptionValue& value) {
              const auto* number = std::get_if<Number>(&value);
              s.*where = number == nullptr ? T() : T(*number);
            }};
  } else if constexpr (std::is_enum_v<T>) {
    return {
        OptionForm::kWords, false,
        [where](const RouterSettings& s) { return OptionValue(static_cast<int>(s.*where) != 0); },
        [where](RouterSettings& s, const OptionValue& value) {
          s.*where = static_cast<T>(std::get<bool>(value) ? 1 : 0);
        }};
  } else {
    return {
        std::is_same_v<T, bool>     ? OptionForm::kSwitch
        : std::is_same_v<T, double> ? OptionForm::kNumber
                                    : OptionForm::kWhole,
        false, [where](const RouterSettings& s) { return OptionValue(s.*where); },
        [where](RouterSettings& s, const OptionValue& value) { s.*where = std::get<T>(value); }};
  }
}

// Where --router says an option.
enum class OptionPosition {
  kHead,      // a number right after the name: the 2 of top2
  kModifier,  // a switch after a plus sign: +ir
  kFirst,     // the first value after the colon, without a name: the 0.4 of topp:0.4
  kNamed,     // name=value
};

// A model_type of our own is one that stock tools refuse; empty where they may load the folder.
struct OwnArchitecture {
  std::string model_type = {}, name = {};
};

// What is left empty does not apply. Sentences with braces are filled in by fmt.
struct RouterOption {
  std::string name;  // in --router: "cf" of cf=1.5, "ir" of +ir
  std::string key;   // in config.json: "capacity_factor"
  OptionMember value;
  OptionPosition position = OptionPosition::kNamed;
  std::string takes = {};                 // the values, in words: "a number above 0, or inf"
  std::array<std::string, 2> words = {};  // of kWords, in the order of the enum
  std::string empty_word = {};            // how --router writes the empty value
  std::string help = {};                  // what it does, in words

  std::string when_missing = {};  // it must be said, and what the error says after the name
  std::string when_no_key = {};   // what the error says where config.json lacks the key
  bool (*in_range)(double) = {};  // of numbers
  std::string out_of_range = {};  // {}: the value
  std::string too_many = {};      // above the number of experts. {} {} {}: router, value, experts
  OptionValue (*default_value)(const RouterSettings&) = {};  // where it depends on other options

  bool is_kept = true;  // a --router of the stored family that does not name it leaves it as it is
  bool is_training_only = false;  // a forward without a backward does not read it
  bool changes_gates = false;     // the sum of a token's weights depends on it
  bool scales_with_granularity = false;
  std::string needs_force = {};  // another value only with --force, and why
  std::string note = {};         // said where another value stands in for one. {}: the stored value
  bool note_in_training_only = false;
  OwnArchitecture own = {};  // of a folder whose router has a value here
};

// What families with the same option share of it: cf of those with a capacity, and k.
RouterOption capacity_option();
RouterOption k_option();

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
  std::vector<RouterOption> options;    // in the order of --router and config.json
  void (*start)(RouterSettings&) = {};  // sets what differs from the defaults of RouterSettings

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
  int64_t (*stock_experts)(const RouterSettings&, int64_t experts);  // num_experts_per_tok
  bool stock_experts_are_k = false;  // then config.json must say the same number twice
  StockWords (*stock_words)(const RouterSettings&, int64_t experts);
};

// All of them, in the order of routers/all.h.
const std::vector<RouterFamily>& router_families();

// That of a folder with this router: the family's or that of an option.
OwnArchitecture own_architecture(const RouterSettings& settings);

// The option of that name, or nullptr.
const RouterOption* find_option(const RouterFamily& family, const std::string& name);

// ----------------------------------------------------------------------- values, as all readers do

// The text of --router as a value; nothing when it is none.
std::optional<OptionValue> parse_value(const RouterOption& option, const std::string& text);
// And back.
std::string value_text(const RouterOption& option, const OptionValue& value);
// The value that stands where --router does not say one, with the other options as they are.
OptionValue default_value(const RouterOption& option, const RouterSettings& settings);
// The settings of a family before any option is read.
RouterSettings start_of(const RouterFamily& family);

}  // namespace moe::route
