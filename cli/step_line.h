#pragma once
// One step of training in one line: what a person looks at while it runs (core/train/README.md,
// "Metrics of a step").

#include <chrono>
#include <cstdint>
#include <string>

#include "core/train/observe/metrics.h"

namespace moe::cli {

// "skipped 3", and where outliers are looked for "skipped 3 (2 outliers)".
std::string skipped_part(const train::StepRecord& record);

// "step 12/500  loss 2.3456  aux 0.0101  grad 1.23  lr 1.00e-05  3.41 K tok/s  drop 12.3 %  ...
// left 1:23". Of the routing (all of it stands in metrics.jsonl): drop = dropped requests, unserved
// = tokens without an expert, fill = fill-ins of FR requests, IR = rectified tokens, experts = per
// token, load = the worst layer's largest over mean, dead = experts without a token over all
// layers, H = entropy in nats. What a router has not is left out, and so is what is zero and should
// be; unserved also where it says what drop says. Shares are per cent here.
std::string step_line(const train::StepRecord& record, int64_t steps, double seconds_left);

// The same for a terminal of `width` characters: "[====    ] 1:23 left  step 12/500  loss ..", cut
// off where it would wrap, since a line that wraps cannot be written over.
std::string terminal_step_line(const train::StepRecord& record, int64_t steps, double seconds_left,
                               size_t width);

// "step 20  held-out loss 2.3456  piqa 56.2 % ± 5.0  took 1:05": an evaluation with the weights
// after that step. Accuracies are acc with its standard error.
std::string evaluation_line(const train::Evaluation& evaluation);

// Prints step lines to standard error: on a terminal one that is written over, in a pipe the first,
// the last and one about every second. A step that was skipped gets a line of its own, with why.
class StepPrinter {
 public:
  // A run that goes on begins after `first_step`.
  StepPrinter(int64_t steps, int64_t first_step, bool quiet);
  ~StepPrinter();  // ends the line that an error or a stop left on the terminal
  StepPrinter(const StepPrinter&) = delete;
  StepPrinter& operator=(const StepPrinter&) = delete;
  void print(const train::StepRecord& record);
  void print(const train::Evaluation& evaluation);  // a line of its own, which stays

 private:
  void print_skipped(const train::StepRecord& record);
  int64_t steps_, first_step_;
  bool quiet_, terminal_, line_open_ = false;
  double seconds_ = 0;  // of all steps so far, evaluation besides
  std::string line_;    // what stands on the terminal's last line
  std::chrono::steady_clock::time_point printed_;
};

}  // namespace moe::cli
