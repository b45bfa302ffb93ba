#include "core/upcycle/router_init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/random.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::model {
namespace {

using at::Tensor;

namespace fs = std::filesystem;

constexpr size_t kForwardTokens = 512;  // per forward pass; verify_bytes() assumes it
constexpr double kMaxRowNorm = 1e4;     // larger norms only amplify rounding errors
constexpr double kEntropyTolerance = 1e-7;
constexpr double kSaturated = 0.05, kUniform = 0.98;  // entropies, fractions of ln E
constexpr int kMaxRounds = 50;
// Unit vectors with a smaller squared distance differ only by rounding.
constexpr double kMinDistance = 1e-6;

// Returns the experts from the --expert folders whose path, or its last component, is `key`.
std::vector<int64_t> find_experts(const std::string& key,
                                  const std::vector<ExpertParent>& parents) {
  std::vector<int64_t> experts;
  int64_t first = 0;
  const auto without_slash = [](const fs::path& path) { return (path / "").parent_path(); };
  for (const auto& parent : parents) {
    const fs::path folder = without_slash(parent.folder);
    if (!key.empty() && (without_slash(key) == folder || key == folder.filename())) {
      experts.resize(experts.size() + parent.copies);
      std::iota(experts.end() - parent.copies, experts.end(), first);
    }
    first += parent.copies;
  }
  return experts;
}

size_t parse_expert_key(const std::string& key, const std::string& where, int64_t experts,
                        const std::vector<ExpertParent>& parents) {
  int64_t number = -1;
  if (set_value(&number, key) && number >= 0 && number < experts) {
    return number;
  }
  const auto named = find_experts(key, parents);
  USER_ERROR_IF(named.empty(), "{}: names expert '{}', there are experts 0 to {}{}", where, key,
                experts - 1, parents.empty() ? "" : " and the folders of --expert");
  USER_ERROR_IF(named.size() > 1, "{}: '{}' is experts {}; give each its own texts by its number",
                where, key, fmt::join(named, ", "));
  return named.front();
}

std::vector<std::string> parse_texts(const Json& list, const std::string& where) {
  if (!list.is_array() ||
      !std::all_of(list.begin(), list.end(), [](const Json& text) { return text.is_string(); })) {
    throw UserError("{}: must be a list of texts", where);
  }
  return list.get<std::vector<std::string>>();
}

// Parses the value of one expert. `where` is "FILE: expert 2".
ExpertPrompts parse_prompts(const Json& value, const std::string& where) {
  ExpertPrompts prompts;
  if (value.is_object()) {
    for (const auto& [key, list] : value.items()) {
      USER_ERROR_IF(key != "positive" && key != "negative",
                    "{}: '{}' is neither 'positive' nor 'negative'", where, key);
      auto& texts = key == "positive" ? prompts.positive : prompts.negative;
      texts = parse_texts(list, fmt::format("{}, '{}'", where, key));
    }
  } else {
    prompts.positive = parse_texts(value, where);
  }
  USER_ERROR_IF(prompts.positive.empty(), "{}: has no positive text; add at least one", where);
  return prompts;
}

// Returns the index of the sequence of `text` in out.sequences. Adds the sequence if it is new.
size_t add_sequence(const std::string& text, const io::Tokenizer& tokenizer,
                    std::map<std::string, size_t>& known, RouterText& out) {
  const auto [entry, is_new] = known.try_emplace(text, out.sequences.size());
  if (is_new) {
    std::vector<int64_t> ids = tokenizer.encode(text);
    USER_ERROR_IF(ids.empty(), "{}: one of its texts is empty", out.name);
    if (out.bos >= 0) {
      ids.insert(ids.begin(), out.bos);
    }
    out.sequences.push_back(std::move(ids));
  }
  return entry->second;
}

bool has_bos(const std::vector<int64_t>& sequence, int64_t bos) {
  return bos >= 0 && !sequence.empty() && sequence.front() == bos;
}

// Returns the index of the first state of each sequence, followed by the number of states.
std::vector<int64_t> state_offsets(const RouterText& text) {
  std::vector<int64_t> offsets = {0};
  for (const auto& sequence : text.sequences) {
    offsets.push_back(offsets.back() + std::ssize(sequence) -
                      (has_bos(sequence, text.bos) ? 1 : 0));
  }
  return offsets;
}

// Sequences of one forward pass, and the indices of their tokens except BOS.
struct Pack {
  std::vector<int64_t> ids, lengths, counted;
};

// Packs the sequences. Splits a sequence longer than kForwardTokens or config.longest_sequence(),
// and repeats a leading BOS in each piece.
std::vector<Pack> make_packs(const RouterText& text, const ModelConfig& config) {
  const auto window = std::min(kForwardTokens, static_cast<size_t>(config.longest_sequence()));
  std::vector<Pack> packs(1);
  for (const auto& sequence : text.sequences) {
    const size_t head = has_bos(sequence, text.bos) ? 1 : 0;
    const size_t step = std::max(window, head + 1) - head;
    for (size_t first = head; first < sequence.size(); first += step) {
      const size_t count = std::min(step, sequence.size() - first);
      if (!packs.back().ids.empty() && packs.back().ids.size() + head + count > kForwardTokens) {
        packs.emplace_back();
      }
      Pack& pack = packs.back();
      pack.ids.insert(pack.ids.end(), head, text.bos);
      for (size_t token = first; token < first + count; ++token) {
        pack.counted.push_back(std::ssize(pack.ids));
        pack.ids.push_back(sequence[token]);
      }
      pack.lengths.push_back(static_cast<int64_t>(head + count));
    }
  }
  return packs;
}

// Returns the states [N, D] f32 of each MoE layer of `child`, in the order of text.sequences.
std::map<int64_t, Tensor> read_states(const io::Checkpoint& base, const ModelConfig& child,
                                      const RouterText& text, int64_t num_states) {
  const Llama dense = Llama::load(base, {}, text.device, Storage::kStored);
  std::map<int64_t, Tensor> states;
  for (const int64_t layer : child.moe->layers) {
    states[layer] = at::empty({num_states, child.hidden_size}, at::kFloat);
  }
  int64_t done = 0;
  for (const Pack& pack : make_packs(text, dense.config())) {
    const auto count = std::ssize(pack.counted);
    const Tensor counted = at::tensor(pack.counted, at::kLong);
    const Packed tokens{at::tensor(pack.ids, at::kLong), pack.lengths};
    dense.forward(tokens, dense.default_routing(), [&](int64_t layer, const Tensor& input) {
      if (const auto entry = states.find(layer); entry != states.end()) {
        const Tensor rows = input.index_select(0, counted.to(input.device()));
        entry->second.narrow(0, done, count).copy_(rows);
      }
    });
    done += count;
  }
  return states;
}

// Returns the mean state [D] f64 over the tokens of `sequences`. A repeated sequence counts again.
Tensor mean_state(const Tensor& states, const std::vector<size_t>& sequences,
                  const std::vector<int64_t>& offsets) {
  Tensor sum = at::zeros({states.size(1)}, at::kDouble);
  int64_t tokens = 0;
  for (const size_t sequence : sequences) {
    const int64_t count = offsets[sequence + 1] - offsets[sequence];
    sum += states.narrow(0, offsets[sequence], count).to(at::kDouble).sum(0);
    tokens += count;
  }
  return sum / static_cast<double>(tokens);
}

// Returns the number of experts before granularity, which is the number of different router rows.
int64_t whole_experts(const MoeConfig& moe) { return moe.experts / moe.granularity; }

// Returns router rows [E, D] f32 of norm 1 from the prompts of the experts.
Tensor prompt_rows(const Tensor& states, const RouterText& text,
                   const std::vector<int64_t>& offsets) {
  std::vector<Tensor> rows;
  for (size_t expert = 0; expert < text.experts.size(); ++expert) {
    const auto& [positive, negative] = text.experts[expert];
    Tensor row = mean_state(states, positive, offsets);
    const double positive_norm = row.norm().item<double>();
    if (!negative.empty()) {
      row = row - mean_state(states, negative, offsets);
    }
    const double norm = row.norm().item<double>();
    USER_ERROR_IF(
        !(norm > 1e-6 * positive_norm),
        "{}: the negative texts of expert {} cancel its positive ones; give texts that differ",
        text.name, expert);
    rows.push_back((row / norm).to(at::kFloat));
  }
  return at::stack(rows);
}

Tensor cluster_rows(const Tensor& states, const MoeConfig& moe, int64_t layer,
                    const RouterText& text) {
  const int64_t experts = whole_experts(moe);
  USER_ERROR_IF(states.size(0) < experts,
                "{}: {} tokens are fewer than the {} experts; give a longer text", text.name,
                states.size(0), experts);
  const Tensor rows = balanced_centroids(states, experts, moe.router_seed,
                                         layer_prefix(layer) + "mlp.gate.weight clusters");
  USER_ERROR_IF(rows.size(0) < experts,
                "{}: its tokens have only {} different states in layer {}, {} experts need at "
                "least as many; use a more varied text",
                text.name, rows.size(0), layer, experts);
  return rows;
}

Tensor random_rows(const ModelConfig& child, int64_t layer) {
  const MoeConfig& moe = *child.moe;
  Tensor rows = at::empty({whole_experts(moe), child.hidden_size}, at::kFloat);
  Random random(moe.router_seed, layer_prefix(layer) + "mlp.gate.weight");
  random.fill_normal({rows.data_ptr<float>(), static_cast<size_t>(rows.numel())}, moe.router_std);
  return rows;
}

// Returns the states for the entropy: those of the positive texts if there are prompts, else all.
Tensor measured_states(const Tensor& states, const RouterText& text,
                       const std::vector<int64_t>& offsets) {
  if (text.experts.empty()) {
    return states;
  }
  std::set<size_t> positive;
  for (const auto& expert : text.experts) {
    positive.insert(expert.positive.begin(), expert.positive.end());
  }
  std::vector<Tensor> parts;
  for (const size_t sequence : positive) {
    parts.push_back(states.narrow(0, offsets[sequence], offsets[sequence + 1] - offsets[sequence]));
  }
  return at::cat(parts);
}

// Returns log-softmax [N, E] f64 of `logits` multiplied by `scale`.
Tensor scaled_log_softmax(const Tensor& logits, double scale) {
  return (logits.to(at::kDouble) * scale).log_softmax(1);
}

// Returns the mean entropy as a fraction of ln E.
double mean_entropy(const Tensor& log_probabilities) {
  const double nats = -(log_probabilities.exp() * log_probabilities).sum(1).mean().item<double>();
  return nats / std::log(static_cast<double>(log_probabilities.size(1)));
}

// Returns the factor of `rows` that gives the mean entropy `target`, by bisection: the derivative
// of a token's entropy with respect to the scale s is -s times the variance of its logits.
double find_scale(const Tensor& logits, const Tensor& rows, double target, int64_t layer,
                  const RouterText& text) {
  const double max_norm = at::linalg_vector_norm(rows, 2, 1).max().item<double>();
  double low = 0, high = max_norm > 0 ? kMaxRowNorm / max_norm : 0;
  const double min_entropy = mean_entropy(scaled_log_softmax(logits, high));
  USER_ERROR_IF(
      !(min_entropy <= target),
      "--router-entropy {}: in layer {} the rows of the experts are too alike on {}: at any scale "
      "the entropy is {:.4f} of ln E or more; give texts that differ more, or a higher entropy",
      target, layer, text.name, min_entropy);
  double scale = high;
  for (int step = 0; step < 100; ++step) {
    scale = (low + high) / 2;
    const double entropy = mean_entropy(scaled_log_softmax(logits, scale));
    if (std::abs(entropy - target) < kEntropyTolerance) {
      break;
    }
    (entropy > target ? low : high) = scale;
  }
  return scale;
}

RouterInitStats measure(int64_t layer, const Tensor& rows, const Tensor& states) {
  RouterInitStats stats;
  stats.layer = layer;
  const Tensor stored = rows.contiguous();
  const auto* const values = stored.const_data_ptr<float>();
  stats.rows.assign(values, values + stored.numel());
  stats.row_norm = at::linalg_vector_norm(rows, 2, 1).mean().item<double>();
  const Tensor log_probabilities = scaled_log_softmax(at::mm(states, rows.t()), 1);
  stats.entropy = mean_entropy(log_probabilities);
  const auto [best, choice] = log_probabilities.max(1);
  stats.largest_probability = best.exp().mean().item<double>();
  const Tensor shares = at::bincount(choice, {}, rows.size(0)).to(at::kDouble) / states.size(0);
  stats.first_choices.assign(shares.const_data_ptr<double>(),
                             shares.const_data_ptr<double>() + shares.numel());
  return stats;
}

// Draws the index of a point with probability weights[i] / sum; `weights` [N] f64.
int64_t draw(const Tensor& weights, double sum, Random& random) {
  double left = random.uniform() * sum;
  const double* const weight = weights.const_data_ptr<double>();
  int64_t last = 0;
  for (int64_t point = 0; point < weights.size(0); ++point) {
    if (weight[point] > 0) {
      last = point;
      if ((left -= weight[point]) < 0) {
        break;
      }
    }
  }
  return last;
}

// Draws initial centroids [E, D], or fewer, by k-means++ from unit vectors `points` [N, D].
Tensor first_centroids(const Tensor& points, int64_t clusters, Random& random) {
  std::vector<Tensor> centroids = {points[static_cast<int64_t>(random.below(points.size(0)))]};
  Tensor nearest;  // [N] f64, squared distances to the nearest centroid
  while (std::ssize(centroids) < clusters) {
    Tensor squared = 2 - 2 * at::mv(points, centroids.back()).to(at::kDouble);
    squared = at::where(squared < kMinDistance, 0.0, squared);
    nearest = nearest.defined() ? at::minimum(nearest, squared) : squared;
    const double sum = nearest.sum().item<double>();
    if (sum == 0) {
      break;
    }
    centroids.push_back(points[draw(nearest, sum, random)]);
  }
  return at::stack(centroids);
}

Tensor unit_rows(const Tensor& rows) {
  return rows / at::linalg_vector_norm(rows, 2, 1, /*keepdim=*/true).clamp_min(1e-30);
}

}  // namespace

