#include "core/eval/scoring/shared_forwards.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moe::eval {

using at::Tensor;

namespace {

// [L, T, 3 + E] i64 as bytes, E first; "" where tokens are not counted.
std::string bytes_of(const std::vector<Tensor>& token_rows) {
  if (token_rows.empty()) {
    return "";
  }
  const Tensor rows = at::stack(token_rows).cpu().contiguous();
  const int64_t columns = rows.size(2);
  std::string bytes(reinterpret_cast<const char*>(&columns), sizeof columns);
  return bytes.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
}

std::vector<Tensor> token_rows_of(const std::string& bytes, int64_t layers) {
  if (bytes.empty()) {
    return {};
  }
  int64_t columns = 0;
  MOE_CHECK(bytes.size() > sizeof columns);
  std::memcpy(&columns, bytes.data(), sizeof columns);
  const auto numbers = static_cast<int64_t>(bytes.size() / sizeof(int64_t)) - 1;
  const Tensor rows = at::empty({layers, numbers / (columns * layers), columns}, at::kLong);
  MOE_CHECK(rows.nbytes() + sizeof columns == bytes.size(), "{} bytes of {} layers", bytes.size(),
            layers);
  std::memcpy(rows.data_ptr(), bytes.data() + sizeof columns, rows.nbytes());
  return rows.unbind(0);
}

}  // namespace

std::vector<ForwardOutput> gather_forwards(distributed::Comm* ranks,
                                           const std::optional<ForwardOutput>& own) {
  if (ranks == nullptr || ranks->size() == 1) {
    return {own.value()};
  }
  const auto texts = distributed::gather_texts(*ranks, own ? to_json(own->scores).dump() : "");
  const auto rows = distributed::gather_texts(*ranks, own ? bytes_of(own->token_rows) : "");
  std::vector<ForwardOutput> all;
  for (size_t rank = 0; rank < texts.size() && !texts[rank].empty(); ++rank) {
    ForwardScores scores = forward_scores_from(parse_json(texts[rank], "scores of another rank"));
    const auto layers = static_cast<int64_t>(scores.counters.size());
    all.push_back({std::move(scores), token_rows_of(rows[rank], layers)});
  }
  return all;
}

std::vector<std::string> gather_generated(distributed::Comm* ranks,
                                          const std::optional<std::string>& own) {
  if (ranks == nullptr) {
    return {own.value()};
  }
  std::vector<std::string> all;
  for (const auto& text : distributed::gather_texts(*ranks, own ? "+" + *own : "")) {
    if (!text.empty()) {
      all.push_back(text.substr(1));
    }
  }
  return all;
}

}  // namespace moe::eval
