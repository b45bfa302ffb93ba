#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::cli {
namespace {

// Opens /dev/null for each closed standard descriptor. Standard output is opened for reading, so
// that writes to it fail.
void reserve_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

ssize_t write_or_discard(void* /*cookie*/, const char* bytes, size_t size) {
  for (size_t written = 0; written < size;) {
    const ssize_t count = write(STDERR_FILENO, bytes + written, size - written);
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  return static_cast<ssize_t>(size);
}

constexpr double kTerminalPeriod_s = 0.1, kPipePeriod_s = 5.0, kStepPipePeriod_s = 1.0;
constexpr const char* kEraseLine = "\r\033[K";
constexpr int kBarWidth = 24;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string scaled(double value, const std::array<const char*, 5>& units) {
  size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < units.size(); ++unit) {
    value /= 1000.0;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0])
                   : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, units[unit]);
}

// Returns "[=====     ]" for a share of 0 to 1.
std::string bar_text(double share) {
  const auto filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return fmt::format("[{}{}]", std::string(filled, '='), std::string(kBarWidth - filled, ' '));
}

// Returns part / whole as "12 %" or "1.2 %".
std::string percent_text(int64_t part, int64_t whole) {
  const double value = whole > 0 ? 100.0 * part / whole : 0;
  return value >= 9.95 ? fmt::format("{:.0f} %", value) : fmt::format("{:.1f} %", value);
}

std::string routing_text(const train::StepRecord& record) {
  const auto total = record.total();
  const auto& sum = total.sum;
  std::string text;
  const auto add = [&](bool is_shown, const char* name, int64_t part, int64_t whole) {
    text += is_shown ? fmt::format("  {} {}", name, percent_text(part, whole)) : "";
  };
  add(sum.slots_total > 0, "drop", sum.dropped_requests, sum.requests);
  add(sum.unserved_tokens > 0 && sum.unserved_tokens != sum.dropped_requests, "unserved",
      sum.unserved_tokens, sum.tokens);
  add(sum.fr_requests > 0, "fill", sum.fr_filled, sum.fr_requests);
  add(sum.ir_tokens > 0, "IR", sum.ir_tokens, sum.tokens);
  text += fmt::format("  experts {:.2f}  load {:.2f}x", sum.experts_per_token(), total.worst_load);
  text += total.dead_experts > 0 ? fmt::format("  dead {}", total.dead_experts) : "";
  text += sum.entropy_sum > 0 ? fmt::format("  H {:.2f}", sum.entropy_sum / sum.tokens) : "";
  text += record.bias_max ? fmt::format("  bias {:.4f}", *record.bias_max) : "";
  if (record.lambda) {  // the auxiliary loss is that of L1
    const double share = 100 * *record.auxiliary / (record.loss + *record.auxiliary);
    text += fmt::format("  lambda {:.2e}{}  sparsity {:.3f} of {:.3f}", *record.lambda,
                        record.has_loss() ? fmt::format(" ({:.2g} % of the loss)", share) : "",
                        record.sparsity, *record.target_sparsity);
  }
  return text;
}

std::string step_text(const train::StepRecord& record, int64_t steps) {
  std::string text =
      fmt::format("step {}/{}  loss {}", record.step, steps,
                  format_loss(record.has_loss() ? std::optional(record.loss) : std::nullopt));
  for (const auto& [name, loss] :
       {std::pair("aux", record.auxiliary), {"z", record.z}, {"seq", record.sequence_balance}}) {
    text += loss ? fmt::format("  {} {:.4f}", name, *loss) : "";
  }
  text += fmt::format("  grad {:.3g}  lr {:.2e}  {} tok/s", record.grad_norm, record.lr,
                      format_count(record.tokens_per_second));
  text += record.skipped_steps > 0 ? "  " + skipped_text(record) : "";
  text += record.steps_without_targets > 0
              ? fmt::format("  no targets {}", record.steps_without_targets)
              : "";
  return text + (record.layers.empty() ? "" : routing_text(record));
}

