#pragma once
// Settings that are known to fail, a sentence each, said before the first step: nothing else would
// tell, because such a run has a falling loss like any other.

#include <optional>
#include <string>
#include <vector>

#include "core/model/config/config.h"
#include "core/route/router_settings.h"
#include "core/train/run/settings.h"

namespace moe::train {

// Above, a share of requests that is refused by chance alone is worth a warning: 8 experts at CF =
// k = 1 refuse 3.3 % of 1,024 tokens a rank so, 4.7 % of 512 and 9.3 % of 128.
inline constexpr double kMostRefusedByChance = 0.04;

// A schedule usually ends at a tenth of its highest rate: more than ten times a parent's last
// learning rate is more than the parent was ever trained with.
inline constexpr double kMostRateRatio = 10;

// Whether the loss of the task reaches the logits at all (core/route/README.md, "Gradients"): not
// where a token has one expert, its weight is 1 whatever the logits are, and the gradient is that
// of this weight. Of one expert in all there is nothing to learn: true.
bool router_learns_from_task(const route::RouterSettings& router, int64_t experts);

// The share of first-k requests that capacity refuses when every token asks for k of the E experts
// evenly at random: an expert then has X ~ Binomial(T_r, k / E) requests of a rank with T_r tokens
// and C_r slots, and E[(X - C_r)+] E / (k T_r) of all are refused. 0 for routers that refuse none.
double share_refused_by_chance(const route::RouterSettings& router, int64_t rank_tokens,
                               int64_t experts);

// What is known of a run before it begins.
struct StartingPoint {
  std::optional<route::RouterSettings> router;  // of a mixture
  int64_t experts = 1;
  int64_t rank_tokens = 0;        // T_r of the largest micro-batch
  bool trains_router = true;      // not where --train names other parameters
  bool balance_loss = false;      // the load-balance loss has a coefficient above 0
  bool other_loss = false;        // another one has: z-loss, balance within sequences
  double lr = 0;                  // the highest of the run
  std::optional<double> last_lr;  // of the run that left the model, where that is known
};

std::vector<std::string> known_failures(const StartingPoint& start);

// Of resolved settings: `router` on W = `ep_ranks` logical ranks of a mixture, micro-batches of up
// to `group_tokens` tokens.
StartingPoint starting_point(const TrainSettings& settings, const model::ModelConfig& config,
                             const route::RouterSettings& router, int64_t ep_ranks,
                             int64_t group_tokens);

}  // namespace moe::train
