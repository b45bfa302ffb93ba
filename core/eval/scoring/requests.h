#pragma once
// Requests (text pairs as tokens) and their grouping into forward passes. Pairs are encoded as in
// lm-evaluation-harness (models/huggingface.py and api/model.py of 0.4.13). Without a capacity, the
// grouping changes scores by rounding only. With a capacity, it determines which tokens are routed
// together: a group is consecutive requests in file order.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/model/config/config.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::eval {

// The context, choices and right answer of a document, as text.
struct Question {
  OrderedJson fields;                      // the document, for the sample log
  std::string context;                     // description, examples and prompt
  std::vector<std::string> choices;        // empty for generate_until
  int64_t gold = 0;                        // index of the right choice; -1: no choice is right
  std::string where;                       // file and line, for messages
  std::string source = {};                 // for routing statistics (get_source() in lines.h)
  std::vector<std::string> contexts = {};  // one per choice if the choices are contexts
  std::string target = {};                 // text of the right answer, or only its index
  std::string delimiter = " ";             // between context and choice

  const std::string& choice_context(size_t choice) const {
    return contexts.empty() ? context : contexts[choice];
  }
  // Returns the text to score, which follows choice_context(choice).
  std::string choice_continuation(size_t choice) const {
    return delimiter + (contexts.empty() ? choices[choice] : target);
  }
};

struct TextPair {
  std::string context, continuation;
  std::string where;        // file and line, for messages
  std::string source = {};  // for routing statistics
  bool is_gold = false;     // the continuation is the right answer of a question
};

// A loglikelihood request: log p(the last `scored` tokens | all tokens before them).
struct Request {
  std::vector<int64_t> tokens;  // the last window + 1 tokens of context + continuation
  int64_t scored = 0;           // < tokens.size(); 0: used for routing statistics only
  bool is_truncated = false;    // the continuation exceeds the window: only its end is scored
  std::string source = {};      // as in TextPair
  bool is_gold = false;         // as in TextPair

  // Returns the number of input tokens: all but the last, which is only predicted.
  int64_t inputs() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

// The score of a request.
struct Score {
  double logprob = 0;      // sum over the scored tokens of log_softmax, natural log
  bool is_greedy = false;  // every scored token is the argmax
  int64_t tokens = 0;      // number of scored tokens
};

// Settings of a generate_until request, which is decoded greedily.
struct Generation {
  std::vector<std::string> until = {};  // stop words; the answer ends before one of them or at EOS
  int64_t max_tokens = 256;
};

enum class Bos { kAuto, kOn, kForce, kOff };
// Returns true if a BOS is added to texts. kAuto follows the tokenizer's configuration (the default
// of the harness since late 2025). kOn adds a BOS if the tokenizer has one (add_bos_token=True of
// the harness). kForce throws UserError if the tokenizer has none.
bool resolve_bos(Bos bos, const io::Tokenizer& tokenizer);

// A tokenizer with the harness's rules for BOS and empty contexts.
struct TextEncoder {
  // Encodes without BOS. Thread-safe.
  std::function<std::vector<int64_t>(std::string_view)> encode;
  int64_t prefix_id = 0;    // replaces an empty context: the tokenizer's BOS, else its EOS
  std::string prefix_text;  // text of prefix_id; no BOS is added to a text that begins with it
  bool adds_bos = false;    // prefix_id precedes every text
  int64_t window = 0;       // the model's max_position_embeddings
};
TextEncoder make_encoder(const io::Tokenizer& tokenizer, bool adds_bos, int64_t window);

// Returns the tokens of a text, with a BOS if the encoder adds one.
std::vector<int64_t> encode_text(const TextEncoder& encoder, std::string_view text);

// Encodes all pairs, on all threads. Throws UserError for the first pair without a token to score.
//
// White space at the end of a context is moved to the continuation. With n = the number of tokens
// of encode(context), a request is encode(context), then encode(context + continuation) without its
// first n tokens. As in the harness, this loses text if a token spans the end of the context: Llama
// 3 has a token for "." and a line feed, so a line feed after a context that ends in "." is lost. A
// context that is empty or white space is replaced by the prefix token.
std::vector<Request> encode_requests(const TextEncoder& encoder,
                                     const std::vector<TextPair>& pairs);

// Returns one pair per choice, question by question.
std::vector<TextPair> text_pairs(const std::vector<Question>& questions);

// Reads the first `limit` lines of a file of {"context": "..", "continuation": ".."}, with an
// optional "source" for routing statistics.
std::vector<TextPair> read_text_pairs(const std::filesystem::path& file,
                                      std::optional<int64_t> limit = std::nullopt);

// Requests with a common prefix (the root), which is computed once, such as the choices of a
// question. A group is packed as the root and one branch for each distinct remainder
// (model::Packed::prefix_index).
struct PrefixGroup {
  struct Branch {
    size_t request;  // the branch is the inputs root, root + 1, .. of this request
    int64_t length;  // > 0
  };
  struct Member {
    size_t request;
    int64_t branch;  // index into branches; -1: all inputs of the request are in the root
  };
  size_t request = 0;  // the root is this request's first `root` inputs
  int64_t root = 0;
  std::vector<Branch> branches;
  std::vector<Member> members;

  int64_t tokens() const;  // of root and branches
};

// Assigns each request to a group. Sharing prefixes changes scores by rounding only.
std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests);

// Returns the value of --batch-tokens auto: 4096 tokens, halved (down to 512) while the activations
// of a layer exceed 1 GiB. 4096 tokens suffice for full GEMM speed in a narrow model: compared with
// 256 to 2048, HellaSwag was fastest and MMLU within 3 % of its best. The value depends only on the
// model and its router, so that results on another machine are bitwise identical.
//
// `mapped_bytes`: size of the weights in mapped files. If they do not fit in memory, every forward
// pass reads them from disk. Then the value is doubled while each expert has at most 4096 rows on
// average and the activations of a layer fit in a quarter of the memory, so that GEMMs take longer
// than reading.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router,
                          uint64_t mapped_bytes);

// Returns true if the scores of a request depend on the other requests of its forward pass: if the
// model has MoE layers and the router a finite capacity.
bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router);

// Returns a group without branches for each request, in file order: no prefix is shared.
std::vector<PrefixGroup> single_request_groups(const std::vector<Request>& requests);

using PrefixBatches = std::vector<std::vector<PrefixGroup>>;

// Packs groups in the given order into batches of up to `limit` tokens. A larger group is a batch
// by itself.
PrefixBatches pack_in_order(std::vector<PrefixGroup> groups, int64_t limit);
// Packs groups by descending tokens(), ties by `request`. Sorts each batch by root length, because
// attention computes adjacent sequences of equal length together.
PrefixBatches pack_longest_first(std::vector<PrefixGroup> groups, int64_t limit);

}  // namespace moe::eval
