#include "core/eval/scoring/requests.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

using Tokens = std::vector<int64_t>;

struct Halves {
  Tokens context, continuation;
};

Halves encode_without_context(const TextEncoder& encoder, const std::string& continuation) {
  Tokens tokens = encoder.encode(continuation);
  if (!tokens.empty() && tokens.front() == encoder.prefix_id) {
    tokens.erase(tokens.begin());
  }
  return {{encoder.prefix_id}, std::move(tokens)};
}

// The tokens of a context. They are remembered for the next choice of the question.
class ContextTokens {
 public:
  explicit ContextTokens(const TextEncoder& encoder) : encoder_(encoder) {}

  const Tokens& operator()(std::string_view context) {
    if (!tokens_ || context != context_) {
      tokens_ = encode_text(encoder_, context);
      context_ = context;
    }
    return *tokens_;
  }

 private:
  const TextEncoder& encoder_;
  std::string context_;
  std::optional<Tokens> tokens_;  // of context_
};

// A token of the joint text that lies across the border is lost: the context keeps its own tokens,
// and as many are taken off the joint text, whichever they are.
Halves encode_halves(const TextEncoder& encoder, const TextPair& pair, ContextTokens& tokens_of) {
  const std::string_view text = right_strip(pair.context);
  if (text.empty()) {
    return encode_without_context(encoder, pair.context + pair.continuation);
  }
  const Tokens whole = encode_text(encoder, pair.context + pair.continuation);
  const Tokens& context = tokens_of(text);
  if (context.empty()) {  // a context that the tokenizer normalises away
    return {{encoder.prefix_id}, whole};
  }
  const size_t own = std::min(context.size(), whole.size());
  return {context, {whole.begin() + static_cast<std::ptrdiff_t>(own), whole.end()}};
}

Request encode_pair(const TextEncoder& encoder, const TextPair& pair, ContextTokens& tokens_of) {
  MOE_CHECK(encoder.window > 0, "window {}", encoder.window);
  auto [tokens, continuation] = encode_halves(encoder, pair, tokens_of);
  if (continuation.empty()) {
    throw UserError(
        "{}: this tokenizer gives the continuation '{}' no token of its own after its context; "
        "nothing can be scored, change the text",
        pair.where, printable(pair.continuation));
  }
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const int64_t length = std::min(static_cast<int64_t>(tokens.size()), encoder.window + 1);
  const auto scored = static_cast<int64_t>(continuation.size());
  Request request;
  request.tokens.assign(tokens.end() - length, tokens.end());
  request.scored = std::min(scored, encoder.window);
  request.choice_cut = scored > encoder.window;
  return request;
}

// Of the faults that several threads meet, the one of the first pair: what one thread would say.
class FirstFault {
 public:
  void keep(size_t pair, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr || pair < pair_) {
      pair_ = pair;
      error_ = std::move(error);
    }
  }
  void rethrow() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  size_t pair_ = 0;
  std::exception_ptr error_;
};

}  // namespace

Bos parse_bos(const std::string& text) {
  if (text == "auto" || text == "on" || text == "off") {
    return text == "auto" ? Bos::kAuto : text == "on" ? Bos::kOn : Bos::kOff;
  }
  throw UserError("--bos '{}' is unknown; known: auto, on, off", text);
}

bool resolve_bos(Bos bos, const io::Tokenizer& tokenizer) {
  const bool adds_bos = bos == Bos::kAuto ? tokenizer.adds_bos() : bos == Bos::kOn;
  if (adds_bos && tokenizer.bos_id() < 0) {
    throw UserError("this tokenizer has no BOS token; use --bos off");
  }
  return adds_bos;
}

TextEncoder make_encoder(const io::Tokenizer& tokenizer, bool adds_bos, int64_t window) {
  const int64_t prefix = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id();
  return {[&tokenizer](std::string_view text) { return tokenizer.encode(text); }, prefix,
          tokenizer.piece(prefix), adds_bos, window};
}

Tokens encode_text(const TextEncoder& encoder, std::string_view text) {
  Tokens tokens = encoder.encode(text);
  if (encoder.adds_bos &&
      !(text.starts_with(encoder.prefix_text) && !encoder.prefix_text.empty())) {
    tokens.insert(tokens.begin(), encoder.prefix_id);
  }
  return tokens;
}

std::vector<Request> encode_requests(const TextEncoder& encoder,
                                     const std::vector<TextPair>& pairs) {
  constexpr int64_t kPairs = 64;  // that a thread takes at least
  std::vector<Request> requests(pairs.size());
  FirstFault fault;
  at::parallel_for(0, static_cast<int64_t>(pairs.size()), kPairs, [&](int64_t begin, int64_t end) {
    ContextTokens tokens_of(encoder);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      try {
        requests[i] = encode_pair(encoder, pairs[i], tokens_of);
      } catch (...) {
        fault.keep(i, std::current_exception());
        return;
      }
    }
  });
  fault.rethrow();
  return requests;
}

std::vector<TextPair> text_pairs(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      pairs.push_back({question.context_of(i), question.continuation_of(i),
                       fmt::format("{}, choice {}", question.where, i + 1), question.source});
    }
  }
  return pairs;
}

std::vector<TextPair> read_text_pairs(const std::filesystem::path& file,
                                      std::optional<int64_t> limit) {
  std::vector<TextPair> pairs;
  JsonLinesReader records(file);
  while (!limit || static_cast<int64_t>(pairs.size()) < *limit) {
    const auto record = records.next();
    if (!record) {
      break;
    }
    const auto& [json, where] = *record;
    pairs.push_back({get_string(json, "context", where), get_string(json, "continuation", where),
                     where, source_of(json, file.string())});
  }
  return pairs;
}

}  // namespace moe::eval
