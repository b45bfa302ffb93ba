#include "cli/step_line.h"

#include <fmt/format.h>

#include "cli/progress.h"

namespace moe::cli {

namespace {

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string routing_part(const train::StepRecord& record) {
  const auto total = record.total();
  std::string text;
  if (total.requests > 0) {
    text += fmt::format("  drop {:.1f} %", percent(total.dropped_requests, total.requests));
  }
  if (total.fr_requests > 0) {
    text += fmt::format("  fill {:.1f} %", percent(total.fr_filled, total.fr_requests));
  }
  if (total.ir_tokens > 0) {
    text += fmt::format("  IR {:.1f} %", percent(total.ir_tokens, total.tokens));
  }
  text += fmt::format("  experts/token {:.2f}  load {:.2f}x  dead {}",
                      total.experts_per_token(),
                      record.worst_load(),
                      record.dead_experts());
  if (record.lambda) {
    text += fmt::format(
        "  lambda {:.2e}  sparsity {:.3f}", *record.lambda, record.sparsity.value_or(0));
  }
  return text;
}

}  // namespace

std::string step_line(const train::StepRecord& record, int64_t steps, double seconds_left) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}", record.step, steps, record.loss);
  if (record.auxiliary) {
    text += fmt::format("  aux {:.4f}", *record.auxiliary);
  }
  text += fmt::format("  grad {:.3g}  lr {:.2e}  {} tok/s",
                      record.grad_norm,
                      record.lr,
                      format_count(record.tokens_per_second));
  if (record.skipped_steps > 0) {
    text += fmt::format("  skipped {}", record.skipped_steps);
  }
  if (!record.layer_counters.empty()) {
    text += routing_part(record);
  }
  return text + "  left " + format_seconds(seconds_left);
}

StepPrinter::StepPrinter(int64_t steps, int64_t first_step, bool quiet)
    : steps_(steps), first_step_(first_step), quiet_(quiet), terminal_(is_terminal(2)) {}

StepPrinter::~StepPrinter() {
  if (line_open_) {
    fmt::print(stderr, "\n");
  }
}

void StepPrinter::print(const train::StepRecord& record) {
  constexpr double kPipePeriod_s = 1.0, kTerminalPeriod_s = 0.1;
  seconds_ += record.seconds;
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
  const std::string line = step_line(record, steps_, left);
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}{}", line, last ? "\n" : "");
    line_open_ = !last;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace moe::cli
