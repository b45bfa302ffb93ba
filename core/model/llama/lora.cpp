#include "core/model/llama/lora.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace moe::model {

bool LoraSettings::is_on(const std::string& part) const {
  return rank > 0 && std::find(on.begin(), on.end(), part) != on.end();
}

double LoraSettings::scale() const { return alpha == 0 ? 1.0 : alpha / static_cast<double>(rank); }

void check_lora(const LoraSettings& settings) {
  constexpr int64_t kMaxRank = int64_t{1} << 16;
  if (settings.rank < 0 || settings.rank > kMaxRank) {
    throw UserError("--lora {}: the rank must lie in 1 .. {} (0: no adapters)", settings.rank,
                    kMaxRank);
  }
  if (!std::isfinite(settings.alpha) || settings.alpha < 0) {
    throw UserError("--lora-alpha {}: must be a positive number", settings.alpha);
  }
  if (settings.rank == 0 && settings.alpha != 0) {
    throw UserError("--lora-alpha without --lora: say the rank of the adapters");
  }
  if (settings.on.empty()) {
    throw UserError("--lora-on names nothing; known: attention, ffn");
  }
  for (const auto& part : settings.on) {
    if (part != "attention" && part != "ffn") {
      throw UserError("--lora-on '{}' is unknown; known: attention, ffn", part);
    }
  }
}

}  // namespace moe::model
