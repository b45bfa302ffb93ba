#include "core/model/convert/router_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/io/mapped_file.h"
#include "core/model/convert/balanced_kmeans.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::model {

using at::Tensor;

namespace {

namespace fs = std::filesystem;

constexpr size_t kForwardTokens = 512;  // of one forward, as verify_bytes() counts
constexpr double kLongestRow = 1e4;     // beyond it a difference of texts is rounding
constexpr double kEntropyTolerance = 1e-7;
constexpr double kSaturated = 0.05, kUniform = 0.98;  // entropies, as shares of ln E

// --------------------------------------------------------------------------------------- prompts

// The experts that a folder of --expert, as `key` says it, has.
std::vector<int64_t> experts_of_folder(const std::string& key,
                                       const std::vector<ExpertParent>& parents) {
  std::vector<int64_t> found;
  int64_t expert = 0;
  const auto without_slash = [](const fs::path& path) { return (path / "").parent_path(); };
  for (const auto& parent : parents) {
    const fs::path folder = without_slash(parent.folder);
    const bool is_named =
        !key.empty() && (without_slash(key) == folder || key == folder.filename());
    for (int64_t copy = 0; copy < parent.copies; ++copy, ++expert) {
      if (is_named) {
        found.push_back(expert);
      }
    }
  }
  return found;
}

size_t expert_of_key(const std::string& key, const std::string& where, int64_t experts,
                     const std::vector<ExpertParent>& parents) {
  int64_t number = -1;
  const char* const end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, number);
  if (error == std::errc() && stop == end && number >= 0 && number < experts) {
    return static_cast<size_t>(number);
  }
  const auto found = experts_of_folder(key, parents);
  if (found.empty()) {
    throw UserError("{}: names expert '{}', there are experts 0 to {}{}", where, key, experts - 1,
                    parents.empty() ? "" : " and the folders of --expert");
  }
  if (found.size() > 1) {
    throw UserError("{}: '{}' is experts {}; give each its own texts by its number", where, key,
                    fmt::join(found, ", "));
  }
  return static_cast<size_t>(found.front());
}

std::vector<std::string> texts_in(const Json& list, const std::string& where) {
  if (!list.is_array() ||
      !std::all_of(list.begin(), list.end(), [](const Json& text) { return text.is_string(); })) {
    throw UserError("{}: must be a list of texts", where);
  }
  return list.get<std::vector<std::string>>();
}

// `where` is "FILE: expert 2".
ExpertPrompts prompts_of(const Json& value, const std::string& where) {
  ExpertPrompts prompts;
  if (value.is_object()) {
    for (const auto& [key, list] : value.items()) {
      if (key != "positive" && key != "negative") {
        throw UserError("{}: '{}' is neither 'positive' nor 'negative'", where, key);
      }
      auto& texts = key == "positive" ? prompts.positive : prompts.negative;
      texts = texts_in(list, fmt::format("{}, '{}'", where, key));
    }
  } else {
    prompts.positive = texts_in(value, where);
  }
  if (prompts.positive.empty()) {
    throw UserError("{}: has no text; give it at least one that it is for", where);
  }
  return prompts;
}

// The sequence of `text` in `out`, added where it is new.
size_t sequence_of(const std::string& text, const io::Tokenizer& tokenizer,
                   std::map<std::string, size_t>& known, RouterText& out) {
  const auto [found, is_new] = known.try_emplace(text, out.sequences.size());
  if (is_new) {
    std::vector<int64_t> ids = tokenizer.encode(text);
    if (ids.empty()) {
      throw UserError("{}: one of its texts is empty", out.name);
    }
    if (out.bos >= 0) {
      ids.insert(ids.begin(), out.bos);
    }
    out.sequences.push_back(std::move(ids));
  }
  return found->second;
}

// ---------------------------------------------------------------------------------------- states

bool begins_with_bos(const std::vector<int64_t>& sequence, int64_t bos) {
  return bos >= 0 && !sequence.empty() && sequence.front() == bos;
}

int64_t counted_tokens(const std::vector<int64_t>& sequence, int64_t bos) {
  return static_cast<int64_t>(sequence.size()) - (begins_with_bos(sequence, bos) ? 1 : 0);
}

int64_t counted_tokens(const RouterText& text) {
  int64_t count = 0;
  for (const auto& sequence : text.sequences) {
    count += counted_tokens(sequence, text.bos);
  }
  return count;
}

