#pragma once
// Routers that know something at the start: rows from texts that say what an expert is for
// (mergekit's `hidden`), or from clusters of a text, measured by one forward of the dense folder;
// and rows of any kind scaled so that the first routing has a given entropy (core/model/README.md,
// "Routers that know something at the start").
//
// What a router of the mixture will read is the normed input of its layer's feed-forward: the
// *state* of a token there, as the dense folder has it.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/convert/expert_parents.h"

namespace moe::model {

struct RouterInit {
  enum class Kind { kRandom, kPrompts, kCluster };
  Kind kind = Kind::kRandom;
  std::filesystem::path file;     // of prompts and cluster
  std::optional<double> entropy;  // asked, as a share of ln E; empty: kUsualEntropy where measured

  // Whether a forward of the dense folder is needed.
  bool is_measured() const { return kind != Kind::kRandom || entropy; }
  double wanted_entropy() const;
};

inline constexpr double kUsualEntropy = 0.7;
// Tokens whose states are read: those of every MoE layer are held until the rows are known.
inline constexpr int64_t kMostRouterTokens = 8192;

// "random", "prompts:FILE" or "cluster:FILE". UserError: anything else.
RouterInit parse_router_init(const std::string& text);
std::string to_string(const RouterInit& init);
// UserError: an entropy that is not between 0 and 1, a router without softmax, a single expert.
void check_router_init(const RouterInit& init, const route::RouterSettings& router,
                       int64_t experts);

// The texts that say what an expert is for, and those that say what it is not for.
struct ExpertPrompts {
  std::vector<std::string> positive, negative;
};

// {"0": ["a text", ...], "1": {"positive": [...], "negative": [...]}}: texts for each of `experts`.
// A key is an expert's number, or the folder of --expert that it alone is made of, as it was given
// or by its last name. UserError naming the file: broken JSON, an expert that is not there, is
// named twice or has no text, a folder of several experts.
std::vector<ExpertPrompts> read_prompts(const std::filesystem::path& file, int64_t experts,
                                        const std::vector<ExpertParent>& parents);

// What the dense folder reads.
struct RouterText {
  std::string name;                             // "the embedded text", for messages
  std::vector<std::vector<int64_t>> sequences;  // token ids; a `bos` in front is read, not counted
  int64_t bos = -1;
  // Of prompts, for each expert: which sequences. Empty for a text that belongs to no expert.
  struct Expert {
    std::vector<size_t> positive, negative;
  };
  std::vector<Expert> experts;
  c10::Device device = c10::kCPU;  // where the dense folder runs on it
};

// The texts as the tokenizer of `base` cuts them, equal ones once. UserError: no tokenizer, a text
// without a token, more than kMostRouterTokens.
RouterText text_of_prompts(const io::Checkpoint& base, const std::vector<ExpertPrompts>& prompts,
                           const std::string& name);

// A layer's router and what it makes of the states that it was measured on.
struct LayerStart {
  int64_t layer = 0;
  std::vector<float> rows;  // [E, D]; of finer experts a row is a whole group's, and E the groups
  double row_norm = 0;      // the mean length of a row
  double entropy = 0;       // of the softmax over all experts, in the mean, as a share of ln E
  double largest_probability = 0;     // in the mean
  std::vector<double> first_choices;  // [E] shares of the tokens, whose best expert it is
};

struct RouterStart {
  std::string text;
  int64_t tokens = 0;              // that the entropy is the mean over
  std::vector<LayerStart> layers;  // the MoE layers, ascending
};

// The routers of `child`, a mixture of `base`. Runs `base` once, mapped and in f32, and holds the
// states of `text` until it returns. UserError: fewer tokens or different states than experts, an
// expert whose texts leave nothing, an entropy that no scale reaches.
RouterStart start_routers(const io::Checkpoint& base, const ModelConfig& child,
                          const RouterInit& init, const RouterText& text);

// Bytes of the states that start_routers() holds, besides what running `base` takes.
uint64_t state_bytes(const ModelConfig& child, const RouterText& text);

OrderedJson to_json(const RouterStart& start);
// A sentence a layer: "layer 3: entropy 0.700 of ln 8, ...".
std::string describe(const LayerStart& layer);
// Sentences of advice where a layer is saturated or uniform, or an expert no token's first choice.
std::vector<std::string> advice(const RouterStart& start);

}  // namespace moe::model
