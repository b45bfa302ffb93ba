#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/base/text.h"

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
  fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", terminal_text(text, /*one_line=*/true));
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

std::string Progress::text(bool last, Detail detail) const {
  const double seconds = seconds_since(start_), done = static_cast<double>(done_);
  const double fresh = static_cast<double>(done_ - std::min(done_, skipped_));
  const double rate = seconds > 0 ? fresh / seconds : 0;
  const auto amount = [&](double value) {
    return unit_ == "B" ? format_bytes(value) : fmt::format("{:.0f} {}", value, unit_);
  };
  const auto pace = unit_ == "B" ? format_bytes(rate) : fmt::format("{:.1f} {}", rate, unit_);
  const std::string label = terminal_text(label_, /*one_line=*/true);
  const std::string remark =
      remark_.empty() ? "" : ", " + terminal_text(remark_, /*one_line=*/true);
  if (total_ == 0) {
    return fmt::format("{}  {}, {}/s{}", label, amount(done), pace, remark);
  }
  const double share = done / static_cast<double>(total_);
  const double left = rate > 0 ? (static_cast<double>(total_) - done) / rate : 0;
  const std::string counts =
      fmt::format(" {} of {},", unit_ == "B" ? format_bytes(done) : fmt::format("{:.0f}", done),
                  amount(static_cast<double>(total_)));
  return fmt::format("{}  {}{:.0f} %,{} {}/s, {} {}{}", label,
                     detail == Detail::kBar ? bar_text(share) + " " : "", 100 * share,
                     detail == Detail::kNumbers ? "" : counts, pace, last ? "took" : "left",
                     format_seconds(last ? seconds : left), remark);
}

void Progress::print(bool last) {
  printed_ = std::chrono::steady_clock::now();
  if (!terminal_) {
    fmt::print(stderr, "{}\n", text(last, Detail::kCounts));
  } else {  // what is wider than the terminal wraps, and cannot be written over
    const size_t width = terminal_width(2);
    std::string line;
    for (const Detail detail : {Detail::kBar, Detail::kCounts, Detail::kNumbers}) {
      line = text(last, detail);
      if (line.size() < width) {
        break;
      }
    }
    fmt::print(stderr, "\r\033[K{}{}", line.substr(0, width - 1), last ? "\n" : "");
  }
  std::fflush(stderr);
}

}  // namespace moe::cli