RouterInitSettings parse_router_init(const std::string& text) {
  if (text == "random") {
    return {};
  }
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string file = colon == std::string::npos ? "" : text.substr(colon + 1);
  USER_ERROR_IF((kind != "prompts" && kind != "cluster") || file.empty(),
                "--router-init '{}': is none of random, prompts:FILE and cluster:FILE", text);
  using Kind = RouterInitSettings::Kind;
  return {kind == "prompts" ? Kind::kPrompts : Kind::kCluster, file, {}};
}

std::string to_string(const RouterInitSettings& settings) {
  if (settings.kind == RouterInitSettings::Kind::kRandom) {
    return "random";
  }
  return (settings.kind == RouterInitSettings::Kind::kPrompts ? "prompts:" : "cluster:") +
         settings.file.string();
}

void check_router_init(const RouterInitSettings& settings, const route::RouterSettings& router,
                       int64_t experts) {
  if (!settings.is_measured()) {
    return;
  }
  const std::string flag = settings.kind == RouterInitSettings::Kind::kRandom
                               ? fmt::format("--router-entropy {}", *settings.entropy)
                               : "--router-init " + to_string(settings);
  USER_ERROR_IF(settings.entropy && !(*settings.entropy > 0 && *settings.entropy < 1),
                "--router-entropy {}: must be between 0 (a single expert) and 1 (uniform), a "
                "fraction of ln E",
                *settings.entropy);
  USER_ERROR_IF(!router.family->has_softmax_scores,
                "{}: {} has no softmax, so its logits cannot be scaled to an entropy", flag,
                route::to_string(router));
  USER_ERROR_IF(experts < 2, "{}: a router needs at least two experts; use --experts 2 or more",
                flag);
}

