#pragma once
// Raw text as requests that run for the statistics of their routing alone (Dynamic MoE, Tables 2
// and 4): no token of them is scored.

#include <filesystem>
#include <optional>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/eval/scoring/token_tally.h"

namespace moe::eval {

inline constexpr int64_t kTextWindow = 2048;  // tokens; Dynamic MoE cuts there

struct TextWindows {
  std::vector<Request> requests;     // in file order
  std::vector<RequestLabel> labels;  // the source of each
};

// Every text of the files (core/data/records.h: documents of plain text, or JSON records with a
// "text" and perhaps a "source"), with a BOS where the encoder adds one, cut every kTextWindow
// tokens or at the model's window. Only the first `limit` texts of each file. `end_id` stands for
// what follows a text. UserError: a file that is missing or a folder, broken records, no text.
TextWindows read_text_windows(const std::vector<std::filesystem::path>& files,
                              const TextEncoder& encoder, int64_t end_id,
                              std::optional<int64_t> limit);

}  // namespace moe::eval
