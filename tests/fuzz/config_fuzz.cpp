// libFuzzer target: reads the input as a config.json, which is accepted or refused with UserError.
// The config that we would write for an accepted one must be accepted and have the same meaning.

#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "core/model/config/config.h"
#include "core/model/config/weights.h"

namespace {

using moe::Json;
using moe::model::ModelConfig;

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

Json written(const ModelConfig& config, const Json& parent) {
  return Json::parse(moe::model::config_json(config, parent).dump());
}

void check_round_trip(const ModelConfig& config, const Json& json) {
  const Json once = written(config, json);
  const ModelConfig again = moe::model::parse_config(once, "what we wrote");
  require(written(again, once) == once);
  require(again.moe.has_value() == config.moe.has_value());
  require(again.layers == config.layers && again.hidden_size == config.hidden_size);
}

// Lists the names and shapes of all tensors, unless there are too many.
void check_tensors(const ModelConfig& config) {
  const int64_t experts = config.moe ? config.moe->experts : 1;
  if (config.layers <= 64 && experts <= 64) {
    const auto count = moe::model::count_parameters(config);
    require(count.total > 0 && count.active > 0 && count.active <= count.total);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json json;
  ModelConfig config;
  try {
    json = moe::parse_json(text, "config.json");
    config = moe::model::parse_config(json, "config.json");
  } catch (const moe::UserError& error) {
    require(std::string(error.what()).starts_with("config.json"));  // it names the file
    return 0;
  }
  check_round_trip(config, json);
  check_tensors(config);
  return 0;
}