std::vector<ExpertPrompts> read_prompts(const std::filesystem::path& file, int64_t experts,
                                        const std::vector<ExpertParent>& parents) {
  const std::string where = file.string();
  const Json json = read_json(file);
  USER_ERROR_IF(!json.is_object(),
                "{}: must be an object of experts and their texts, like {{\"0\": [\"a text\"]}}",
                where);
  std::vector<ExpertPrompts> prompts(experts);
  for (const auto& [key, value] : json.items()) {
    const size_t expert = parse_expert_key(key, where, experts, parents);
    USER_ERROR_IF(!prompts[expert].positive.empty(),
                  "{}: names expert {} twice, by its number and by its folder", where, expert);
    prompts[expert] = parse_prompts(value, fmt::format("{}: expert '{}'", where, key));
  }
  for (size_t expert = 0; expert < prompts.size(); ++expert) {
    USER_ERROR_IF(prompts[expert].positive.empty(),
                  "{}: has no texts for expert {}; each of the {} experts needs texts", where,
                  expert, experts);
  }
  return prompts;
}

RouterText tokenize_prompts(const io::Checkpoint& base, const std::vector<ExpertPrompts>& prompts,
                            const std::string& name) {
  USER_ERROR_IF(!io::tokenizer_kind(base.folder()),
                "{}: no tokenizer, so the texts of {} cannot be tokenised", base.folder().string(),
                name);
  const int64_t vocab_size = parse_config(base.config(), base.config_name()).vocab_size;
  const auto tokenizer = io::Tokenizer::load(base.folder(), vocab_size);
  RouterText text;
  text.name = name;
  text.bos = tokenizer.bos_id();
  std::map<std::string, size_t> known;
  const auto add_all = [&](const std::vector<std::string>& texts, std::vector<size_t>& sequences) {
    for (const auto& prompt : texts) {
      sequences.push_back(add_sequence(prompt, tokenizer, known, text));
    }
  };
  for (const auto& expert : prompts) {
    add_all(expert.positive, text.experts.emplace_back().positive);
    add_all(expert.negative, text.experts.back().negative);
  }
  if (const int64_t tokens = state_offsets(text).back(); tokens > kMaxRouterTokens) {
    throw UserError("{}: its texts have {} tokens; at most {} are read, leave some out", name,
                    tokens, kMaxRouterTokens);
  }
  return text;
}

