#pragma once
// Equality certificate of an upcycled folder: a comparison of its logits with those of its dense
// parent on a text, stored in upcycle.json with hashes of the compared weights.

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

enum class Verdict {
  kIdentical,  // max |delta logit| <= Certificate::tolerance
  kClose,      // mean KL < kCloseKl
  kDifferent,
};
const char* to_string(Verdict verdict);  // "identical", "close", "different"

// Bound of the mean KL(parent || child) for kClose, in nats per token. The perplexity on text
// sampled from the parent is then at most about 1 % higher.
inline constexpr double kCloseKl = 0.01;

struct Certificate {
  Verdict verdict = Verdict::kDifferent;
  double max_abs_logit_difference = 0;  // over tokens and vocabulary; NaN if a logit is NaN
  double max_abs_logit = 0;             // of the parent
  double tolerance = 0;                 // maximum difference explained by f32 rounding (verify.cpp)
  double mean_kl = 0;                   // nats per token, KL(parent || child), in f64
  int64_t tokens = 0;
  double gate_scale = 1;                         // of the child
  double dropped_share = 0;                      // dropped requests / requests
  std::string text;                              // name of the text
  double parent_perplexity = 0, perplexity = 0;  // exp of the mean nats per predicted token
  std::string words;  // sentence with the verdict, the numbers and the reason
};

OrderedJson to_json(const Certificate& certificate);

struct VerifyText {
  std::vector<int64_t> ids;
  std::string name;                // a file, "the embedded text", ...
  int64_t bos = -1;                // the id that precedes the text; -1: none
  c10::Device device = c10::kCPU;  // of the models
  int64_t logits = 0;              // number of leading logits to compare; 0: all
};

// Returns at most `max_tokens` ids of `text_file`, or of the embedded text if it is empty (without
// tokenizer: ids spread over the vocabulary). Throws UserError that names `flag`.
VerifyText verify_text(const io::Checkpoint& parent, const std::filesystem::path& text_file,
                       int64_t max_tokens, const char* flag = "--verify-text");

// Splits the ids into windows of 512 tokens, or of config.longest_sequence() if that is shorter.
// The tokens of a window are routed together.
std::vector<std::vector<int64_t>> verify_windows(const VerifyText& text, const ModelConfig& config);

// Returns the bytes of host memory of verify_equality(); without `child`, of a forward pass of the
// parent.
uint64_t verify_bytes(const io::Checkpoint& parent, const ModelConfig* child, c10::Device device);

// Runs both folders in f32 over the windows of `text`. `gate_scale`, if set, replaces that of the
// child. `difference` is the result of describe_difference() (upcycle.h).
Certificate verify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                            const VerifyText& text, std::optional<double> gate_scale = {},
                            const std::string& difference = "");

// Returns the certificate of `child` as JSON, with "measured_on": SHA-256 of config.json,
// sampled_sha256() (upcycle.h), and XXH3-128 over names, dtypes, shapes and all bytes of the
// tensors; and "without_gate_scale" (the same at gate_scale 1) if the child has another.
OrderedJson certify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                             const VerifyText& text, const std::string& difference = "");

// Verdict of the certificate in upcycle.json, and whether it applies to the current weights.
struct StoredVerdict {
  enum class State {
    kNoCertificate,
    kOutdated,  // config.json or weights have changed since the measurement
    kUnknown,   // the certificate has no hashes, or upcycle.json cannot be read
    kValid,
  };
  State state = State::kNoCertificate;
  std::string verdict;  // of the certificate, also if outdated; empty if it cannot be read
  std::string words;    // sentence for users
};
// Returns "not measured", "outdated", "unknown" or "holds".
const char* to_string(StoredVerdict::State state);

// Reads the verdict of an upcycled folder. Compares the hashes of config.json and of sampled
// weights, and those of all weights if one of their files is newer than upcycle.json.
StoredVerdict stored_verdict(const io::Checkpoint& folder);

}  // namespace moe::model
