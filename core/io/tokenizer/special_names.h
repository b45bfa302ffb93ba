#pragma once
// What the files beside a tokenizer.json say of BOS and EOS. The tokenizer itself does not know
// which of its special tokens are these.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace moe::io {

// A special token by its text or its id; none: no file names it.
struct SpecialName {
  bool is_named = false;  // also where a file says that there is none
  std::string text;       // empty: by `id`
  int64_t id = -1;
};

struct SpecialNames {
  SpecialName bos, eos;
  std::optional<bool> adds_bos;  // "add_bos_token"

  // Equal for equal names: what tokens were made with depends on it.
  std::string words() const;
};

// FOLDER/tokenizer_config.json ("bos_token", text or {"content": text}, null: none), then
// special_tokens_map.json, then config.json ("bos_token_id", of several the first). Files that are
// not there say nothing. UserError: a broken one, a value of another type.
SpecialNames read_special_names(const std::filesystem::path& folder);

// "eos_token_id" of FOLDER/generation_config.json, one id or a list, and where that says none of
// FOLDER/config.json, as transformers takes them. Ids below 0 are none. UserError as above.
std::vector<int64_t> read_stop_ids(const std::filesystem::path& folder);

}  // namespace moe::io
