#include "core/distributed/failure_search.h"

#include <fmt/format.h>

#include <thread>

#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

constexpr std::chrono::milliseconds kBrokenPause{50};  // between questions after a connection broke

// "step 7, layer 3, all_to_all".
std::string position_of(const Operation& operation) {
  std::string text;
  if (operation.position.step >= 0) {
    text += fmt::format("step {}, ", operation.position.step);
  }
  if (operation.position.layer >= 0) {
    text += fmt::format("layer {}, ", operation.position.layer);
  }
  return text + operation.name;
}

RankFailed rank_failed(const FailureReport& report, const std::string& where) {
  return {report, fmt::format("{}: {}", report.text, where)};
}

// What an exception of NCCL says, in one line: "Last error:" heads what NCCL itself knows, and
// behind the first line LibTorch has its stack.
std::string first_words(const std::string& text) {
  constexpr std::string_view kCause = "Last error:\n";
  const size_t cause = text.find(kCause);
  const size_t begin = cause == std::string::npos ? 0 : cause + kCause.size();
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.empty() ? text.substr(0, text.find('\n')) : line;
}

}  // namespace

std::optional<RankFailed> FailureSearch::find(const Operation& operation, Seconds waited) const {
  const auto report = membership_.monitor->find_failure(waited, ranks_);
  if (!report) {
    return std::nullopt;
  }
  const std::string where = position_of(operation);
  return rank_failed(*report, waited < Seconds{1}
                                  ? where
                                  : fmt::format("{}, after {:.0f} s", where, waited.count()));
}

RankFailed FailureSearch::find_broken(const Operation& operation, const std::string& words) const {
  for (WaitClock clock;; std::this_thread::sleep_for(kBrokenPause)) {
    if (auto report = membership_.monitor->find_broken(clock.look(), ranks_)) {
      if (report->culprit < 0 && on_gpu_) {
        report->text = fmt::format("the exchange between GPUs failed ({})", first_words(words));
      }
      return rank_failed(*report, position_of(operation));
    }
  }
}

}  // namespace moe::distributed
