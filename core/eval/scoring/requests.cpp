#include "core/eval/scoring/requests.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/base/text.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "core/model/llama/memory_need.h"

namespace moe::eval {

namespace {

using Tokens = std::vector<int64_t>;

// The context encoded last, kept because consecutive choices have the same context.
struct CachedContext {
  std::string text;  // empty: none
  Tokens tokens;
};

// Returns the token that replaces an empty context.
int64_t prefix_token(const TextEncoder& encoder) {
  USER_ERROR_IF(encoder.prefix_id < 0,
                "a context is empty, and this tokenizer has neither BOS nor EOS within the model's "
                "vocabulary to replace it; add a context");
  return encoder.prefix_id;
}

// Returns the tokens of the context and of the continuation; see encode_requests().
std::pair<Tokens, Tokens> encode_parts(const TextEncoder& encoder, const TextPair& pair,
                                       CachedContext& context) {
  const std::string_view text = right_strip(pair.context);
  if (text.empty()) {
    Tokens tokens = encoder.encode(pair.context + pair.continuation);
    if (!tokens.empty() && tokens.front() == encoder.prefix_id) {
      tokens.erase(tokens.begin());
    }
    return {{prefix_token(encoder)}, std::move(tokens)};
  }
  const Tokens whole = encode_text(encoder, pair.context + pair.continuation);
  if (context.text != text) {
    context = {std::string(text), encode_text(encoder, text)};
  }
  if (context.tokens.empty()) {  // the tokenizer's normalization removed the whole context
    return {{prefix_token(encoder)}, whole};
  }
  const size_t length = std::min(context.tokens.size(), whole.size());
  return {context.tokens, {whole.begin() + static_cast<std::ptrdiff_t>(length), whole.end()}};
}

Request encode_pair(const TextEncoder& encoder, const TextPair& pair, CachedContext& context) {
  MOE_CHECK(encoder.window > 0, "window {}", encoder.window);
  auto [tokens, continuation] = encode_parts(encoder, pair, context);
  USER_ERROR_IF(continuation.empty(),
                "{}: the continuation '{}' adds no token to its context, so it cannot be scored; "
                "change the text",
                pair.where, printable(pair.continuation));
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  const int64_t length = std::min(static_cast<int64_t>(tokens.size()), encoder.window + 1);
  const auto scored = static_cast<int64_t>(continuation.size());
  return {{tokens.end() - length, tokens.end()},
          std::min(scored, encoder.window),
          scored > encoder.window,
          pair.source,
          pair.is_gold};
}

// Attention uses one mask [branch tokens, root + branch tokens] for all branches of a group, so its
// cost grows with the square of the branch tokens.
constexpr int64_t kMaxBranchTokens = 1024;

// Returns the length of the common prefix of the requests' inputs, at most `max`.
int64_t common_prefix_length(const Request& a, const Request& b, int64_t max) {
  const int64_t limit = std::min({a.inputs(), b.inputs(), max});
  const auto end = a.tokens.begin() + limit;
  return std::mismatch(a.tokens.begin(), end, b.tokens.begin()).first - a.tokens.begin();
}

// Returns the group of the requests sorted[begin], .., sorted[end - 1], which share their first
// `root` inputs.
PrefixGroup make_prefix_group(const std::vector<Request>& requests,
                              const std::vector<size_t>& sorted, size_t begin, size_t end,
                              int64_t root) {
  PrefixGroup group;
  group.request = sorted[begin];
  group.root = root;
  for (size_t i = begin; i < end; ++i) {
    const Request& request = requests[sorted[i]];
    const int64_t rest = request.inputs() - root;
    const Request* last =
        group.branches.empty() ? nullptr : &requests[group.branches.back().request];
    if (rest > 0 && (last == nullptr || last->inputs() != request.inputs() ||
                     common_prefix_length(*last, request, request.inputs()) != request.inputs())) {
      group.branches.push_back({sorted[i], rest});
    }
    group.members.push_back(
        {sorted[i], rest > 0 ? static_cast<int64_t>(group.branches.size()) - 1 : -1});
  }
  return group;
}

}  // namespace

bool resolve_bos(Bos bos, const io::Tokenizer& tokenizer) {
  USER_ERROR_IF(bos == Bos::kForce && tokenizer.bos_id() < 0,
                "this tokenizer has no BOS token; use --bos off");
  return bos == Bos::kAuto ? tokenizer.adds_bos() : bos != Bos::kOff && tokenizer.bos_id() >= 0;
}

TextEncoder make_encoder(const io::Tokenizer& tokenizer, bool adds_bos, int64_t window) {
  const int64_t prefix = tokenizer.bos_id() >= 0 ? tokenizer.bos_id() : tokenizer.eos_id();
  return {[&tokenizer](std::string_view text) { return tokenizer.encode_parsing_special(text); },
          prefix, tokenizer.piece(prefix), adds_bos, window};
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
  constexpr int64_t kMinPairs = 64;  // per thread
  std::vector<Request> requests(pairs.size());
  std::vector<std::exception_ptr> errors(pairs.size());
  at::parallel_for(0, static_cast<int64_t>(pairs.size()), kMinPairs,
                   [&](int64_t begin, int64_t end) {
                     CachedContext context;
                     for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                       try {
                         requests[i] = encode_pair(encoder, pairs[i], context);
                       } catch (...) {
                         errors[i] = std::current_exception();
                         return;
                       }
                     }
                   });
  for (const auto& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
  return requests;
}

std::vector<TextPair> text_pairs(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      pairs.push_back({question.choice_context(i), question.choice_continuation(i),
                       fmt::format("{}, choice {}", question.where, i + 1), question.source,
                       static_cast<int64_t>(i) == question.gold});
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
                     where, get_source(json, file.string())});
  }
  return pairs;
}

