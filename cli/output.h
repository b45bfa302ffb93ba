#pragma once
// Standard output and standard error: their state at start and exit, quantities as text, and
// progress on standard error, as bars with rate and ETA and one line per training step. A terminal
// shows one line that is overwritten; a pipe gets plain lines at a lower rate.

#include <chrono>
#include <concepts>
#include <cstdint>
#include <string>

#include "core/base/json.h"
#include "core/train/observe/metrics.h"

namespace moe::cli {

// Prepares standard streams and signals. Called first in main(), before any file is opened and any
// thread started.
//   - Opens /dev/null in place of standard descriptors (0, 1, 2) that are closed, so that no other
//     file gets their number. Writes to a standard output that was closed fail.
//   - Makes writes to `stderr` never fail: text that cannot be written (full disk, closed terminal)
//     is dropped and the run continues.
//   - Ignores SIGXFSZ: a write beyond the file size limit (ulimit -f) then fails with EFBIG.
void prepare_process();

// Flushes standard output. Throws UserError if any of it could not be written (for example, a full
// disk); `error` is the errno of an earlier write that failed, 0 if there was none. Returns false,
// and prints nothing, if standard output is a pipe that the reader has closed.
bool finish_output(int error = 0);

bool is_terminal(int descriptor);  // 1 = stdout, 2 = stderr
// Returns true if standard output is a terminal and NO_COLOR is not set.
bool use_color();
// Returns the width of the terminal in characters; 80 if unknown.
size_t terminal_width(int descriptor);

std::string format_bytes(double bytes);      // "1.5 GB"
std::string format_count(double count);      // "1.05 M"
std::string format_seconds(double seconds);  // "1:02:03", "0.4 s"
inline std::string format_bytes(std::integral auto bytes) {
  return format_bytes(static_cast<double>(bytes));
}
inline std::string format_count(std::integral auto count) {
  return format_count(static_cast<double>(count));
}

// Returns "note: SENTENCE" for a line of output; a sentence that begins with "warning: " as it is.
std::string note_line(const std::string& sentence);

// Prints `json` on standard output, with `indent` spaces a level or on one line.
void print_json(const OrderedJson& json, int indent = -1);

// Prints "written      1.5 GB to OUT in 3.2 s (470 MB/s)" on standard output.
void print_written(uint64_t bytes, const std::string& out, double seconds);

// Progress bar of one operation. The destructor erases a bar that is not finished.
class Progress {
 public:
  // `unit` names what is counted; "B" prints bytes. total 0: unknown. `quiet` prints nothing.
  Progress(std::string label, std::string unit, uint64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(uint64_t done);
  // Excludes an amount that took no time (read from a cache) from the rate.
  void skip(uint64_t amount) { skipped_ = amount; }
  void remark(std::string text) { remark_ = std::move(text); }  // printed after the rate
  void line(const std::string& text);                           // prints a line above the bar
  // Prints the last state and returns the seconds since construction.
  double finish();

 private:
  void print(bool last);
  enum class Detail { kNumbers, kCounts, kBar };  // each includes the ones before it
  std::string text(bool last, Detail detail) const;
  std::string label_, unit_, remark_;
  uint64_t total_ = 0, done_ = 0, skipped_ = 0;
  bool quiet_ = false, terminal_ = false, finished_ = false;
  std::chrono::steady_clock::time_point start_, printed_;
};

// Returns "skipped 3", or "skipped 3 (2 outliers)" if outliers are skipped.
std::string skipped_text(const train::StepRecord& record);

// Prints the progress of a training run (core/train/README.md, "Metrics of a step"):
//
//   step 12/500  loss 2.3456  aux 0.0101  grad 1.23  lr 1.00e-05  3.41 K tok/s  drop 12.3 % ...
//
// Routing: drop = dropped requests, unserved = tokens without an expert, fill = accepted fill-in
// requests, IR = rectified tokens, experts = per token, load = max/mean of the worst layer, dead =
// experts without a token over all layers, H = router entropy in nats. Values that the router does
// not have, and zeros that are expected, are omitted. A pipe gets the first and last step and about
// one per second. Skipped steps and evaluations get a line of their own.
class StepPrinter {
 public:
  // A resumed run starts after `first_step`.
  StepPrinter(int64_t steps, int64_t first_step, bool quiet);
  ~StepPrinter();  // ends a line left open by an error or a stop
  StepPrinter(const StepPrinter&) = delete;
  StepPrinter& operator=(const StepPrinter&) = delete;
  void print(const train::StepRecord& record);
  void print(const train::Evaluation& evaluation);

 private:
  int64_t steps_, first_step_;
  bool quiet_, terminal_, line_open_ = false;
  double seconds_ = 0;  // of all steps so far, with evaluations
  std::string line_;    // the open line of the terminal
  std::chrono::steady_clock::time_point printed_;
};

}  // namespace moe::cli
