#pragma once
// Options of commands that open a folder with open_checkpoint() (upcycle.h): upcycling of a dense
// model in memory, and new special tokens.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/option.h"
#include "core/route/router_override.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::model {

inline constexpr int64_t kMaxExperts = 65536;

// Default router of upcycling: preserves the function of the dense model.
inline constexpr const char* kUpcycledRouter = "top2:cf=inf";

struct UpcycleRequest {
  std::optional<int64_t> experts;  // E, per MoE layer; empty: the folder is not upcycled
  std::string layers = "even";     // even, odd, all or a list (parse_layers())
  int64_t seed = 1;                // of the routers
  int64_t granularity = 1;         // G: every expert is cut into G slices (expert_sources.h)
  bool shared_expert = false;      // keeps the dense feed-forward in addition to the experts
};

Options request_options(UpcycleRequest& request);

// Throws UserError if shared_expert or granularity is set without experts.
void check_request(const UpcycleRequest& request);

OrderedJson to_json(const UpcycleRequest& request);  // null without experts

// Returns the router of an upcycled mixture, before granularity.
route::RouterSettings upcycled_router(const route::RouterRequest& router);

// Returns the part of `router` that still applies to the result of open_checkpoint().
route::RouterRequest remaining_router_request(const UpcycleRequest& request,
                                              const route::RouterRequest& router);

// New special tokens of a model (--add-tokens).
struct VocabularyExtension {
  io::EditedFiles files;       // of the tokenizer
  int64_t vocab_size = 0;      // V with the new tokens; 0: no new tokens
  int64_t begin = 0, end = 0;  // new rows, initialized with the mean of rows 0 .. begin - 1
  std::string words = {};      // sentence for the user; empty: no new tokens

  // Returns true if `tensor` has new rows: the embedding and the head.
  bool changes(const std::string& tensor) const {
    return begin < end && (tensor == "model.embed_tokens.weight" || tensor == "lm_head.weight");
  }
};

// Adds `tokens` to the model of `folder` (io::with_special_tokens()). V grows only if the model has
// too few rows for them. Throws UserError if the tokenizer cannot take the tokens.
VocabularyExtension extend_vocabulary(const std::filesystem::path& folder,
                                      const std::vector<std::string>& tokens);

}  // namespace moe::model
