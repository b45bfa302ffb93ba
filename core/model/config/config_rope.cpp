// Rotary positions as config.json spells them. A scaling that is not known here is refused by its
// name, never read as none: that gives fluent nonsense.

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/model/config/config_fields.h"

namespace moe::model {
namespace {

RopeType rope_type(const Json& json, const std::string& where) {
  const std::string name =
      get_string(json, "rope_type", where, get_string(json, "type", where, "default"));
  const std::vector<std::pair<std::string, RopeType>> known = {{"default", RopeType::kDefault},
                                                               {"linear", RopeType::kLinear},
                                                               {"dynamic", RopeType::kDynamic},
                                                               {"llama3", RopeType::kLlama3}};
  for (const auto& [known_name, type] : known) {
    if (name == known_name) {
      return type;
    }
  }
  throw UserError(
      "{}: rope type '{}' is not supported; known are default, linear, dynamic and llama3", where,
      name);
}

// The scaling part of one dictionary, rope_scaling or rope_parameters.
RopeConfig read_rope_dictionary(const Json& json, const std::string& where) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) {
      throw UserError("{}: '{}' gives a rope of its own to some layers, which is not supported",
                      where, key);
    }
  }
  if (get_double(json, "partial_rotary_factor", where, 1.0) != 1.0) {
    throw UserError("{}: partial_rotary_factor other than 1 is not supported", where);
  }
  RopeConfig rope;
  rope.type = rope_type(json, where);
  rope.original_max_position_embeddings =
      get_int(json, "original_max_position_embeddings", where, 0);
  if (rope.original_max_position_embeddings < 0 ||
      rope.original_max_position_embeddings > kMaxSize) {
    throw UserError("{}: original_max_position_embeddings is {}; it must be between 0 and {}",
                    where, rope.original_max_position_embeddings, kMaxSize);
  }
  if (rope.type == RopeType::kDefault) {
    return rope;
  }
  rope.factor = get_double(json, "factor", where);
  if (!std::isfinite(rope.factor) || rope.factor < 1) {
    throw UserError("{}: the rope factor is {}; it must be at least 1", where, rope.factor);
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor =
        finite(get_double(json, "low_freq_factor", where), "low_freq_factor", where, false);
    rope.high_freq_factor =
        finite(get_double(json, "high_freq_factor", where), "high_freq_factor", where, false);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      throw UserError("{}: high_freq_factor {} must be above low_freq_factor {}", where,
                      rope.high_freq_factor, rope.low_freq_factor);
    }
    if (rope.original_max_position_embeddings == 0) {
      throw UserError("{}: llama3 rope needs original_max_position_embeddings", where);
    }
  }
  return rope;
}

bool same_scaling(const RopeConfig& a, const RopeConfig& b) {
  return a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

}  // namespace

// Both forms may stand side by side (we write both), and rope_theta in up to three places; then
// they must say the same.
RopeConfig read_rope(const Json& json, const std::string& where, double default_theta) {
  const std::string contradiction =
      "rope_theta, rope_scaling and rope_parameters say different things; remove the wrong ones";
  RopeConfig rope;
  std::optional<double> theta;
  const auto read_theta = [&](const Json& object, const std::string& its_name) {
    if (given(object, "rope_theta")) {
      const double value = get_double(object, "rope_theta", its_name);
      if (theta && *theta != value) {
        throw UserError("{}: {}", where, contradiction);
      }
      theta = value;
    }
  };
  read_theta(json, where);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (given(json, key)) {
      const Json& dictionary = object_at(json, key, where);
      const RopeConfig found = read_rope_dictionary(dictionary, where + ": " + key);
      if (given(json, "rope_scaling") && &dictionary != &json.at("rope_scaling") &&
          !same_scaling(rope, found)) {
        throw UserError("{}: {}", where, contradiction);
      }
      rope = found;
      read_theta(dictionary, where + ": " + key);
    }
  }
  rope.theta = finite(theta.value_or(default_theta), "rope_theta", where, false);
  return rope;
}

}  // namespace moe::model
