#include "cli/step_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/progress.h"
#include "core/base/text.h"

namespace moe::cli {

namespace {

// "12 %" or "1.2 %": a line that must stay short has no room for more.
std::string percent_words(int64_t part, int64_t whole) {
  const double value =
      whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
  return value >= 9.95 ? fmt::format("{:.0f} %", value) : fmt::format("{:.1f} %", value);
}

std::string routing_part(const train::StepRecord& record) {
  const auto total = record.total();
  const auto& sum = total.sum;
  std::string text;
  if (sum.slots_total > 0) {
    text += "  drop " + percent_words(sum.dropped_requests, sum.requests);
  }
  if (sum.unserved_tokens > 0 && sum.unserved_tokens != sum.dropped_requests) {
    text += "  unserved " + percent_words(sum.unserved_tokens, sum.tokens);
  }
  if (sum.fr_requests > 0) {
    text += "  fill " + percent_words(sum.fr_filled, sum.fr_requests);
  }
  if (sum.ir_tokens > 0) {
    text += "  IR " + percent_words(sum.ir_tokens, sum.tokens);
  }
  text += fmt::format("  experts {:.2f}  load {:.2f}x", sum.experts_per_token(), total.worst_load);
  if (total.dead_experts > 0) {
    text += fmt::format("  dead {}", total.dead_experts);
  }
  if (sum.entropy_sum > 0) {
    text += fmt::format("  H {:.2f}", sum.entropy_sum / static_cast<double>(sum.tokens));
  }
  if (record.bias_max) {
    text += fmt::format("  bias {:.4f}", *record.bias_max);
  }
  if (record.lambda) {
    text += fmt::format("  lambda {:.2e}  sparsity {:.3f}", *record.lambda,
                        record.sparsity.value_or(0));
  }
  return text;
}

std::string step_text(const train::StepRecord& record, int64_t steps) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}", record.step, steps, record.loss);
  if (record.auxiliary) {
    text += fmt::format("  aux {:.4f}", *record.auxiliary);
  }
  if (record.z_loss) {
    text += fmt::format("  z {:.4f}", *record.z_loss);
  }
  if (record.sequence_balance_loss) {
    text += fmt::format("  seq {:.4f}", *record.sequence_balance_loss);
  }
  text += fmt::format("  grad {:.3g}  lr {:.2e}  {} tok/s", record.grad_norm, record.lr,
                      format_count(record.tokens_per_second));
  if (record.skipped_steps > 0) {
    text += "  " + skipped_part(record);
  }
  if (!record.layer_counters.empty()) {
    text += routing_part(record);
  }
  return text;
}

}  // namespace

std::string skipped_part(const train::StepRecord& record) {
  const int64_t outliers = record.skipped_outliers.value_or(0);
  return fmt::format("skipped {}", record.skipped_steps) +
         (outliers > 0 ? fmt::format(" ({} outlier{})", outliers, outliers == 1 ? "" : "s") : "");
}

std::string step_line(const train::StepRecord& record, int64_t steps, double seconds_left) {
  return step_text(record, steps) + "  left " + format_seconds(seconds_left);
}

std::string terminal_step_line(const train::StepRecord& record, int64_t steps, double seconds_left,
                               size_t width) {
  const double share = static_cast<double>(record.step) / static_cast<double>(steps);
  const std::string line = fmt::format("{} {} left  {}", bar_text(share),
                                       format_seconds(seconds_left), step_text(record, steps));
  return line.substr(0, std::max<size_t>(width, 2) - 1);
}

std::string evaluation_line(const train::Evaluation& evaluation) {
  std::string text = fmt::format("step {}", evaluation.step);
  if (evaluation.held_out_loss) {
    text += fmt::format("  held-out loss {:.4f}", *evaluation.held_out_loss);
  }
  for (const auto& [task, scores] : evaluation.tasks) {
    text += fmt::format("  {} {:.1f} %", task, 100 * scores.at("acc"));
    if (const auto error = scores.find("acc_stderr"); error != scores.end()) {
      text += fmt::format(" ± {:.1f}", 100 * error->second);
    }
  }
  return text + "  took " + format_seconds(evaluation.seconds);
}

StepPrinter::StepPrinter(int64_t steps, int64_t first_step, bool quiet)
    : steps_(steps), first_step_(first_step), quiet_(quiet), terminal_(is_terminal(2)) {}

StepPrinter::~StepPrinter() {
  if (line_open_) {
    fmt::print(stderr, "\n");
  }
}

void StepPrinter::print_skipped(const train::StepRecord& record) {
  if (quiet_) {
    return;
  }
  fmt::print(stderr, "{}step {} moves no weight ({}): {}\n", line_open_ ? "\r\033[K" : "",
             record.step, record.skipped_kind, record.skipped_why);
  line_open_ = false;
}

void StepPrinter::print(const train::StepRecord& record) {
  constexpr double kPipePeriod_s = 1.0, kTerminalPeriod_s = 0.1;
  seconds_ += record.seconds;
  if (record.skipped) {
    print_skipped(record);
  }
  const auto now = std::chrono::steady_clock::now();
  const bool last = record.step == steps_;
  const double since = std::chrono::duration<double>(now - printed_).count();
  if (quiet_ || (record.step != first_step_ + 1 && !last &&
                 since < (terminal_ ? kTerminalPeriod_s : kPipePeriod_s))) {
    return;
  }
  printed_ = now;
  const double left = seconds_ / static_cast<double>(record.step - first_step_) *
                      static_cast<double>(steps_ - record.step);
  if (terminal_) {
    line_ = terminal_step_line(record, steps_, left, terminal_width(2));
    fmt::print(stderr, "\r\033[K{}{}", line_, last ? "\n" : "");
    line_open_ = !last;
  } else {
    fmt::print(stderr, "{}\n", step_line(record, steps_, left));
  }
  std::fflush(stderr);
}

void StepPrinter::print(const train::Evaluation& evaluation) {
  seconds_ += evaluation.step > first_step_ ? evaluation.seconds : 0;
  if (quiet_) {
    return;
  }
  fmt::print(stderr, "{}{}\n{}", line_open_ ? "\r\033[K" : "",
             terminal_text(evaluation_line(evaluation), /*one_line=*/true),
             line_open_ ? line_ : "");
  std::fflush(stderr);
}

}  // namespace moe::cli
