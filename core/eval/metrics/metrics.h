#pragma once
// What is counted, as lm-evaluation-harness counts it: a number for each question, and one over all
// of them with its standard error.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"

namespace moe::eval {

using QuestionScores = std::vector<Score>;  // one a choice

enum class Aggregation {
  kMean,
  kPerplexity,  // exp(-mean)
  kBinaryF1,    // the values are picks: F1 of class 1
  kMacroF1,     // the values are picks: mean of the F1 of classes 0, 1 and 2
};

struct Metric {
  std::string name;
  // Of one question; empty where text is compared (filters.h).
  std::function<double(const Question&, const QuestionScores&)> judge = {};
  Aggregation aggregation = Aggregation::kMean;
  bool higher_is_better = true;
  std::string filter = "none";  // the harness's name for what came before it

  std::string key() const { return filter == "none" ? name : name + "," + filter; }
};

// The index of the largest value; the first one wins a tie.
int64_t first_largest(const std::vector<double>& values);
int64_t pick_of(const QuestionScores& scores);  // the choice with the largest sum

// acc: the choice with the largest sum of log-probabilities is the right one. acc_norm, acc_bytes:
// the same with each sum divided by the choice's length, without the delimiter, in Unicode
// characters or UTF-8 bytes (an empty choice never wins). exact_match: every token of the right
// choice is the most likely one. f1: the pick. 1 or 0.
const std::vector<Metric>& choice_metrics();
Metric choice_metric(const std::string& name);  // UserError: unknown

Metric macro_f1();     // "f1" over three classes
Metric answer_mass();  // "acc" of TruthfulQA's mc2: probability of the right answers among all
Metric greedy();       // "acc" of a single continuation: every token is the most likely one
Metric perplexity();   // of single continuations, a continuation counting as one
// ReCoRD's "f1" and "em": the chosen entity against each right one, words compared as SQuAD does;
// the best counts.
Metric entity_f1();
Metric entity_match();

// SQuAD's words: lower case, no ASCII punctuation, no articles.
std::vector<std::string> squad_words(const std::string& text);

struct Mean {
  double value = 0;
  std::optional<double> standard_error;  // none for n = 1 and for an F1
};
// Over questions: at least one value; `golds` are their right choices. The standard error of a mean
// is the sample standard deviation / sqrt(n), that of a perplexity the standard deviation of
// `resamples` bootstrap samples drawn as the harness draws them.
Mean aggregate(const Metric& metric, const std::vector<double>& values,
               const std::vector<int64_t>& golds, int64_t resamples = 100000);
Mean mean_of(const std::vector<double>& values);

}  // namespace moe::eval
