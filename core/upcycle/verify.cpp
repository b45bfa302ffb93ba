#include "core/upcycle/verify.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/io/checksums.h"
#include "core/model/llama/llama.h"
#include "core/model/llama/memory_need.h"
#include "core/tokenizer/tokenizer.h"
#include "core/upcycle/upcycle.h"
#include "kernels/ops/device.h"

namespace moe::model {
namespace {

using at::Tensor;

constexpr int64_t kWindowTokens = 512;

constexpr const char* kEmbeddedText =
    "The ferry leaves the harbour at seven in the morning and again at noon. On most days it "
    "carries farmers with baskets of eggs, a few children on their way to school, and old Mr "
    "Hansen, who has crossed every Tuesday for thirty-one years to play chess with his brother. "
    "He always loses. \"If I won,\" he says, \"I would have no reason to come back.\" The "
    "captain, a patient woman named Ida, keeps a notebook in which she writes the time, the wind "
    "and the number of passengers: 07:02, north-west 4, 23 people; 12:05, west 5, 17 people and a "
    "goat.\n\nWater boils at 100 degrees at sea level, but at 90 on a mountain 3,000 metres high, "
    "because the air is thinner there. A triangle with sides 3, 4 and 5 has a right angle: 9 + 16 "
    "= 25. To list the files of a folder, type `ls -l`; to count the lines of a text, type `wc -l "
    "notes.txt`. Nobody knows who first noticed that bread rises when the dough is left alone, "
    "but everyone who smells it in the oven is grateful to them.\n";

std::string read_text(const std::filesystem::path& file, const char* flag) {
  constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;
  try {
    return read_small_file(file, kMaxTextBytes, Pipes::kAllowed);
  } catch (const UserError& error) {
    throw UserError("{}; {} needs a text file", error.what(), flag);
  }
}

// Returns a sentence with the verdict, the measured numbers, and the reason from `expected`, the
// result of preserves_parent().
std::string conclude(const Certificate& certificate, const route::RouterSettings& router,
                     bool names_scale, const route::FunctionPreservation& expected) {
  const bool is_identical = certificate.verdict == Verdict::kIdentical;
  std::string reason = expected.words;
  if (is_identical && !expected.exact) {
    reason = "on this text; " + reason;
  } else if (!is_identical && expected.exact) {
    reason = "which its construction does not explain (" + reason + ")";
  }
  const std::string bound =
      certificate.verdict == Verdict::kDifferent
          ? fmt::format("different from the dense model (close is a mean KL below {:g})", kCloseKl)
      : certificate.verdict == Verdict::kClose
          ? fmt::format("close to the dense model (mean KL below {:g})", kCloseKl)
          : "identical to the dense model, but for rounding";
  return fmt::format(
      "{}: router {}{}: max |delta logit| {:.2e} (rounding: {:.1e}), mean KL {:.2e} nats a token, "
      "perplexity {:.4g} -> {:.4g}, {:.1f} % of requests dropped, over {} tokens of {}; {}",
      bound, route::to_string(router),
      names_scale ? fmt::format(", gate_scale {:.6g}", certificate.gate_scale) : "",
      certificate.max_abs_logit_difference, certificate.tolerance, certificate.mean_kl,
      certificate.parent_perplexity, certificate.perplexity, 100 * certificate.dropped_share,
      certificate.tokens, certificate.text, reason);
}

double max_or_nan(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

// Returns the sum of -log p of each token after the first. `log_probabilities` [T, V], T ids.
double next_token_nats(const Tensor& log_probabilities, const std::vector<int64_t>& ids) {
  const auto predicted = std::ssize(ids) - 1;
  const Tensor next = at::tensor(ids, at::kLong).slice(0, 1).to(log_probabilities.device());
  return -log_probabilities.slice(0, 0, predicted)
              .gather(1, next.unsqueeze(1))
              .sum()
              .item<double>();
}

// Adds the differences of one window to `certificate`. The fields mean_kl and the perplexities
// accumulate sums of nats, from which verify_equality() computes the results.
void compare_window(const Llama& parent, const Llama& child, const std::vector<int64_t>& ids,
                    int64_t logits, const RoutingOptions& routing, Certificate& certificate,
                    route::CounterValues& counted) {
  const Packed tokens{at::tensor(ids, at::kLong), {std::ssize(ids)}};
  const Tensor expected =
      parent.head(parent.forward(tokens, parent.default_routing()).hidden).slice(1, 0, logits);
  const ForwardResult result = child.forward(tokens, routing);
  const Tensor actual = child.head(result.hidden).slice(1, 0, logits);
  certificate.max_abs_logit_difference = max_or_nan(certificate.max_abs_logit_difference,
                                                    (actual - expected).abs().max().item<double>());
  certificate.max_abs_logit =
      max_or_nan(certificate.max_abs_logit, expected.abs().max().item<double>());
  const Tensor log_p = expected.to(at::kDouble).log_softmax(-1);
  const Tensor log_q = actual.to(at::kDouble).log_softmax(-1);
  certificate.mean_kl += (log_p.exp() * (log_p - log_q)).sum().item<double>();
  certificate.parent_perplexity += next_token_nats(log_p, ids);
  certificate.perplexity += next_token_nats(log_q, ids);
  for (const auto& layer : route::read_counters(result.counters)) {
    counted.add(layer);
  }
}

// Returns the parent's tokenizer, or nullopt if it has none. With `is_optional`, returns nullopt
// also if its tokenizer.json is not supported.
std::optional<io::Tokenizer> load_tokenizer(const io::Checkpoint& parent, int64_t vocab_size,
                                            bool is_optional) {
  const auto kind = io::tokenizer_kind(parent.folder());
  if (!kind) {
    return std::nullopt;
  }
  try {
    return io::Tokenizer::load(parent.folder(), vocab_size);
  } catch (const UserError&) {
    if (is_optional && kind == io::TokenizerKind::kTokenizerJson) {
      return std::nullopt;
    }
    throw;
  }
}

std::string weights_xxh3(const io::Checkpoint& folder) {
  constexpr size_t kBlockBytes = size_t{8} << 20;
  io::ContentHash hash;
  for (const auto& info : folder.tensors()) {
    hash.update_text(
        fmt::format("{} {} {}", info.name, io::dtype_name(info.dtype), io::shape_text(info.shape)));
    const auto bytes = folder.bytes(info.name);
    for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
      const auto block = bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin));
      hash.update(block);
      folder.tensor_file(info.name)->file().drop(block);
    }
  }
  return hash.digest().hex();
}

