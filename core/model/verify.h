#pragma once
// The equality certificate: an upcycled folder and its dense parent run on the same text, and how
// far apart they are.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"

namespace moe::model {

struct Certificate {
  double max_abs_logit_difference = 0;  // over all tokens and vocabulary entries
  double mean_kl = 0;                   // nats per token, KL(parent || child), in f64
  int64_t tokens = 0;
  double dropped_share = 0;  // requests that found no slot, of all requests
  std::string
      text;  // what was read: a file, the embedded text, or counted ids where there is no tokenizer
  bool preserves = false;  // whether this router computes the parent's function by construction
                           // (SPEC section 11)
  std::string words;       // the verdict in a sentence
};

OrderedJson to_json(const Certificate& certificate);

// The ids to compare on: `text_file` when not empty, else an embedded text, tokenised by the
// parent's tokenizer; without a tokenizer.model, ids counted through the vocabulary. At most
// `max_tokens`.
struct VerifyText {
  std::vector<int64_t> ids;
  std::string name;
};
VerifyText verify_text(const io::Checkpoint& parent,
                       const std::filesystem::path& text_file,
                       int64_t max_tokens);

// Runs both folders in f32 over windows of at most 512 tokens (one routing group each).
Certificate verify_equality(const io::Checkpoint& parent,
                            const io::Checkpoint& child,
                            const VerifyText& text);

}  // namespace moe::model