// Token sequences of at most `most` tokens in place of a longer one, each behind its BOS.
std::vector<std::vector<int64_t>> pieces_of(const std::vector<int64_t>& sequence, int64_t bos,
                                            size_t most) {
  const size_t head = begins_with_bos(sequence, bos) ? 1 : 0;
  const size_t step = std::max(most, head + 1) - head;
  std::vector<std::vector<int64_t>> pieces;
  for (size_t first = head; first < sequence.size(); first += step) {
    std::vector<int64_t> piece(sequence.begin(), sequence.begin() + static_cast<int64_t>(head));
    const auto begin = sequence.begin() + static_cast<int64_t>(first);
    piece.insert(piece.end(), begin,
                 begin + static_cast<int64_t>(std::min(step, sequence.size() - first)));
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// One forward's sequences, and which of its tokens count.
struct Pack {
  std::vector<int64_t> ids, lengths, counted;

  void add(const std::vector<int64_t>& piece, int64_t bos) {
    for (size_t index = begins_with_bos(piece, bos) ? 1 : 0; index < piece.size(); ++index) {
      counted.push_back(static_cast<int64_t>(ids.size() + index));
    }
    ids.insert(ids.end(), piece.begin(), piece.end());
    lengths.push_back(static_cast<int64_t>(piece.size()));
  }
};

std::vector<Pack> packs_of(const RouterText& text, const ModelConfig& config) {
  const auto most = std::min(kForwardTokens, static_cast<size_t>(config.longest_sequence()));
  std::vector<Pack> packs(1);
  for (const auto& sequence : text.sequences) {
    for (const auto& piece : pieces_of(sequence, text.bos, most)) {
      if (!packs.back().ids.empty() && packs.back().ids.size() + piece.size() > kForwardTokens) {
        packs.emplace_back();
      }
      packs.back().add(piece, text.bos);
    }
  }
  return packs;
}

// The states [N, D] f32 of each MoE layer of `child`, of the counted tokens in the text's order.
std::map<int64_t, Tensor> read_states(const io::Checkpoint& base, const ModelConfig& child,
                                      const RouterText& text) {
  const Llama dense = Llama::load(base, {}, text.device, Storage::kStored);
  std::map<int64_t, Tensor> states;
  for (const int64_t layer : child.moe->layers) {
    states[layer] = at::empty({counted_tokens(text), child.hidden_size}, at::kFloat);
  }
  int64_t done = 0;
  for (const Pack& pack : packs_of(text, dense.config())) {
    const auto count = static_cast<int64_t>(pack.counted.size());
    const Tensor counted = at::tensor(pack.counted, at::kLong);
    const Packed tokens{at::tensor(pack.ids, at::kLong), pack.lengths};
    dense.forward(tokens, dense.default_routing(), [&](int64_t layer, const Tensor& input) {
      if (const auto found = states.find(layer); found != states.end()) {
        const Tensor rows = input.index_select(0, counted.to(input.device()));
        found->second.narrow(0, done, count).copy_(rows);
      }
    });
    done += count;
  }
  return states;
}

// ------------------------------------------------------------------------------------------ rows

// Where each sequence's states begin, and at the end how many there are.
std::vector<int64_t> begins_of(const RouterText& text) {
  std::vector<int64_t> begins = {0};
  for (const auto& sequence : text.sequences) {
    begins.push_back(begins.back() + counted_tokens(sequence, text.bos));
  }
  return begins;
}

// The mean state [D] f64 over the tokens of `sequences`, equal ones counted as often as they stand.
Tensor mean_state(const Tensor& states, const std::vector<size_t>& sequences,
                  const std::vector<int64_t>& begins) {
  Tensor sum = at::zeros({states.size(1)}, at::kDouble);
  int64_t tokens = 0;
  for (const size_t sequence : sequences) {
    const int64_t count = begins[sequence + 1] - begins[sequence];
    sum += states.narrow(0, begins[sequence], count).to(at::kDouble).sum(0);
    tokens += count;
  }
  return sum / static_cast<double>(tokens);
}

// The experts before they were cut: the slices of one are chosen together at the start, by one row.
int64_t whole_experts(const MoeConfig& moe) { return moe.experts / moe.granularity; }

// [E, D] f32, each row of length 1.
Tensor rows_of_prompts(const Tensor& states, const RouterText& text) {
  const auto begins = begins_of(text);
  std::vector<Tensor> rows;
  for (size_t expert = 0; expert < text.experts.size(); ++expert) {
    const auto& [positive, negative] = text.experts[expert];
    Tensor row = mean_state(states, positive, begins);
    const double before = row.norm().item<double>();
    if (!negative.empty()) {
      row = row - mean_state(states, negative, begins);
    }
    const double norm = row.norm().item<double>();
    if (!(norm > 1e-6 * before)) {
      throw UserError(
          "{}: the negative texts of expert {} leave nothing of its positive ones; give texts that "
          "differ",
          text.name, expert);
    }
    rows.push_back((row / norm).to(at::kFloat));
  }
  return at::stack(rows);
}

Tensor rows_of_clusters(const Tensor& states, const MoeConfig& moe, int64_t layer,
                        const RouterText& text) {
  const int64_t experts = whole_experts(moe);
  if (states.size(0) < experts) {
    throw UserError("{}: {} tokens are fewer than the {} experts; give a longer text", text.name,
                    states.size(0), experts);
  }
  const Tensor rows =
      balanced_centroids(states, experts, static_cast<uint64_t>(moe.router_seed),
                         fmt::format("model.layers.{}.mlp.gate.weight clusters", layer));
  if (rows.size(0) < experts) {
    throw UserError(
        "{}: its tokens have only {} different states in layer {}, {} experts need as many; give a "
        "text of more kinds",
        text.name, rows.size(0), layer, experts);
  }
  return rows;
}

// The numbers that an unmeasured router is drawn with.
Tensor random_rows(const ModelConfig& child, int64_t layer) {
  const MoeConfig& moe = *child.moe;
  Tensor rows = at::empty({whole_experts(moe), child.hidden_size}, at::kFloat);
  Random random(static_cast<uint64_t>(moe.router_seed),
                fmt::format("model.layers.{}.mlp.gate.weight", layer));
  random.fill_normal({rows.data_ptr<float>(), static_cast<size_t>(rows.numel())}, moe.router_std);
  return rows;
}

// The states that the entropy is the mean over: of prompts those of positive texts.
Tensor measured_states(const Tensor& states, const RouterText& text) {
  if (text.experts.empty()) {
    return states;
  }
  const auto begins = begins_of(text);
  std::vector<bool> is_positive(text.sequences.size(), false);
  for (const auto& expert : text.experts) {
    for (const size_t sequence : expert.positive) {
      is_positive[sequence] = true;
    }
  }
  std::vector<Tensor> parts;
  for (size_t sequence = 0; sequence < is_positive.size(); ++sequence) {
    if (is_positive[sequence]) {
      parts.push_back(states.narrow(0, begins[sequence], begins[sequence + 1] - begins[sequence]));
    }
  }
  return at::cat(parts);
}

// ----------------------------------------------------------------------------------------- scale

// Log-probabilities [N, E] f64 of logits that are multiplied by `scale`.
Tensor scaled_log_softmax(const Tensor& logits, double scale) {
  return (logits.to(at::kDouble) * scale).log_softmax(1);
}

// The mean entropy as a share of ln E.
double mean_entropy(const Tensor& log_probabilities) {
  const double nats = -(log_probabilities.exp() * log_probabilities).sum(1).mean().item<double>();
  return nats / std::log(static_cast<double>(log_probabilities.size(1)));
}

// What to multiply `rows` by. A token's entropy falls as the scale grows, its derivative in the
// scale s being -s times the variance of the logits, so that bisection finds the one there is.
double scale_for(const Tensor& logits, const Tensor& rows, double wanted, int64_t layer,
                 const RouterText& text) {
  const double longest = at::linalg_vector_norm(rows, 2, 1).max().item<double>();
  double low = 0, high = longest > 0 ? kLongestRow / longest : 0;
  const double least = mean_entropy(scaled_log_softmax(logits, high));
  if (!(least <= wanted)) {
    throw UserError(
        "--router-entropy {}: in layer {} the rows of the experts are too alike on {}: at any "
        "scale "
        "the entropy is {:.4f} of ln E or more; give texts that differ more, or a higher entropy",
        wanted, layer, text.name, least);
  }
  double scale = high;
  for (int step = 0; step < 100; ++step) {
    scale = (low + high) / 2;
    const double entropy = mean_entropy(scaled_log_softmax(logits, scale));
    if (std::abs(entropy - wanted) < kEntropyTolerance) {
      break;
    }
    (entropy > wanted ? low : high) = scale;
  }
  return scale;
}

LayerStart measure(int64_t layer, const Tensor& rows, const Tensor& states) {
  LayerStart start;
  start.layer = layer;
  const Tensor stored = rows.contiguous();
  const auto* const values = stored.const_data_ptr<float>();
  start.rows.assign(values, values + stored.numel());
  start.row_norm = at::linalg_vector_norm(rows, 2, 1).mean().item<double>();
  const Tensor log_probabilities = scaled_log_softmax(at::mm(states, rows.t()), 1);
  start.entropy = mean_entropy(log_probabilities);
  const auto [best, choice] = log_probabilities.max(1);
  start.largest_probability = best.exp().mean().item<double>();
  const Tensor counts = at::bincount(choice, {}, rows.size(0)).to(at::kDouble);
  for (int64_t expert = 0; expert < rows.size(0); ++expert) {
    start.first_choices.push_back(counts[expert].item<double>() /
                                  static_cast<double>(states.size(0)));
  }
  return start;
}

}  // namespace

double RouterInit::wanted_entropy() const { return entropy.value_or(kUsualEntropy); }

RouterInit parse_router_init(const std::string& text) {
  if (text == "random") {
    return {};
  }
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string file = colon == std::string::npos ? "" : text.substr(colon + 1);
  if ((kind != "prompts" && kind != "cluster") || file.empty()) {
    throw UserError("--router-init '{}': is none of random, prompts:FILE and cluster:FILE", text);
  }
  return {kind == "prompts" ? RouterInit::Kind::kPrompts : RouterInit::Kind::kCluster, file, {}};
}

std::string to_string(const RouterInit& init) {
  switch (init.kind) {
    case RouterInit::Kind::kRandom:
      return "random";
    case RouterInit::Kind::kPrompts:
      return "prompts:" + init.file.string();
    case RouterInit::Kind::kCluster:
      return "cluster:" + init.file.string();
  }
  MOE_CHECK(false, "router init {}", static_cast<int>(init.kind));
}

void check_router_init(const RouterInit& init, const route::RouterSettings& router,
                       int64_t experts) {
  if (!init.is_measured()) {
    return;
  }
  const std::string flag = init.kind == RouterInit::Kind::kRandom
                               ? fmt::format("--router-entropy {}", *init.entropy)
                               : "--router-init " + to_string(init);
  if (init.entropy && !(*init.entropy > 0 && *init.entropy < 1)) {
    throw UserError(
        "--router-entropy {}: must lie between 0 (one expert alone) and 1 (all alike), a share of "
        "ln E",
        *init.entropy);
  }
  if (!router.family->has_softmax_scores) {
    throw UserError("{}: the logits of {} are no softmax, so that no entropy can scale them", flag,
                    route::to_string(router));
  }
  if (experts < 2) {
    throw UserError("{}: a router of one expert has nothing to choose; give --experts 2 or more",
                    flag);
  }
}

std::vector<ExpertPrompts> read_prompts(const std::filesystem::path& file, int64_t experts,
                                        const std::vector<ExpertParent>& parents) {
  const std::string where = file.string();
  const io::MappedFile mapped(file);
  const auto bytes = mapped.bytes();
  const Json json = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where,
                               DuplicateKeys::kRefused);
  if (!json.is_object()) {
    throw UserError(
        "{}: must be an object of experts and their texts, like {{\"0\": [\"a text\"]}}", where);
  }
  std::vector<ExpertPrompts> prompts(static_cast<size_t>(experts));
  for (const auto& [key, value] : json.items()) {
    const size_t expert = expert_of_key(key, where, experts, parents);
    if (!prompts[expert].positive.empty()) {
      throw UserError("{}: names expert {} twice, by its number and by its folder", where, expert);
    }
    prompts[expert] = prompts_of(value, fmt::format("{}: expert '{}'", where, key));
  }
  for (size_t expert = 0; expert < prompts.size(); ++expert) {
    if (prompts[expert].positive.empty()) {
      throw UserError("{}: says nothing of expert {}; each of the {} experts needs texts", where,
                      expert, experts);
    }
  }
  return prompts;
}