// Returns the part of a folder that differs from the hashes `measured`: "config.json", "the
// weights" or "". Reads all weights only if one of their files is not older than `report`.
std::string changed_part(const io::Checkpoint& folder, const Json& measured,
                         const std::string& where, const std::filesystem::path& report) {
  if (config_sha256(folder) != get_string(measured, "config_sha256", where)) {
    return "config.json";
  }
  const auto written = std::filesystem::last_write_time(report);
  const bool is_newer = std::ranges::any_of(folder.tensors(), [&](const auto& info) {
    return std::filesystem::last_write_time(folder.tensor_file(info.name)->path()) >= written;
  });
  const bool is_same =
      sampled_sha256(folder) == get_string(measured, "sampled_sha256", where) &&
      (!is_newer || weights_xxh3(folder) == get_string(measured, "weights_xxh3", where));
  return is_same ? "" : "the weights";
}

// Returns the maximum difference of a logit that f32 rounding explains if parent and child compute
// the same function in exact arithmetic. `max_abs_logit` is the largest |logit| of the parent.
//
// Both models round to f32, with unit roundoff u = 2^-24, in sums of different lengths and orders.
// A sum of n products has a relative error of at most s sqrt(n) u, except with probability 2
// exp(-s^2 / 2) (Higham and Mary 2019, Theorem 2.4). s = 6 makes that probability 3e-8. Terms of an
// MoE layer with K experts per token of width F, in units of u:
//   gate and up: sums of D products each, s 2 sqrt(D);
//   down: sums of F products in each of K experts, s sqrt(F K);
//   K weighted experts whose gates sum to 1: 2 K + 2, without a root because the K + 1 roundings
//   are not independent.
// Both models round: factor 2. The errors of L layers are independent: factor sqrt(L). To first
// order, later layers, norms and head preserve a relative error of the hidden state, so the bound
// is relative to the largest logit.
double identical_tolerance(const ModelConfig& child, double max_abs_logit) {
  constexpr double kUnit = 0x1p-24, kSpread = 6;
  if (!child.moe) {
    return 0;
  }
  const auto experts = static_cast<double>(std::min<int64_t>(
      child.moe->experts, std::max<int64_t>(1, child.moe->router.k) + 2));  // k + 2: +ir and +fr
  const auto width = static_cast<double>(child.moe->expert_width);
  const double layer =
      kSpread * (2 * std::sqrt(child.hidden_size) + std::sqrt(width * experts)) + 2 * experts + 2;
  const double layers = std::sqrt(child.moe->layers.size());
  return 2 * kUnit * layers * layer * max_abs_logit;
}

}  // namespace

