#pragma once
// Text pairs to token requests, as lm-evaluation-harness encodes them (models/huggingface.py,
// api/model.py of 0.4.13).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::eval {

// A question as text, ready to be scored.
struct Question {
  OrderedJson fields;                      // the document, for the sample log
  std::string context;                     // description, examples and prompt
  std::vector<std::string> choices;        // none where text is generated
  int64_t gold = 0;                        // index of the right choice; -1 = none of them is
  std::string where;                       // file and line, for messages
  std::string source = {};                 // for statistics (lines.h)
  std::vector<std::string> contexts = {};  // one a choice, where they differ by context
  std::string target = {};                 // the right answer as the sample log has it
  std::string delimiter = " ";             // between context and choice

  const std::string& context_of(size_t choice) const {
    return contexts.empty() ? context : contexts[choice];
  }
  // What follows context_of(choice) and is scored.
  std::string continuation_of(size_t choice) const {
    return delimiter + (contexts.empty() ? choices[choice] : target);
  }
};

struct TextPair {
  std::string context, continuation;
  std::string where;        // file and line, for messages
  std::string source = {};  // for statistics (lines.h)
};

// One thing to score: log p(the last `scored` tokens | all before them).
struct Request {
  std::vector<int64_t> tokens;  // context + continuation, cut from the left to window + 1
  int64_t scored = 0;           // 1 <= scored < tokens.size(); 0: runs for its routing alone
  bool choice_cut = false;      // the continuation alone exceeds the window: only its end is scored
  // The last token is no input.
  int64_t inputs() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

// The answer to a request.
struct Score {
  double logprob = 0;      // sum over the scored tokens of log_softmax, natural log
  bool is_greedy = false;  // every scored token is the argmax
  int64_t tokens = 0;      // scored tokens
};

// generate_until of the harness: greedy text.
struct Generation {
  std::vector<std::string> until = {};  // the text ends before the first of them; EOS ends it too
  int64_t max_tokens = 256;
};

enum class Bos { kAuto, kOn, kOff };
Bos parse_bos(const std::string& text);  // "auto" | "on" | "off"
// auto = as the tokenizer's own configuration says, which is what the harness does since late 2025.
bool resolve_bos(Bos bos, const io::Tokenizer& tokenizer);

// All that encoding needs of a tokenizer.
struct TextEncoder {
  // Without BOS. Several threads call it.
  std::function<std::vector<int64_t>(std::string_view)> encode;
  // Stands before an empty context, and is the BOS where one is added: the BOS, else the EOS.
  int64_t prefix_id = 0;
  std::string prefix_text;  // text that begins with it gets no second one
  bool adds_bos = false;
  int64_t window = 0;  // the most tokens the model takes, max_position_embeddings
};
TextEncoder make_encoder(const io::Tokenizer& tokenizer, bool adds_bos, int64_t window);

// The tokens of a text, after a BOS where one is added.
std::vector<int64_t> encode_text(const TextEncoder& encoder, std::string_view text);

// Encodes all pairs, by all threads; of several errors the first pair's is thrown.
// White space that ends the context moves to the continuation. The continuation's tokens are what
// encode(context + continuation) has beyond as many tokens as encode(context) has; the context's
// are encode(context), also where the joint text has other ones at the border ("." and a line end
// are one token of Llama 3's: the line end is then in neither, as in the harness). A context that
// is empty, or white space only, becomes the prefix token. UserError when no token is left to
// score.
std::vector<Request> encode_requests(const TextEncoder& encoder,
                                     const std::vector<TextPair>& pairs);

// One pair a choice, question after question.
std::vector<TextPair> text_pairs(const std::vector<Question>& questions);

// {"context": "..", "continuation": ".."} a line, and "source" where statistics split by it.
// The first `limit` of the file; what follows is not read.
std::vector<TextPair> read_text_pairs(const std::filesystem::path& file,
                                      std::optional<int64_t> limit = std::nullopt);

}  // namespace moe::eval
