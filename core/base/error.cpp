#include "core/base/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

namespace moe {

void fail_file(const std::string& file, std::string_view action) {
  const int error = errno;
  std::string text = fmt::format("{}: {}: {}", file, action, std::strerror(error));
  if (error == EMFILE) {
    text += "; raise the limit (ulimit -n)";
  }
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO) {
    throw std::runtime_error(text);
  }
  throw UserError("{}", text);
}

void fail_check(const char* condition, const char* file, int line, std::string values) {
  throw std::logic_error(fmt::format("{}:{}: {} does not hold{}{}", file, line, condition,
                                     values.empty() ? "" : ": ", values));
}

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view unknown, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, unknown.size() / 3) + 1;
  for (const auto& name : known) {
    const size_t distance = edit_distance(unknown, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best.empty() || best == unknown ? "" : fmt::format(", did you mean '{}'?", best);
}

}  // namespace moe