RouterInit init_routers(const io::Checkpoint& base, const ModelConfig& child,
                        const RouterInitSettings& settings, const RouterText& text) {
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> offsets = state_offsets(text);
  RouterInit init{text.name, 0, {}};
  for (auto& [layer, states] : read_states(base, child, text, offsets.back())) {
    const Tensor unscaled = settings.kind == RouterInitSettings::Kind::kRandom
                                ? random_rows(child, layer)
                            : text.experts.empty() ? cluster_rows(states, *child.moe, layer, text)
                                                   : prompt_rows(states, text, offsets);
    const Tensor measured = measured_states(states, text, offsets);
    const double scale = find_scale(at::mm(measured, unscaled.t()), unscaled,
                                    settings.target_entropy(), layer, text);
    init.layers.push_back(measure(layer, unscaled * scale, measured));
    init.tokens = measured.size(0);
  }
  return init;
}

uint64_t state_bytes(const ModelConfig& child, const RouterText& text) {
  // f32 states of each layer, and a copy of the layer that init_routers() processes.
  const auto layers = static_cast<uint64_t>(child.moe->layers.size()) + 1;
  return layers * static_cast<uint64_t>(state_offsets(text).back()) *
         static_cast<uint64_t>(child.hidden_size) * sizeof(float);
}

