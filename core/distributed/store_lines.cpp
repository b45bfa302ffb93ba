#include "core/distributed/store_lines.h"

#include "core/base/utf8.h"
#include "core/distributed/nonce.h"

namespace moe::distributed {
namespace {

constexpr size_t kMostOfText = 4096;  // bytes

}  // namespace

int64_t number_of(const Json& line, const std::string& key, int64_t least, int64_t most) {
  const int64_t value = get_int(line, key, kStoreOfRun);
  if (value < least || value > most) {
    throw UserError("{}: {} = {}", kStoreOfRun, key, value);
  }
  return value;
}

std::string nonce_of(const Json& line, const std::string& key) {
  std::string value = get_string(line, key, kStoreOfRun);
  if (!is_nonce(value)) {
    throw UserError("{}: {} has not the form of a random name", kStoreOfRun, key);
  }
  return value;
}

std::string text_of(const Json& line, const std::string& key) {
  std::istringstream stream(get_string(line, key, kStoreOfRun));
  std::string text;
  for (std::string next; text.size() < kMostOfText && std::getline(stream, next);) {
    text += (text.empty() ? "" : "\n") + printable(next, kMostOfText);
  }
  return text;
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace moe::distributed
