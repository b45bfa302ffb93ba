#pragma once
// Standard output and standard error: set-up and final flush, quantities as text, and progress. On
// a terminal, progress is one line that is overwritten; elsewhere, lines at a lower rate.

#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/json.h"
#include "core/data/example_set.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/observe/metrics.h"

namespace moe::cli {

// Prepares standard streams and signals. Call it first in main().
//   - Opens /dev/null for each standard descriptor (0, 1, 2) that is closed, so that no other file
//     gets its number. Writes to a standard output that was closed fail.
//   - Replaces `stderr` by a stream that discards text that cannot be written (full disk, closed
//     terminal).
//   - Ignores SIGXFSZ, so that a write beyond the file size limit (ulimit -f) fails with EFBIG.
void prepare_process();

// Flushes standard output. Returns false if it is a pipe whose reader has closed it. Throws
// UserError if a write failed for another reason. `error`: the errno of an earlier failure, or 0.
bool finish_output(int error = 0);

bool is_terminal(int descriptor);  // 1 = stdout, 2 = stderr
bool use_color();  // true if standard output is a terminal and NO_COLOR is unset or empty
size_t terminal_width(int descriptor);  // in characters; 80 if unknown

std::string format_bytes(double bytes);      // "1.5 GB"
std::string format_count(double count);      // "1.05 M"
std::string format_seconds(double seconds);  // "1:02:03", "0.4 s"

// Returns "note: SENTENCE", or the sentence itself if it begins with "warning: ", as one line.
std::string note_line(const std::string& sentence);

void print_json(const OrderedJson& json, int indent = -1);

// Returns data::show_example() with the pieces of `tokenizer`, or with ids if it is null.
std::string example_text(const data::Example& example, const std::string& where,
                         const io::Tokenizer* tokenizer);
// Prints a text of example_text() after an empty line. print_text() would escape its colors.
void print_example(const std::string& text);

// Prints "written      1.5 GB to OUT in 3.2 s (470 MB/s)" on standard output.
void print_written(uint64_t bytes, const std::string& out, double seconds);

// Progress bar of one operation. The destructor erases a bar that is not finished.
class Progress {
 public:
  // `unit`: name of the counted items, or "B" for bytes. `total`: 0 if unknown.
  Progress(std::string label, std::string unit, uint64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(uint64_t done);  // the completed amount
  // Excludes a part of the completed amount from the rate, because it was read from a cache.
  void skip(uint64_t amount) { skipped_ = amount; }
  void remark(std::string text) { remark_ = std::move(text); }  // printed after the rate
  void line(const std::string& text);                           // prints a line above the bar
  double finish();  // prints the final state and returns the seconds since construction

 private:
  void print(bool last);
  enum class Detail { kNumbers, kCounts, kBar };  // each includes the ones before it
  std::string text(bool last, Detail detail) const;
  std::string label_, unit_, remark_;
  uint64_t total_ = 0, done_ = 0, skipped_ = 0;
  bool quiet_ = false, terminal_ = is_terminal(2), finished_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(),
                                        printed_ = start_;
};

// Returns the loss with four decimals; "-" if there is none.
std::string format_loss(const std::optional<double>& loss);
std::string skipped_text(const train::StepRecord& record);  // "skipped 3 (2 outliers)"

// Printer of the progress of a training run (core/train/README.md, "Metrics of a step"):
//
//   step 12/500  loss 2.3456  aux 0.0101  grad 1.23  lr 1.00e-05  3.41 K tok/s  drop 12.3 % ...
//
// Omits values that do not apply to the router, and counts of problems that are zero. In a file or
// pipe, prints the first and the last step, about one a second, and all skipped steps and
// evaluations.
class StepPrinter {
 public:
  // `steps_done`: steps done before the run was resumed; 0 for a new run.
  StepPrinter(int64_t steps, int64_t steps_done, bool quiet);
  ~StepPrinter();  // ends the line of an interrupted run
  StepPrinter(const StepPrinter&) = delete;
  StepPrinter& operator=(const StepPrinter&) = delete;
  void print(const train::StepRecord& record);
  void print(const train::Evaluation& evaluation);
  void print(const std::string& text) const;  // a line above that of the step

 private:
  int64_t steps_, steps_done_;
  bool quiet_, terminal_, line_open_ = false;
  double seconds_ = 0;  // of all steps so far, including evaluations
  std::string line_;    // current line of the terminal
  std::chrono::steady_clock::time_point printed_;
};

}  // namespace moe::cli