// Returns acc as "56.2 % ± 5.0"; for a task without acc, the first metric by name as
// "perplexity 8.1234 ± 0.5000".
std::string score_text(const std::map<std::string, double>& scores) {
  const auto acc = scores.find("acc");
  const bool has_acc = acc != scores.end();
  const auto& [metric, value] = has_acc ? *acc : *scores.begin();
  const int scale = has_acc ? 100 : 1, digits = has_acc ? 1 : 4;
  std::string text =
      has_acc ? fmt::format("{:.1f} %", scale * value) : fmt::format("{} {:.4f}", metric, value);
  if (const auto error = scores.find(metric + "_stderr"); error != scores.end()) {
    text += fmt::format(" ± {:.{}f}", scale * error->second, digits);
  }
  return text;
}

// Returns "step 20  held-out loss 2.3456  piqa 56.2 % ± 5.0  took 1:05".
std::string evaluation_text(const train::Evaluation& evaluation) {
  std::string text = fmt::format("step {}", evaluation.step);
  if (evaluation.held_out_loss) {
    text += fmt::format("  held-out loss {:.4f}", *evaluation.held_out_loss);
  }
  for (const auto& [task, scores] : evaluation.tasks) {
    text += fmt::format("  {} {}", task, score_text(scores));
  }
  return text + "  took " + format_seconds(evaluation.seconds);
}

}  // namespace

void prepare_process() {
  reserve_standard_descriptors();
  if (FILE* const stream =
          fopencookie(nullptr, "w", {nullptr, write_or_discard, nullptr, nullptr})) {
    std::setvbuf(stream, nullptr, _IONBF, 0);
    stderr = stream;
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

bool finish_output(int error) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return true;
  }
  error = errno != 0 ? errno : error;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0) {
    return false;
  }
  throw UserError("cannot write to standard output{}; free disk space or redirect it elsewhere",
                  error == 0 ? "" : fmt::format(" ({})", std::strerror(error)));
}

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

bool use_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal(1) && (no_color == nullptr || *no_color == '\0');
}