OrderedJson to_json(const RouterInit& init) {
  OrderedJson json = {{"text", init.text}, {"tokens", init.tokens}};
  json["layers"] = OrderedJson::array();
  for (const auto& layer : init.layers) {
    json["layers"].push_back({{"layer", layer.layer},
                              {"row_norm", layer.row_norm},
                              {"entropy", layer.entropy},
                              {"largest_probability", layer.largest_probability},
                              {"first_choices", layer.first_choices},
                              {"words", describe(layer)}});
  }
  return json;
}

std::string describe(const RouterInitStats& layer) {
  const auto& shares = layer.first_choices;
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format(
      "layer {}: entropy {:.3f} of ln {}, largest probability {:.3f}, first choices {:.1f} % "
      "(expert {}) to {:.1f} % (expert {})",
      layer.layer, layer.entropy, shares.size(), layer.largest_probability, 100 * *least,
      least - shares.begin(), 100 * *most, most - shares.begin());
}

std::vector<std::string> router_warnings(const RouterInit& init) {
  std::vector<std::string> sentences;
  for (const auto& layer : init.layers) {
    if (layer.entropy < kSaturated) {
      sentences.push_back(
          fmt::format("layer {}: the router starts saturated, its largest probability is {:.3f} on "
                      "average and its gradient near 0; a higher --router-entropy lets it learn",
                      layer.layer, layer.largest_probability));
    }
    if (layer.entropy > kUniform) {
      sentences.push_back(fmt::format(
          "layer {}: the router starts uniform, its largest probability is {:.3f} on average; a "
          "lower --router-entropy makes its choice count",
          layer.layer, layer.largest_probability));
    }
    const std::vector<size_t> never = indices_of_zeros(layer.first_choices);
    if (!never.empty()) {
      sentences.push_back(
          fmt::format("layer {}: {} of {} experts are the first choice of none of the {} tokens of "
                      "{}: {}; try texts that differ more",
                      layer.layer, never.size(), layer.first_choices.size(), init.tokens, init.text,
                      fmt::join(never, ", ")));
    }
  }
  return sentences;
}