const char* to_string(Verdict verdict) {
  constexpr std::array kNames = {"identical", "close", "different"};
  return kNames.at(static_cast<size_t>(verdict));
}

OrderedJson to_json(const Certificate& certificate) {
  return {{"verdict", to_string(certificate.verdict)},
          {"max_abs_logit_difference", certificate.max_abs_logit_difference},
          {"tolerance", certificate.tolerance},
          {"mean_kl", certificate.mean_kl},
          {"close_below_kl", kCloseKl},
          {"parent_perplexity", certificate.parent_perplexity},
          {"perplexity", certificate.perplexity},
          {"tokens", certificate.tokens},
          {"gate_scale", certificate.gate_scale},
          {"dropped_share", certificate.dropped_share},
          {"text", certificate.text},
          {"preserves_function", certificate.verdict == Verdict::kIdentical},
          {"words", certificate.words}};
}

VerifyText verify_text(const io::Checkpoint& parent, const std::filesystem::path& text_file,
                       int64_t max_tokens, const char* flag) {
  const int64_t vocab_size = parse_config(parent.config(), parent.config_name()).vocab_size;
  VerifyText result;
  if (const auto tokenizer = load_tokenizer(parent, vocab_size, text_file.empty())) {
    result.ids = tokenizer->encode(text_file.empty() ? std::string(kEmbeddedText)
                                                     : read_text(text_file, flag));
    result.bos = tokenizer->bos_id();
    if (result.bos >= 0) {
      result.ids.insert(result.ids.begin(), result.bos);
    }
    result.name = text_file.empty() ? "the embedded text" : text_file.string();
  } else if (text_file.empty()) {
    // A large prime stride spreads the ids over the vocabulary in an irregular order.
    for (int64_t index = 0; index < kWindowTokens; ++index) {
      result.ids.push_back((index * 7919 + 1) % vocab_size);
    }
    result.name = "ids spread over the vocabulary (no tokenizer)";
  } else {
    throw UserError("{}: no tokenizer, so {} cannot be tokenised; leave it out to verify on ids",
                    parent.folder().string(), flag);
  }
  result.ids.resize(std::min(result.ids.size(), static_cast<size_t>(max_tokens)));
  return result;
}

std::vector<std::vector<int64_t>> verify_windows(const VerifyText& text,
                                                 const ModelConfig& config) {
  const auto window = static_cast<size_t>(std::min(kWindowTokens, config.longest_sequence()));
  std::vector<std::vector<int64_t>> windows;
  for (size_t first = 0; first < text.ids.size(); first += window) {
    const auto begin = text.ids.begin() + static_cast<int64_t>(first);
    const size_t size = std::min(window, text.ids.size() - first);
    windows.emplace_back(begin, begin + static_cast<int64_t>(size));
  }
  return windows;
}

uint64_t verify_bytes(const io::Checkpoint& parent, const ModelConfig* child, c10::Device device) {
  const ModelConfig config = parse_config(parent.config(), parent.config_name());
  const auto model_bytes = [&](const ModelConfig& model) {
    const auto router = model.moe ? model.moe->router : route::RouterSettings{};
    return bytes_to_copy(model, Storage::kStored, device) +
           forward_bytes(model, router, kWindowTokens, 0, device);
  };
  uint64_t bytes = model_bytes(config) + (child != nullptr ? model_bytes(*child) : 0);
  if (child != nullptr && kernels::device_traits(device).has_host_memory) {
    // Logits of both models in f32, log-probabilities of both and three temporaries in f64.
    constexpr int64_t kBytesPerLogit = 2 * 4 + 5 * 8;
    bytes += kWindowTokens * config.vocab_size * kBytesPerLogit;
  }
  return bytes;
}

