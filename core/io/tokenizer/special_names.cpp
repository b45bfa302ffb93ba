#include "core/io/tokenizer/special_names.h"

#include "core/base/error.h"
#include "core/base/json.h"

namespace moe::io {

namespace {

namespace fs = std::filesystem;

void read_text(const Json& json, const std::string& key, const std::string& where,
               SpecialName& name) {
  const auto value = json.find(key);
  if (name.is_named || value == json.end()) {
    return;
  }
  name.is_named = true;
  if (!value->is_null()) {
    name.text =
        value->is_object() ? get_string(*value, "content", where) : get_string(json, key, where);
  }
}

// The id or the ids of `key`; none where it is absent or null.
std::vector<int64_t> read_ids(const Json& json, const std::string& key, const std::string& where) {
  const auto value = json.find(key);
  if (value == json.end() || value->is_null()) {
    return {};
  }
  return value->is_array() ? get_ints(json, key, where)
                           : std::vector<int64_t>{get_int(json, key, where)};
}

void read_id(const Json& json, const std::string& key, const std::string& where,
             SpecialName& name) {
  const auto value = json.find(key);
  if (name.is_named || value == json.end() || value->is_null()) {
    return;
  }
  name.is_named = true;
  if (const std::vector<int64_t> ids = read_ids(json, key, where); !ids.empty()) {
    name.id = ids.front();
  }
}

// The object in FOLDER/NAME; an empty one where there is no such file.
Json read_object(const fs::path& file) {
  if (!fs::exists(file)) {
    return Json::object();
  }
  Json json = read_json(file);
  if (!json.is_object()) {
    throw UserError("{}: must be an object", file.string());
  }
  return json;
}

std::string words_of(const SpecialName& name) {
  return fmt::format("{} '{}' {}", name.is_named, name.text, name.id);
}

}  // namespace

std::string SpecialNames::words() const {
  return fmt::format("bos {} eos {}", words_of(bos), words_of(eos));
}

SpecialNames read_special_names(const fs::path& folder) {
  SpecialNames names;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string where = (folder / file).string();
    const Json json = read_object(folder / file);
    read_text(json, "bos_token", where, names.bos);
    read_text(json, "eos_token", where, names.eos);
    if (!names.adds_bos && json.contains("add_bos_token") && !json["add_bos_token"].is_null()) {
      names.adds_bos = get_bool(json, "add_bos_token", where, false);
    }
  }
  const std::string where = (folder / "config.json").string();
  const Json json = read_object(folder / "config.json");
  read_id(json, "bos_token_id", where, names.bos);
  read_id(json, "eos_token_id", where, names.eos);
  return names;
}

std::vector<int64_t> read_stop_ids(const fs::path& folder) {
  std::vector<int64_t> ids;
  for (const char* file : {"generation_config.json", "config.json"}) {
    if (ids.empty()) {
      ids = read_ids(read_object(folder / file), "eos_token_id", (folder / file).string());
    }
  }
  std::erase_if(ids, [](int64_t id) { return id < 0; });
  return ids;
}

}  // namespace moe::io
