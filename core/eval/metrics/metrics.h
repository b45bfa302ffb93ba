#pragma once
// Metrics of lm-evaluation-harness: the value of a metric for a question, and its aggregate over
// all questions with the standard error.

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
  kBinaryF1,    // F1 of class 1; the values are the chosen classes
  kMacroF1,     // mean F1 of classes 0, 1 and 2; the values are the chosen classes
};

struct Metric {
  std::string name;
  // Computes the value of a question. Empty for exact_match of generated text (filters.h).
  std::function<double(const Question&, const QuestionScores&)> judge = {};
  Aggregation aggregation = Aggregation::kMean;
  bool higher_is_better = true;
  std::string filter = "none";  // the harness's name of the filter applied to the answer

  std::string key() const { return filter == "none" ? name : name + "," + filter; }
};

// Returns the metrics of multiple-choice questions. Values are 1 or 0, and the chosen class for f1.
//   acc          the choice with the largest sum of log-probabilities is right
//   acc_norm     as acc, with each sum divided by the choice's code points, without the delimiter;
//                an empty choice never wins
//   acc_bytes    as acc_norm, with UTF-8 bytes
//   exact_match  every token of the right choice is the argmax
//   f1           kBinaryF1
const std::vector<Metric>& choice_metrics();
Metric choice_metric(const std::string& name);  // throws UserError if unknown

// Returns choice_metric(name), or a metric that only the harness's own tasks have. The names of
// these in known/*.toml differ from Metric::name:
//   macro_f1   "f1" with kMacroF1
//   mc2        "acc" of truthfulqa_mc2: the share of the right answers in the probability of all
//   record_f1  "f1" of ReCoRD: the word F1 of the chosen entity, maximum over the right answers
//   record_em  "em" of ReCoRD: 1 if the chosen entity has the squad_words() of a right answer
Metric known_task_metric(const std::string& name);

// Metrics of loglikelihood tasks, whose questions have a single continuation.
Metric greedy();      // "acc": every token is the argmax
Metric perplexity();  // exp(-mean log-likelihood of a continuation), not per token

// Returns the words of SQuAD's answer normalization: lower case, no ASCII punctuation, no articles.
std::vector<std::string> squad_words(const std::string& text);

struct Mean {
  double value = 0;
  std::optional<double> standard_error;  // empty if it is not defined: n = 1, F1
};

inline constexpr int64_t kBootstrapSamples = 100000;  // as the harness's bootstrap_iters

// Aggregates the values of all questions (at least one); `golds` are their right choices. The
// standard error of a mean is the sample standard deviation / sqrt(n). The standard error of a
// perplexity is the standard deviation over `resamples` bootstrap samples, drawn as in the harness;
// 0 resamples: no standard error.
Mean aggregate(const Metric& metric, const std::vector<double>& values,
               const std::vector<int64_t>& golds, int64_t resamples = kBootstrapSamples);
Mean compute_mean(const std::vector<double>& values);

// Python's random.Random (CPython 3.8 to 3.13). The harness draws few-shot examples and bootstrap
// samples with it, so that equal seeds give equal prompts and standard errors.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.Random(seed)

  double uniform();            // random(): 53 bits, in [0, 1)
  uint64_t below(uint64_t n);  // _randbelow(n), 1 <= n < 2^32
  // sample(range(n), k): k different indices in the order drawn. k <= n < 2^32.
  std::vector<uint64_t> sample(uint64_t n, uint64_t k);

 private:
  std::mt19937 engine_;
};

}  // namespace moe::eval