int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router,
                          uint64_t mapped_bytes) {
  constexpr int64_t kMaxTokens = 4096, kMinTokens = 512, kLayerBytes = int64_t{1} << 30;
  const int64_t per_token = model::layer_bytes_per_token(config, router);
  int64_t tokens = kMaxTokens;
  while (tokens > kMinTokens && tokens > kLayerBytes / per_token) {
    tokens /= 2;
  }
  const uint64_t available_bytes = available_memory_bytes();
  if (mapped_bytes <= available_bytes) {
    return tokens;
  }
  const int64_t experts = config.moe ? config.moe->experts : 1;
  const int64_t active =
      config.moe ? std::max<int64_t>(1, router.family->typical_active_experts(router, experts)) : 1;
  const int64_t target = kMaxTokens * std::max<int64_t>(1, experts / active);
  const auto max_tokens = static_cast<int64_t>(available_bytes / 4) / per_token;
  while (2 * tokens <= std::min(target, max_tokens)) {
    tokens *= 2;
  }
  return tokens;
}

bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router) {
  return config.moe && route::has_capacity(router);
}

std::vector<PrefixGroup> single_request_groups(const std::vector<Request>& requests) {
  std::vector<PrefixGroup> groups;
  for (size_t i = 0; i < requests.size(); ++i) {
    groups.push_back({i, requests[i].inputs(), {}, {{i, -1}}});
  }
  return groups;
}

PrefixBatches pack_in_order(std::vector<PrefixGroup> groups, int64_t limit) {
  PrefixBatches batches;
  int64_t batch_tokens = 0;  // of the last batch
  for (auto& group : groups) {
    const int64_t tokens = group.tokens();
    if (batches.empty() || batch_tokens + tokens > limit) {
      batches.emplace_back();
      batch_tokens = 0;
    }
    batches.back().push_back(std::move(group));
    batch_tokens += tokens;
  }
  return batches;
}

PrefixBatches pack_longest_first(std::vector<PrefixGroup> groups, int64_t limit) {
  std::ranges::stable_sort(groups, [](const PrefixGroup& a, const PrefixGroup& b) {
    return a.tokens() != b.tokens() ? a.tokens() > b.tokens() : a.request < b.request;
  });
  PrefixBatches batches = pack_in_order(std::move(groups), limit);
  for (auto& batch : batches) {
    std::ranges::stable_sort(batch, std::greater<>(), &PrefixGroup::root);
  }
  return batches;
}

int64_t PrefixGroup::tokens() const {
  return std::accumulate(branches.begin(), branches.end(), root,
                         [](int64_t sum, const Branch& branch) { return sum + branch.length; });
}

// Sorts requests by their inputs, so that requests with a common prefix are adjacent. Adds the next
// request to a group if this saves tokens, keeps at least half of the root, and does not exceed
// kMaxBranchTokens.
std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests) {
  std::vector<size_t> sorted(requests.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  const auto inputs_end = [&](size_t index) { return requests[index].tokens.end() - 1; };
  std::ranges::stable_sort(sorted, [&](size_t a, size_t b) {
    return std::lexicographical_compare(requests[a].tokens.begin(), inputs_end(a),
                                        requests[b].tokens.begin(), inputs_end(b));
  });
  std::vector<PrefixGroup> groups;
  for (size_t begin = 0; begin < sorted.size();) {
    const Request& first = requests[sorted[begin]];
    int64_t root = first.inputs(), branch_tokens = 0;
    size_t end = begin + 1;
    for (; end < sorted.size(); ++end) {
      const Request& next = requests[sorted[end]];
      const int64_t common = common_prefix_length(first, next, root);
      // Tokens by which a shorter root lengthens the branches of the previous requests.
      const int64_t added = (root - common) * static_cast<int64_t>(end - begin);
      const int64_t new_branch_tokens = branch_tokens + added + next.inputs() - common;
      if (2 * common < root || added > common || new_branch_tokens > kMaxBranchTokens) {
        break;
      }
      branch_tokens = new_branch_tokens;
      root = common;
    }
    groups.push_back(make_prefix_group(requests, sorted, begin, end, root));
    begin = end;
  }
  return groups;
}

}  // namespace moe::eval
