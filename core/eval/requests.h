#pragma once
// Text pairs to token requests, as lm-evaluation-harness encodes them (models/huggingface.py,
// api/model.py of 0.4.13).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/tokenizer.h"

namespace moe::eval {

struct TextPair {
  std::string context, continuation;
  std::string where;        // file and line, for messages
  std::string source = {};  // for statistics (lines.h)
};

// What the model is asked: log p(the last `scored` tokens | all before them).
struct Request {
  std::vector<int64_t> tokens;  // context + continuation, cut from the left to window + 1
  int64_t scored = 0;           // 1 <= scored < tokens.size(); 0: only run, for its routing
  bool choice_cut = false;      // the continuation alone exceeds the window: only its end is scored
  int64_t inputs() const {
    return static_cast<int64_t>(tokens.size()) - 1;
  }  // the last token is no input
};

enum class Bos { kAuto, kOn, kOff };
Bos parse_bos(const std::string& text);  // "auto" | "on" | "off"
// auto = as the tokenizer's own configuration says, which is what the harness does since late 2025.
bool resolve_bos(Bos bos, const io::Tokenizer& tokenizer);

// All that encoding needs of a tokenizer.
struct TextEncoder {
  std::function<std::vector<int64_t>(std::string_view)> encode;  // without BOS
  int64_t prefix_id =
      0;  // what stands before an empty context, and is the BOS where one is added: BOS, else EOS
  std::string prefix_text;  // text that begins with it gets no second one
  bool adds_bos = false;
  int64_t window = 0;  // the most tokens the model takes, max_position_embeddings
};
TextEncoder make_encoder(const io::Tokenizer& tokenizer, bool adds_bos, int64_t window);

// The tokens of a text, after a BOS where one is added.
std::vector<int64_t> encode_text(const TextEncoder& encoder, std::string_view text);

// White space that ends the context moves to the continuation; whole = encode(context +
// continuation), and what follows the context's own tokens is scored. A context that is empty, or
// white space only, becomes the prefix token. UserError when no token is left to score.
Request encode_request(const TextEncoder& encoder, const TextPair& pair);
std::vector<Request> encode_requests(const TextEncoder& encoder,
                                     const std::vector<TextPair>& pairs);

// {"context": "..", "continuation": ".."} a line, and "source" where statistics shall tell it
// apart.
std::vector<TextPair> read_text_pairs(const std::filesystem::path& file);

}  // namespace moe::eval
