#pragma once
// The equality certificate: an upcycled folder and its dense parent run on the same text, and how
// far apart they are.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"

namespace moe::model {

struct Certificate {
  double max_abs_logit_difference = 0;  // over all tokens and vocabulary entries
  double mean_kl = 0;                   // nats per token, KL(parent || child), in f64
  int64_t tokens = 0;
  double gate_scale = 1;     // in force on the child
  double dropped_share = 0;  // requests that found no slot, of all requests
  std::string
      text;  // what was read: a file, the embedded text, or counted ids where there is no tokenizer
  double parent_perplexity = 0, perplexity = 0;  // exp of the mean nats a predicted token
  bool preserves = false;  // whether parent and child compute one function by construction
                           // (core/route/README.md)
  std::string words;       // the conclusion in a sentence
};

OrderedJson to_json(const Certificate& certificate);

// The ids to compare on: `text_file` when not empty, else an embedded text, tokenised by the
// parent's tokenizer; without a tokenizer, ids counted through the vocabulary. At most
// `max_tokens`. `flag` is where text_file comes from.
struct VerifyText {
  std::vector<int64_t> ids;
  std::string name;
  c10::Device device = c10::kCPU;  // where models run on it
};
VerifyText verify_text(const io::Checkpoint& parent, const std::filesystem::path& text_file,
                       int64_t max_tokens, const char* flag = "--verify-text");

// The ids in windows of at most 512, or of what the model was made for: a routing group each.
std::vector<std::vector<int64_t>> verify_windows(const VerifyText& text, const ModelConfig& config);

// Bytes of host memory that verify_equality() takes for `parent` and a `child` that is
// still to be written; without a child, what a run of the parent alone takes (calibrate.h).
uint64_t verify_bytes(const io::Checkpoint& parent, const ModelConfig* child, c10::Device device);

// Runs both folders in f32 over the windows of `text`. `gate_scale` stands in for the child's own.
// `difference` says why the child's weights give another function than the parent's
// (changes_function(), upcycle.h).
Certificate verify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                            const VerifyText& text, std::optional<double> gate_scale = {},
                            const std::string& difference = "");

// The certificate of `child` as JSON; where its gate_scale is not 1, what it would be with 1 stands
// inside as "without_gate_scale", so that the difference is seen.
OrderedJson certify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                             const VerifyText& text, const std::string& difference = "");

}  // namespace moe::model
