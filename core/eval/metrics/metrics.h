#pragma once
// Metrics of lm-evaluation-harness: their values for single questions, and the aggregates over all
// questions with standard errors.

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"

namespace moe::eval {

using QuestionScores = std::vector<Score>;  // one per choice

enum class Aggregation {
  kMean,
  kPerplexity,  // exp(-mean)
  kBinaryF1,    // F1 of class 1; values are predicted classes
  kMacroF1,     // mean F1 of classes 0, 1 and 2; values are predicted classes
};

struct Metric {
  std::string name;
  // Computes the value of a question. Empty for exact_match of generated text (filters.h).
  std::function<double(const Question&, const QuestionScores&)> compute = {};
  Aggregation aggregation = Aggregation::kMean;
  std::string filter = "none";  // name of the filter of generated answers (Task::filters)

  bool is_mean() const {  // the aggregate is a function of the mean
    return aggregation == Aggregation::kMean || aggregation == Aggregation::kPerplexity;
  }
  bool higher_is_better() const { return aggregation != Aggregation::kPerplexity; }
  std::string key() const { return filter == "none" ? name : name + "," + filter; }
};

// Returns the metrics of multiple-choice questions. The model's choice is the one with the largest
// log-probability. Values are 1 or 0; for f1 the index of the model's choice.
//   acc          1 if the model's choice is right
//   acc_norm     acc with log-probabilities divided by the number of code points of the choice,
//                without the delimiter; an empty choice is never chosen
//   acc_bytes    acc with log-probabilities divided by the number of UTF-8 bytes of the choice
//   exact_match  1 if every token of the right choice is the argmax
//   f1           kBinaryF1
const std::vector<Metric>& choice_metrics();
Metric choice_metric(const std::string& name);  // throws UserError if unknown

// Returns choice_metric(name), or one of the following metrics, which only files of known/ may
// name. Metric::name is the name in quotes.
//   macro_f1   "f1": kMacroF1
//   mc2        "acc" of truthfulqa_mc2: probability of the right answers / probability of all
//   record_f1  "f1" of ReCoRD: word F1 of the chosen entity, maximum over the right answers
//   record_em  "em" of ReCoRD: 1 if the squad_words() of the chosen entity equal those of a right
//              answer
Metric known_task_metric(const std::string& name);

// Metrics of loglikelihood tasks, whose questions have a single continuation.
Metric greedy_accuracy();  // "acc": every token is the argmax
Metric perplexity();       // exp(-mean log-likelihood of a whole continuation), not per token

// Returns the words of SQuAD's answer normalization: lower case, no ASCII punctuation, no articles.
std::vector<std::string> squad_words(const std::string& text);

struct Mean {
  double value = 0;
  std::optional<double> standard_error;  // empty for a single value and for F1
};

inline constexpr int64_t kBootstrapSamples = 100000;  // the harness's bootstrap_iters

// Aggregates the values of all questions (at least one). `golds`: index of the right choice of each
// question. The standard error of a mean is the sample standard deviation / sqrt(n). The standard
// error of a perplexity is the standard deviation over `resamples` bootstrap samples, drawn as in
// the harness; it is empty if `resamples` is 0.
Mean aggregate(const Metric& metric, const std::vector<double>& values,
               const std::vector<int64_t>& golds, int64_t resamples = kBootstrapSamples);
Mean compute_mean(const std::vector<double>& values);

// random.Random of CPython 3.8 to 3.13. The harness draws few-shot examples and bootstrap samples
// with it; the same numbers give the same prompts and standard errors.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.Random(seed)

  double uniform();            // random(): 53 bits, in [0, 1)
  uint64_t below(uint64_t n);  // _randbelow(n), 1 <= n < 2^32
  // sample(range(n), k): k distinct indices in the order drawn, k <= n < 2^32.
  std::vector<uint64_t> sample(uint64_t n, uint64_t k);

 private:
  std::mt19937 engine_;
};

}  // namespace moe::eval
