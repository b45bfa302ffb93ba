#include "core/model/config/config_fields.h"

#include <cmath>

#include "core/base/error.h"

namespace moe::model {

int64_t bounded(int64_t value, const std::string& key, const std::string& where, int64_t most) {
  if (value < 1 || value > most) {
    throw UserError("{}: {} is {}; it must be between 1 and {}", where, key, value, most);
  }
  return value;
}

int64_t read_size(const Json& json, const std::string& key, const std::string& where,
                  int64_t most) {
  return bounded(get_int(json, key, where), key, where, most);
}

int64_t read_size_or(const Json& json, const std::string& key, const std::string& where,
                     int64_t fallback) {
  return bounded(get_int(json, key, where, fallback), key, where, kMaxSize);
}

double finite(double value, const std::string& key, const std::string& where, bool zero_is_fine) {
  if (!std::isfinite(value) || value < 0 || (value == 0 && !zero_is_fine)) {
    throw UserError("{}: {} is {}; it must be {} number", where, key, value,
                    zero_is_fine ? "zero or a positive" : "a positive");
  }
  return value;
}

bool given(const Json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

const Json& object_at(const Json& json, const std::string& key, const std::string& where) {
  if (!json.at(key).is_object()) {
    throw UserError("{}: {} must be an object, not {}", where, key, json.at(key).type_name());
  }
  return json.at(key);
}

}  // namespace moe::model