Certificate verify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                            const VerifyText& text, std::optional<double> gate_scale,
                            const std::string& difference) {
  const at::NoGradGuard no_gradients;
  const Llama parent_model = Llama::load(parent, {}, text.device, Storage::kStored);
  const Llama child_model = Llama::load(child, {}, text.device, Storage::kStored);
  RoutingOptions routing = child_model.default_routing();
  const auto& moe = child_model.config().moe;
  routing.gate_scale = gate_scale.value_or(moe ? moe->gate_scale : 1.0);
  Certificate certificate;
  certificate.text = text.name;
  certificate.tokens = std::ssize(text.ids);
  certificate.gate_scale = *routing.gate_scale;
  const route::FunctionPreservation expected =
      moe ? preserves_parent(*moe, *routing.gate_scale, difference)
          : route::preserves_function(routing.router, *routing.gate_scale);
  int64_t predicted = 0;
  route::CounterValues counted;
  for (const auto& ids : verify_windows(text, parent_model.config())) {
    compare_window(parent_model, child_model, ids,
                   text.logits > 0 ? text.logits : parent_model.config().vocab_size, routing,
                   certificate, counted);
    predicted += std::ssize(ids) - 1;
  }
  for (double* nats : {&certificate.parent_perplexity, &certificate.perplexity}) {
    *nats = std::exp(*nats / std::max<int64_t>(1, predicted));
  }
  certificate.mean_kl /= std::max<int64_t>(1, certificate.tokens);
  certificate.dropped_share = route::ratio(counted.dropped_requests, counted.requests);
  certificate.tolerance = identical_tolerance(child_model.config(), certificate.max_abs_logit);
  certificate.verdict = certificate.max_abs_logit_difference <= certificate.tolerance
                            ? Verdict::kIdentical
                        : certificate.mean_kl < kCloseKl ? Verdict::kClose
                                                         : Verdict::kDifferent;
  certificate.words =
      conclude(certificate, routing.router, gate_scale || certificate.gate_scale != 1.0, expected);
  return certificate;
}

OrderedJson certify_equality(const io::Checkpoint& parent, const io::Checkpoint& child,
                             const VerifyText& text, const std::string& difference) {
  const Certificate certificate = verify_equality(parent, child, text, {}, difference);
  OrderedJson json = to_json(certificate);
  if (certificate.gate_scale != 1.0) {
    json["without_gate_scale"] = to_json(verify_equality(parent, child, text, 1.0, difference));
  }
  json["measured_on"] = {{"config_sha256", config_sha256(child)},
                         {"sampled_sha256", sampled_sha256(child)},
                         {"weights_xxh3", weights_xxh3(child)}};
  return json;
}

const char* to_string(StoredVerdict::State state) {
  constexpr std::array kNames = {"not measured", "outdated", "unknown", "holds"};
  return kNames.at(static_cast<size_t>(state));
}

StoredVerdict stored_verdict(const io::Checkpoint& folder) {
  using State = StoredVerdict::State;
  const std::filesystem::path file = folder.folder() / kUpcycleReport;
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) {
    return {State::kNoCertificate, "",
            "not measured: no upcycle.json here, which training and other tools do not write"};
  }
  try {
    const Json report = read_json(file);
    if (!report.contains("certificate") || report["certificate"].is_null()) {
      return {State::kNoCertificate, "",
              "not measured: moe upcycle --verify compares it with the dense model"};
    }
    const Json& certificate = report["certificate"];
    const std::string where = file.string() + ": certificate";
    const std::string verdict = get_string(certificate, "verdict", where, "");
    if (verdict.empty() || !certificate.contains("measured_on")) {
      return {State::kUnknown, verdict,
              "not known: the certificate in upcycle.json has no hashes of the weights; moe "
              "upcycle --verify measures again"};
    }
    const std::string changed = changed_part(folder, certificate["measured_on"], where, file);
    if (!changed.empty()) {
      return {State::kOutdated, verdict,
              fmt::format("not measured for these weights: {} changed since the certificate in "
                          "upcycle.json, which said {}",
                          changed, verdict)};
    }
    return {State::kValid, verdict, get_string(certificate, "words", where)};
  } catch (const UserError& error) {
    return {State::kUnknown, "", fmt::format("not known: {}", error.what())};
  }
}

}  // namespace moe::model