RouterText text_of_prompts(const io::Checkpoint& base, const std::vector<ExpertPrompts>& prompts,
                           const std::string& name) {
  if (!io::tokenizer_kind(base.folder())) {
    throw UserError("{}: no tokenizer, so the texts of {} cannot be tokenised",
                    base.folder().string(), name);
  }
  const int64_t vocab_size = parse_config(base.config(), base.config_name()).vocab_size;
  const auto tokenizer = io::Tokenizer::load(base.folder(), vocab_size);
  RouterText text;
  text.name = name;
  text.bos = tokenizer.bos_id();
  std::map<std::string, size_t> known;
  const auto add_all = [&](const std::vector<std::string>& texts, std::vector<size_t>& sequences) {
    for (const auto& prompt : texts) {
      sequences.push_back(sequence_of(prompt, tokenizer, known, text));
    }
  };
  for (const auto& expert : prompts) {
    add_all(expert.positive, text.experts.emplace_back().positive);
    add_all(expert.negative, text.experts.back().negative);
  }
  if (const int64_t tokens = counted_tokens(text); tokens > kMostRouterTokens) {
    throw UserError("{}: its texts have {} tokens; at most {} are read, leave some out", name,
                    tokens, kMostRouterTokens);
  }
  return text;
}

RouterStart start_routers(const io::Checkpoint& base, const ModelConfig& child,
                          const RouterInit& init, const RouterText& text) {
  const at::NoGradGuard no_gradients;
  const bool is_random = init.kind == RouterInit::Kind::kRandom;
  RouterStart start{text.name, 0, {}};
  for (auto& [layer, states] : read_states(base, child, text)) {
    const Tensor unscaled = is_random ? random_rows(child, layer)
                            : text.experts.empty()
                                ? rows_of_clusters(states, *child.moe, layer, text)
                                : rows_of_prompts(states, text);
    const Tensor measured = measured_states(states, text);
    const double scale =
        scale_for(at::mm(measured, unscaled.t()), unscaled, init.wanted_entropy(), layer, text);
    start.layers.push_back(measure(layer, unscaled * scale, measured));
    start.tokens = measured.size(0);
  }
  return start;
}

