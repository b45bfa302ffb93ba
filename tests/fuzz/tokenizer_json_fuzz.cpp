// libFuzzer target: a tokenizer.json or, if it begins with a line of base64 and a rank, a
// tokenizer.model of Llama 3. It is refused with UserError, or encodes and decodes texts.

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/fuzz/fuzz.h"

namespace {

void run(const moe::io::TokenizerModel& model) {
  using moe::fuzz::require;
  for (const std::string_view text :
       {"", " ", "a b  ab\n12", "\xFF\xC3\xBC", "<s> 1</s>", "A\u0301\u4E00\u200D'll"}) {
    const auto ids = model.encode(text);
    for (const int64_t id : ids) {
      require(id >= 0 && id < model.vocab_size() && model.has(id));
      model.piece(id);
      model.bytes(id);
    }
    require(moe::find_invalid_utf8(model.decode(ids)) == moe::kValidUtf8);
  }
  model.decode({-1, 0, model.vocab_size(), int64_t{1} << 40});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (moe::io::is_tiktoken(bytes)) {
      run(*moe::io::read_tiktoken(bytes, "tokenizer.model"));
    } else {
      run(*moe::io::read_tokenizer_json(moe::parse_json(bytes, "tokenizer.json"),
                                        "tokenizer.json"));
    }
  } catch (const moe::UserError&) {
  }
  return 0;
}
