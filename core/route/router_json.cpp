// The "router" object of config.json. A key that nobody knows is an error: a misspelt one must not
// route in silence.

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/route/router_settings.h"

namespace moe::route {
namespace {

const std::vector<std::string>& json_keys() {
  static const std::vector<std::string> keys = {"family",
                                                "k",
                                                "ir",
                                                "fr",
                                                "capacity_factor",
                                                "gate_norm",
                                                "straight_through",
                                                "lb_count",
                                                "slot_order",
                                                "p",
                                                "max_experts",
                                                "lambda0",
                                                "lambda_multiplier",
                                                "l1"};
  return keys;
}

std::string known_keys(const std::string& unknown) {
  const std::string nearest = nearest_name(unknown, json_keys());
  return fmt::format("{} Known: {}",
                     nearest.empty() ? "." : fmt::format(", did you mean '{}'?", nearest),
                     fmt::join(json_keys(), ", "));
}

bool has(const Json& json, const std::string& key) {
  return json.contains(key) && !json.at(key).is_null();
}

// True for `second`, false for `first`; anything else is an error. A missing key means `first`.
bool is_second(const Json& json, const std::string& key, const std::string& where,
               const std::string& first, const std::string& second) {
  const std::string value = get_string(json, key, where, first);
  if (value != first && value != second) {
    throw UserError("{}: '{}' is '{}', known: {}, {}", where, key, value, first, second);
  }
  return value == second;
}

Family family_from_json(const Json& json, const std::string& where) {
  const std::string name = get_string(json, "family", where);
  if (name == "topk") {
    return Family::kTopK;
  }
  if (name == "topp") {
    return Family::kTopP;
  }
  if (name == "relu") {
    return Family::kRelu;
  }
  throw UserError("{}: router family '{}' is unknown, known: topk, topp, relu", where, name);
}

void read_top_k(const Json& json, const std::string& where, RouterSettings& settings) {
  settings.k = get_int(json, "k", where);
  settings.ir = get_bool(json, "ir", where, false);
  settings.fr = get_bool(json, "fr", where, false);
  if (!json.contains("capacity_factor")) {
    throw UserError("{}: 'capacity_factor' is missing; give a number above 0, or null for dropless",
                    where);
  }
  if (has(json, "capacity_factor")) {
    settings.capacity_factor = get_double(json, "capacity_factor", where);
  }
  settings.gate_norm = is_second(json, "gate_norm", where, "selected", "none")
                           ? GateNorm::kNone
                           : GateNorm::kSelected;
  settings.straight_through = get_bool(json, "straight_through", where, true);
  settings.lb_count = is_second(json, "lb_count", where, "first", "selected") ? LbCount::kSelected
                                                                              : LbCount::kFirst;
  settings.slot_order = is_second(json, "slot_order", where, "choice", "score")
                            ? SlotOrder::kScore
                            : SlotOrder::kChoice;
}

void read_top_p(const Json& json, const std::string& where, RouterSettings& settings) {
  settings.lb_count = LbCount::kSelected;
  settings.p = get_double(json, "p", where);
  if (has(json, "max_experts")) {
    settings.max_experts = get_int(json, "max_experts", where);
  }
}

void read_relu(const Json& json, const std::string& where, RouterSettings& settings) {
  settings.k = get_int(json, "k", where);
  settings.lambda0 = get_double(json, "lambda0", where, settings.lambda0);
  settings.lambda_multiplier =
      get_double(json, "lambda_multiplier", where, settings.lambda_multiplier);
  settings.l1_refined = !is_second(json, "l1", where, "refined", "plain");
}

}  // namespace

OrderedJson to_json(const RouterSettings& s) {
  OrderedJson json;
  for (const auto& key : json_keys()) {
    json[key] = nullptr;
  }
  if (s.family == Family::kTopP) {
    json["family"] = "topp";
    json["p"] = s.p;
    if (s.max_experts) {
      json["max_experts"] = *s.max_experts;
    }
    return json;
  }
  json["k"] = s.k;
  if (s.family == Family::kRelu) {
    json["family"] = "relu";
    json["lambda0"] = s.lambda0;
    json["lambda_multiplier"] = s.lambda_multiplier;
    json["l1"] = s.l1_refined ? "refined" : "plain";
    return json;
  }
  json["family"] = "topk";
  json["ir"] = s.ir;
  json["fr"] = s.fr;
  if (s.capacity_factor) {
    json["capacity_factor"] = *s.capacity_factor;
  }
  json["gate_norm"] = s.gate_norm == GateNorm::kSelected ? "selected" : "none";
  json["straight_through"] = s.straight_through;
  json["lb_count"] = s.lb_count == LbCount::kFirst ? "first" : "selected";
  json["slot_order"] = s.slot_order == SlotOrder::kChoice ? "choice" : "score";
  return json;
}

RouterSettings router_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: the router is not an object like {{\"family\": \"topk\", \"k\": 1, ...}}",
                    where);
  }
  for (const auto& [key, value] : json.items()) {
    if (std::find(json_keys().begin(), json_keys().end(), key) == json_keys().end()) {
      throw UserError("{}: unknown router key '{}'{}", where, key, known_keys(key));
    }
  }
  RouterSettings settings;
  settings.family = family_from_json(json, where);
  if (settings.family == Family::kTopK) {
    read_top_k(json, where, settings);
  } else if (settings.family == Family::kTopP) {
    read_top_p(json, where, settings);
  } else {
    read_relu(json, where, settings);
  }
  if (settings.family != Family::kTopK &&
      (get_bool(json, "ir", where, false) || get_bool(json, "fr", where, false))) {
    throw UserError("{}: 'ir' and 'fr' belong to the topk family only; remove them", where);
  }
  check_ranges(settings, where);
  return settings;
}

}  // namespace moe::route
