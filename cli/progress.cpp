#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace moe::cli {

namespace {

constexpr double kTerminalPeriod_s = 0.1, kPipePeriod_s = 5.0;
constexpr int kBarWidth = 24;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string scaled(double value, const std::array<const char*, 5>& units) {
  size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < units.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0])
                   : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, units[unit]);
}

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

size_t terminal_width(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar_text(double share) {
  const auto filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return fmt::format("[{}{}]", std::string(filled, '='), std::string(kBarWidth - filled, ' '));
}

std::string format_bytes(double bytes) { return scaled(bytes, {"B", "KB", "MB", "GB", "TB"}); }

std::string format_count(double count) {
  std::string text = scaled(count, {"", "K", "M", "B", "T"});
  if (text.back() == ' ') {
    text.pop_back();
  }
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds < 10) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::string label, std::string unit, uint64_t total, bool quiet)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      quiet_(quiet),
      terminal_(is_terminal(2)),
      start_(std::chrono::steady_clock::now()),
      printed_(start_) {}

Progress::~Progress() {
  if (terminal_ && !quiet_ && !finished_) {
    fmt::print(stderr, "\r\033[K");  // leave no half-drawn bar behind an error
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
  fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", text);
  if (terminal_) {
    print(false);
  }
}

void Progress::finish() {
  if (!quiet_ && !finished_) {
    print(true);
  }
  finished_ = true;
}

void Progress::print(bool last) {
  printed_ = std::chrono::steady_clock::now();
  const double seconds = seconds_since(start_), done = static_cast<double>(done_);
  const double fresh = static_cast<double>(done_ - std::min(done_, skipped_));
  const double rate = seconds > 0 ? fresh / seconds : 0;
  const auto amount = [&](double value) {
    return unit_ == "B" ? format_bytes(value) : fmt::format("{:.0f} {}", value, unit_);
  };
  const auto pace = unit_ == "B" ? format_bytes(rate) : fmt::format("{:.1f} {}", rate, unit_);
  std::string text = fmt::format("{}  {}, {}/s", label_, amount(done), pace);
  if (total_ > 0) {
    const double share = done / static_cast<double>(total_);
    const std::string bar = terminal_ ? bar_text(share) + " " : "";
    const double left = rate > 0 ? (static_cast<double>(total_) - done) / rate : 0;
    text = fmt::format("{}  {}{:.0f} %, {} of {}, {}/s, {} {}",
                       label_,
                       bar,
                       100 * share,
                       amount(done),
                       amount(static_cast<double>(total_)),
                       pace,
                       last ? "took" : "left",
                       format_seconds(last ? seconds : left));
  }
  text += remark_.empty() ? "" : ", " + remark_;
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}{}", text, last ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

}  // namespace moe::cli
