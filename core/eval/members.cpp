// Nested members of a record, by type.
#include "core/base/error.h"
#include "core/eval/formats.h"

namespace moe::eval {
namespace {

const Json& get_member(const Json& json, const std::string& key, Json::value_t type,
                       const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || found->type() != type) {
    throw UserError("{}: '{}' is missing or not {}", where, key,
                    type == Json::value_t::array ? "an array" : "an object");
  }
  return *found;
}

}  // namespace

const Json& get_array(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::array, where);
}

const Json& get_object(const Json& json, const std::string& key, const std::string& where) {
  return get_member(json, key, Json::value_t::object, where);
}

std::vector<std::string> get_strings(const Json& json, const std::string& key,
                                     const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw UserError("{}: '{}' is missing or not an array of strings", where, key);
  }
  std::vector<std::string> strings;
  for (const Json& entry : *found) {
    if (!entry.is_string()) {
      throw UserError("{}: '{}' holds {}, it must hold strings only", where, key, entry.dump());
    }
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

}  // namespace moe::eval