uint64_t state_bytes(const ModelConfig& child, const RouterText& text) {
  // Of each layer in f32, and once more of the layer whose rows are made.
  const auto layers = static_cast<uint64_t>(child.moe->layers.size()) + 1;
  return layers * static_cast<uint64_t>(counted_tokens(text)) *
         static_cast<uint64_t>(child.hidden_size) * sizeof(float);
}

OrderedJson to_json(const RouterStart& start) {
  OrderedJson json = {{"text", start.text}, {"tokens", start.tokens}};
  json["layers"] = OrderedJson::array();
  for (const auto& layer : start.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"row_norm", layer.row_norm},
                              {"entropy", layer.entropy},
                              {"largest_probability", layer.largest_probability},
                              {"first_choices", layer.first_choices},
                              {"words", describe(layer)}});
  }
  return json;
}

std::string describe(const LayerStart& layer) {
  const auto& shares = layer.first_choices;
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format(
      "layer {}: entropy {:.3f} of ln {}, largest probability {:.3f}, first choices {:.1f} % "
      "(expert {}) to {:.1f} % (expert {})",
      layer.layer, layer.entropy, shares.size(), layer.largest_probability, 100 * *least,
      least - shares.begin(), 100 * *most, most - shares.begin());
}

std::vector<std::string> advice(const RouterStart& start) {
  std::vector<std::string> sentences;
  for (const auto& layer : start.layers) {
    if (layer.entropy < kSaturated) {
      sentences.push_back(
          fmt::format("layer {}: the router starts saturated, its largest probability is {:.3f} in "
                      "the mean and "
                      "its gradient near 0; a higher --router-entropy lets it learn",
                      layer.layer, layer.largest_probability));
    }
    if (layer.entropy > kUniform) {
      sentences.push_back(fmt::format(
          "layer {}: the router starts uniform, its largest probability is {:.3f} in the mean; a "
          "lower --router-entropy makes its choice count",
          layer.layer, layer.largest_probability));
    }
    std::vector<size_t> never;
    for (size_t expert = 0; expert < layer.first_choices.size(); ++expert) {
      if (layer.first_choices[expert] == 0) {
        never.push_back(expert);
      }
    }
    if (!never.empty()) {
      sentences.push_back(
          fmt::format("layer {}: {} of {} experts are the first choice of none of the {} tokens of "
                      "{}: {}; texts "
                      "that differ more would give them some",
                      layer.layer, never.size(), layer.first_choices.size(), start.tokens,
                      start.text, fmt::join(never, ", ")));
    }
  }
  return sentences;
}

}  // namespace moe::model