std::vector<int64_t> balanced_clusters(const Tensor& similarities) {
  const int64_t points = similarities.size(0), clusters = similarities.size(1);
  const Tensor order =
      (-similarities).flatten().argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const int64_t* const pair = order.const_data_ptr<int64_t>();
  std::vector<int64_t> cluster_of(points, -1);
  std::vector<int64_t> sizes(clusters, 0);
  const int64_t min_size = points / clusters;
  int64_t larger_left = points % clusters;  // clusters that may still exceed `min_size` by one
  for (int64_t index = 0; index < order.size(0); ++index) {
    int64_t& cluster = cluster_of[pair[index] / clusters];
    int64_t& size = sizes[pair[index] % clusters];
    if (cluster >= 0 || size > min_size || (size == min_size && larger_left == 0)) {
      continue;
    }
    larger_left -= size == min_size ? 1 : 0;
    ++size;
    cluster = pair[index] % clusters;
  }
  return cluster_of;
}

Tensor balanced_centroids(const Tensor& points, int64_t clusters, uint64_t seed,
                          const std::string& stream) {
  MOE_CHECK(points.size(0) >= clusters && clusters > 0, "{} points in {} clusters", points.size(0),
            clusters);
  const Tensor units = unit_rows(points);
  Random random(seed, stream);
  Tensor centroids = first_centroids(units, clusters, random);
  std::vector<int64_t> before;
  for (int round = 0; round < kMaxRounds && centroids.size(0) == clusters; ++round) {
    std::vector<int64_t> cluster_of = balanced_clusters(at::mm(units, centroids.t()));
    if (cluster_of == before) {
      break;
    }
    const Tensor sums = at::zeros_like(centroids);
    sums.index_add_(0, at::tensor(cluster_of, at::kLong), units);
    centroids = unit_rows(sums);  // mean and sum have the same direction
    before = std::move(cluster_of);
  }
  return centroids;
}

}  // namespace moe::model
