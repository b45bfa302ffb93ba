#pragma once
// The equality certificate: an upcycled folder and its dense parent are run on the same text, and
// the verdict follows from how far apart their logits are. upcycle.json stores it with a
// fingerprint of the folder, so that a reader knows whether it is of these weights.

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
  kIdentical,  // max |delta logit| <= identical_tolerance()
  kClose,      // mean KL < kCloseKl
  kDifferent,
};
const char* to_string(Verdict verdict);  // "identical", "close", "different"

// Bound of mean KL(parent || child) for kClose, in nats per token. On text that the parent itself
// writes, the child's perplexity is exp(KL) times the parent's: 1 % more at most.
inline constexpr double kCloseKl = 0.01;

// Returns how far two f32 computations of one function may be apart in a logit: the child of
// config `child`, whose parent's largest |logit| is `max_abs_logit`. verify.cpp derives it.
double identical_tolerance(const ModelConfig& child, double max_abs_logit);

struct Certificate {
  Verdict verdict = Verdict::kDifferent;
  double max_abs_logit_difference = 0;  // over all tokens and vocabulary entries; NaN if one is
  double max_abs_logit = 0;             // of the parent
  double tolerance = 0;                 // identical_tolerance()
  double mean_kl = 0;                   // nats per token, KL(parent || child), in f64
  int64_t tokens = 0;
  double gate_scale = 1;     // in force on the child
  double dropped_share = 0;  // requests that found no slot, of all requests
  std::string
      text;  // what was read: a file, the embedded text, or counted ids where there is no tokenizer
  double parent_perplexity = 0, perplexity = 0;  // exp of the mean nats a predicted token
  std::string words;  // the verdict in a sentence: how much, why, what to do
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

// Identifies what a certificate was measured on.
struct Fingerprint {
  std::string config_sha256;   // of config.json
  std::string sampled_sha256;  // sampled_sha256() of upcycle.h
  std::string weights_xxh3;    // of names, types, shapes and all bytes of the tensors, by name
};
// Returns the fingerprint of a folder; reads all weights.
Fingerprint fingerprint(const io::Checkpoint& folder);

// Returns the certificate of `child` as JSON, with its fingerprint as "measured_on". If the child's
// gate_scale is not 1, "without_gate_scale" is the certificate with a gate_scale of 1.
OrderedJson certify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                             const VerifyText& text, const std::string& difference = "");

// Whether the certificate in upcycle.json is of the folder's present weights.
struct StoredVerdict {
  enum class State {
    kNoCertificate,  // none was measured
    kNotOfThese,     // weights or config.json are others than those it was measured on
    kUnknown,        // it has no fingerprint, or upcycle.json cannot be read
    kHolds,
  };
  State state = State::kNoCertificate;
  std::string verdict;  // of the certificate, whatever the state; empty if it has none
  std::string words;    // a sentence for people
};
const char* to_string(
    StoredVerdict::State state);  // "not measured", "outdated", "unknown", "holds"

// Reads the verdict stored with an upcycled folder. Compares config.json and the first bytes of
// every tensor; reads all weights only if a file of them is newer than upcycle.json.
StoredVerdict stored_verdict(const io::Checkpoint& folder);

}  // namespace moe::model