size_t terminal_width(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string format_bytes(double bytes) { return scaled(bytes, {"B", "KB", "MB", "GB", "TB"}); }

std::string format_count(double count) {
  return !(count >= 1000) ? fmt::format("{:.0f}", count) : scaled(count, {"", "K", "M", "B", "T"});
}

std::string format_seconds(double seconds) {
  if (seconds < 10) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string note_line(const std::string& sentence) {
  return terminal_line((sentence.starts_with("warning: ") ? "" : "note: ") + sentence);
}

void print_json(const OrderedJson& json, int indent) {
  print_text("{}\n", json_text(json, indent));
}

std::string example_text(const data::Example& example, const std::string& where,
                         const io::Tokenizer* tokenizer) {
  const auto piece = [&](int64_t id) {
    return tokenizer == nullptr ? fmt::format("{}", id) : tokenizer->piece(id);
  };
  return data::show_example(example, where, piece, use_color());
}

void print_example(const std::string& text) { fmt::print("\n{}", text); }

void print_written(uint64_t bytes, const std::string& out, double seconds) {
  print_text("written      {} to {} in {} ({}/s)\n", format_bytes(bytes), terminal_line(out),
             format_seconds(seconds), format_bytes(bytes / std::max(seconds, 1e-9)));
}

Progress::Progress(std::string label, std::string unit, uint64_t total, bool quiet)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), quiet_(quiet) {}

Progress::~Progress() {
  if (terminal_ && !quiet_ && !finished_) {
    fmt::print(stderr, "{}", kEraseLine);
  }
}

void Progress::set(uint64_t done) {
  done_ = done;
  if (!quiet_ && seconds_since(printed_) >= (terminal_ ? kTerminalPeriod_s : kPipePeriod_s)) {
    print(false);
  }
}

void Progress::line(const std::string& text) {
  if (quiet_) {
    return;
  }
  fmt::print(stderr, "{}{}\n", terminal_ ? kEraseLine : "", terminal_line(text));
  if (terminal_) {
    print(false);
  }
}

double Progress::finish() {
  if (!quiet_ && !finished_) {
    print(true);
  }
  finished_ = true;
  return seconds_since(start_);
}

std::string Progress::text(bool last, Detail detail) const {
  const double seconds = seconds_since(start_), done = done_;
  const double computed = static_cast<double>(done_ - std::min(done_, skipped_));
  const double rate = seconds > 0 ? computed / seconds : 0;
  const auto amount = [&](double value) {
    return unit_ == "B" ? format_bytes(value) : fmt::format("{:.0f} {}", value, unit_);
  };
  const auto rate_text = unit_ == "B" ? format_bytes(rate) : fmt::format("{:.1f} {}", rate, unit_);
  const std::string label = terminal_line(label_);
  const std::string remark = remark_.empty() ? "" : ", " + terminal_line(remark_);
  if (total_ == 0) {
    return fmt::format("{}  {}, {}/s{}", label, amount(done), rate_text, remark);
  }
  const double share = done / total_, left = rate > 0 ? (total_ - done) / rate : 0;
  const std::string counts =
      fmt::format(" {} of {},", unit_ == "B" ? format_bytes(done) : fmt::format("{:.0f}", done),
                  amount(total_));
  return fmt::format("{}  {}{:.0f} %,{} {}/s, {} {}{}", label,
                     detail == Detail::kBar ? bar_text(share) + " " : "", 100 * share,
                     detail == Detail::kNumbers ? "" : counts, rate_text, last ? "took" : "left",
                     format_seconds(last ? seconds : left), remark);
}

void Progress::print(bool last) {
  printed_ = std::chrono::steady_clock::now();
  if (!terminal_) {
    fmt::print(stderr, "{}\n", text(last, Detail::kCounts));
    return;
  }
  // Shortens the line to the width, because a wrapped line cannot be overwritten.
  const size_t width = terminal_width(2);
  std::string line = text(last, Detail::kBar);
  for (const Detail detail : {Detail::kCounts, Detail::kNumbers}) {
    line = line.size() < width ? line : text(last, detail);
  }
  fmt::print(stderr, "{}{}{}", kEraseLine, line.substr(0, width - 1), last ? "\n" : "");
}

std::string format_loss(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "-";
}

std::string skipped_text(const train::StepRecord& record) {
  const int64_t outliers = record.skipped_outliers.value_or(0);
  return fmt::format("skipped {}", record.skipped_steps) +
         (outliers > 0 ? fmt::format(" ({} outlier{})", outliers, outliers == 1 ? "" : "s") : "");
}

StepPrinter::StepPrinter(int64_t steps, int64_t steps_done, bool quiet)
    : steps_(steps), steps_done_(steps_done), quiet_(quiet), terminal_(is_terminal(2)) {}

StepPrinter::~StepPrinter() {
  if (line_open_) {
    fmt::print(stderr, "\n");
  }
}

void StepPrinter::print(const train::StepRecord& record) {
  seconds_ += record.seconds;
  if (quiet_) {
    return;
  }
  if (record.skipped) {
    fmt::print(stderr, "{}step {} skipped ({}): {}\n", line_open_ ? kEraseLine : "", record.step,
               record.skipped_kind, record.skipped_why);
    line_open_ = false;
  }
  const bool last = record.step == steps_;
  if (record.step != steps_done_ + 1 && !last &&
      seconds_since(printed_) < (terminal_ ? kTerminalPeriod_s : kStepPipePeriod_s)) {
    return;
  }
  printed_ = std::chrono::steady_clock::now();
  const std::string step = step_text(record, steps_);
  const std::string left =
      format_seconds(seconds_ / (record.step - steps_done_) * (steps_ - record.step));
  if (terminal_) {
    const double share = static_cast<double>(record.step) / steps_;
    line_ = fmt::format("{} {} left  {}", bar_text(share), left, step)
                .substr(0, std::max<size_t>(terminal_width(2), 2) - 1);
    fmt::print(stderr, "{}{}{}", kEraseLine, line_, last ? "\n" : "");
    line_open_ = !last;
  } else {
    fmt::print(stderr, "{}  left {}\n", step, left);
  }
}

void StepPrinter::print(const train::Evaluation& evaluation) {
  seconds_ += evaluation.step > steps_done_ ? evaluation.seconds : 0;
  print(evaluation_text(evaluation));
}

void StepPrinter::print(const std::string& text) const {
  if (!quiet_) {
    fmt::print(stderr, "{}{}\n{}", line_open_ ? kEraseLine : "", terminal_line(text),
               line_open_ ? line_ : "");
  }
}

}  // namespace moe::cli
