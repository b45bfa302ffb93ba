// libFuzzer target: a tokenizer.model up to the last four zero bytes in a row, then an optional
// tokenizer_config.json. They are refused with UserError, or encode and decode texts.

#include "core/base/error.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using moe::fuzz::require;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view separator("\0\0\0\0", 4);
  const size_t at = bytes.rfind(separator);
  moe::fuzz::write_file("tokenizer.model", bytes.substr(0, at));
  const auto config = moe::fuzz::folder() / "tokenizer_config.json";
  std::filesystem::remove(config);
  if (at != std::string_view::npos) {
    moe::fuzz::write_file("tokenizer_config.json", bytes.substr(at + separator.size()));
  }
  try {
    const auto tokenizer = moe::io::Tokenizer::load(moe::fuzz::folder(), 0);
    for (const std::string_view text : {"", " ", "a b  ab\n", "\xFF\xC3\xBC", "<s> 1</s>"}) {
      const auto ids = tokenizer.encode(text);
      for (const int64_t id : ids) {
        require(id >= 0 && id < tokenizer.vocab_size());
      }
      tokenizer.decode(ids);
    }
    tokenizer.decode({-1, 0, tokenizer.vocab_size(), int64_t{1} << 40});
    tokenizer.piece(tokenizer.bos_id());
    tokenizer.piece(tokenizer.eos_id());
  } catch (const moe::UserError&) {
  }
  return 0;
}
