#pragma once
// Initialization of routers from data (core/upcycle/README.md). Router rows are mean states of
// texts per expert (mergekit's `hidden`), centroids of clusters of states, or random, scaled so
// that the initial routing has a given entropy. A *state* is the input of a router, the normed
// input of the feed-forward of its layer, measured in one forward pass of the dense parent.
//
// E experts before granularity, D model width, N states.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/upcycle/expert_sources.h"

namespace moe::model {

inline constexpr double kDefaultEntropy = 0.7;
// Maximum number of tokens of a RouterText, because the states of all MoE layers are in memory.
inline constexpr int64_t kMaxRouterTokens = 8192;

// --router-init and --router-entropy.
struct RouterInitSettings {
  enum class Kind { kRandom, kPrompts, kCluster };
  Kind kind = Kind::kRandom;
  std::filesystem::path file;     // of kPrompts and kCluster
  std::optional<double> entropy;  // target mean entropy of the softmax, as a fraction of ln E

  // Returns true if a forward pass of the dense parent is needed.
  bool is_measured() const { return kind != Kind::kRandom || entropy; }
  double target_entropy() const { return entropy.value_or(kDefaultEntropy); }
};

// Parses "random", "prompts:FILE" or "cluster:FILE". Throws UserError for other texts.
RouterInitSettings parse_router_init(const std::string& text);
std::string to_string(const RouterInitSettings& settings);
// Throws UserError if routers are measured and the entropy is not in (0, 1), the router has no
// softmax scores, or there is a single expert.
void check_router_init(const RouterInitSettings& settings, const route::RouterSettings& router,
                       int64_t experts);

// Texts for which an expert should be chosen, and texts for which it should not.
struct ExpertPrompts {
  std::vector<std::string> positive, negative;
};

// Reads {"0": ["a text", ...], "1": {"positive": [...], "negative": [...]}}. A key is the index of
// an expert, or the path (or its last component) of a folder of `parents` that provides exactly
// one. Throws UserError that names the file for invalid JSON, for a key that does not name exactly
// one expert, and if one of the `experts` is named twice or has no positive text.
std::vector<ExpertPrompts> read_prompts(const std::filesystem::path& file, int64_t experts,
                                        const std::vector<ExpertParent>& parents);

// Token sequences whose states are measured.
struct RouterText {
  std::string name;                             // "the embedded text", for messages
  std::vector<std::vector<int64_t>> sequences;  // token ids
  int64_t bos = -1;  // the state of a leading BOS of a sequence is ignored; -1: none
  // Indices into `sequences` of the prompts of an expert.
  struct Expert {
    std::vector<size_t> positive, negative;
  };
  std::vector<Expert> experts;     // empty without prompts
  c10::Device device = c10::kCPU;  // of the forward pass
};

// Tokenizes the prompts of the file `name` with the tokenizer of `base`; equal texts become one
// sequence. Throws UserError for no tokenizer, no token, or more than kMaxRouterTokens.
RouterText tokenize_prompts(const io::Checkpoint& base, const std::vector<ExpertPrompts>& prompts,
                            const std::string& name);

// Router rows of one layer and statistics of the initial routing.
struct RouterInitStats {
  int64_t layer = 0;
  std::vector<float> rows;            // [E, D]; with granularity one row per group
  double row_norm = 0;                // mean over rows
  double entropy = 0;                 // mean over states of the softmax, fraction of ln E
  double largest_probability = 0;     // mean over states
  std::vector<double> first_choices;  // [E] fraction of states with their largest logit there
};

struct RouterInit {
  std::string text;
  int64_t tokens = 0;                   // number of states of the statistics
  std::vector<RouterInitStats> layers;  // the MoE layers, ascending
};

// Computes the routers of `child`, a mixture of `base`, from one run of `base` in f32. Throws
// UserError if there are fewer tokens or distinct states than clusters, if the positive and
// negative texts of an expert cancel, or if no scale reaches the entropy.
RouterInit init_routers(const io::Checkpoint& base, const ModelConfig& child,
                        const RouterInitSettings& settings, const RouterText& text);

// Returns the bytes of the states in init_routers(), without those of running `base`.
uint64_t state_bytes(const ModelConfig& child, const RouterText& text);

OrderedJson to_json(const RouterInit& init);
// Returns "layer 3: entropy 0.700 of ln 8, ...".
std::string describe(const RouterInitStats& layer);
// Returns a sentence for each layer with a saturated or uniform softmax, or with experts that are
// the first choice of no token.
std::vector<std::string> router_warnings(const RouterInit& init);

template <typename Number>
std::vector<size_t> indices_of_zeros(const std::vector<Number>& numbers) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == 0) {
      indices.push_back(i);
    }
  }
  return indices;
}

// Returns the cluster of each of N points, in E clusters of floor(N / E) or ceil(N / E) points.
// Visits the pairs of point and cluster in descending order of `similarities` [N, E] f32 (ties by
// point, then cluster), and assigns a point without a cluster to a cluster that is not full.
std::vector<int64_t> balanced_clusters(const at::Tensor& similarities);

// Returns centroids [E, D] f32 of norm 1 for E = `clusters` balanced clusters of the directions of
// `points` [N, D] f32, N >= E; fewer if there are fewer directions. Draws them by k-means++ (Arthur
// and Vassilvitskii 2007), then alternates balanced_clusters() and means, at most 50 times.
at::Tensor balanced_centroids(const at::Tensor& points, int64_t clusters, uint64_t seed,
                              const std::string& stream);

}  // namespace moe::model
