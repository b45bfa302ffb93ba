#include "core/eval/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/eval/formats/text.h"
#include "core/eval/metrics/python_random.h"

namespace moe::eval {
namespace {

double right(const Question& question, int64_t pick) { return pick == question.gold ? 1.0 : 0.0; }

// The pick when each sum is divided by its choice's length.
template <typename Length>
int64_t pick_by_length(const Question& question, const QuestionScores& scores, Length length_of) {
  MOE_CHECK(scores.size() == question.choices.size(), "{} {}", scores.size(),
            question.choices.size());
  std::vector<double> values;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto length = static_cast<double>(length_of(question.choices[i]));
    values.push_back(length == 0 ? -std::numeric_limits<double>::infinity()
                                 : scores[i].logprob / length);
  }
  return first_largest(values);
}

double acc(const Question& question, const QuestionScores& scores) {
  return right(question, pick_of(scores));
}

double acc_norm(const Question& question, const QuestionScores& scores) {
  return right(question, pick_by_length(question, scores, [](const std::string& choice) {
                 return count_code_points(choice);
               }));
}

double acc_bytes(const Question& question, const QuestionScores& scores) {
  return right(question, pick_by_length(question, scores,
                                        [](const std::string& choice) { return choice.size(); }));
}

double exact_match_of_pick(const Question& question, const QuestionScores& scores) {
  return question.gold >= 0 && scores[static_cast<size_t>(question.gold)].is_greedy ? 1.0 : 0.0;
}

double pick_value(const Question&, const QuestionScores& scores) {
  return static_cast<double>(pick_of(scores));
}

// A softmax over the sums. (The harness exponentiates them as they are: the same results, but none
// where every sum is below -745.)
double mass_of_right_answers(const Question& question, const QuestionScores& scores) {
  const auto& labels = question.fields.at("mc2_targets").at("labels");
  MOE_CHECK(labels.size() == scores.size(), "{} {}", labels.size(), scores.size());
  const double largest = scores[static_cast<size_t>(pick_of(scores))].logprob;
  double all = 0, good = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double mass = std::exp(scores[i].logprob - largest);
    all += mass;
    good += labels[i] == 1 ? mass : 0.0;
  }
  return good / all;
}

double word_f1(const std::string& prediction, const std::string& truth) {
  const auto a = squad_words(truth), b = squad_words(prediction);
  if (a.empty() || b.empty()) {
    return a == b ? 1.0 : 0.0;
  }
  std::vector<std::string> left = a;
  double same = 0;
  for (const auto& word : b) {
    if (const auto found = std::find(left.begin(), left.end(), word); found != left.end()) {
      left.erase(found);
      ++same;
    }
  }
  if (same == 0) {
    return 0.0;
  }
  const double precision = same / static_cast<double>(b.size());
  const double recall = same / static_cast<double>(a.size());
  return 2 * precision * recall / (precision + recall);
}

// The best of `compare` over the document's right answers.
template <typename Compare>
double best_entity(const Question& question, const QuestionScores& scores, Compare compare) {
  const auto pick = static_cast<size_t>(pick_of(scores));
  const auto prediction = question.fields.at("entities").at(pick).get<std::string>();
  double best = 0;
  for (const auto& answer : question.fields.at("answers")) {
    best = std::max(best, compare(prediction, answer.get<std::string>()));
  }
  return best;
}

// One number of many.

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum;
}

double sample_deviation(const std::vector<double>& values) {
  const double mean = sum_of(values) / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double exp_of_minus_mean(const std::vector<double>& values) {
  return std::exp(-sum_of(values) / static_cast<double>(values.size()));
}

// Chunks of up to 1000 samples, chunk i drawn by Random(i).
double bootstrap_deviation(const std::vector<double>& values, int64_t resamples) {
  const int64_t chunk = std::min<int64_t>(1000, resamples);
  std::vector<double> statistics;
  const auto n = static_cast<double>(values.size());
  for (int64_t i = 0; i < resamples / chunk; ++i) {
    PythonRandom random(static_cast<uint32_t>(i));
    for (int64_t j = 0; j < chunk; ++j) {
      double sum = 0;
      for (size_t draw = 0; draw < values.size(); ++draw) {
        sum += values[static_cast<size_t>(random.uniform() * n)];
      }
      statistics.push_back(std::exp(-sum / n));
    }
  }
  return sample_deviation(statistics);
}

// F1 of one class; 0 where it is neither right nor chosen anywhere.
double class_f1(const std::vector<double>& picks, const std::vector<int64_t>& golds, int64_t kind) {
  MOE_CHECK(picks.size() == golds.size(), "{} {}", picks.size(), golds.size());
  int64_t both = 0, either = 0;
  for (size_t i = 0; i < picks.size(); ++i) {
    const bool chosen = static_cast<int64_t>(picks[i]) == kind;
    const bool right = golds[i] == kind;
    both += chosen && right ? 1 : 0;
    either += (chosen ? 1 : 0) + (right ? 1 : 0);
  }
  return either == 0 ? 0.0 : 2.0 * static_cast<double>(both) / static_cast<double>(either);
}

}  // namespace

int64_t first_largest(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    best = values[i] > values[best] ? i : best;
  }
  return static_cast<int64_t>(best);
}

int64_t pick_of(const QuestionScores& scores) {
  std::vector<double> sums;
  for (const auto& score : scores) {
    sums.push_back(score.logprob);
  }
  return first_largest(sums);
}

const std::vector<Metric>& choice_metrics() {
  static const std::vector<Metric> metrics = {
      {"acc", acc},
      {"acc_norm", acc_norm},
      {"acc_bytes", acc_bytes},
      {"exact_match", exact_match_of_pick},
      {"f1", pick_value, Aggregation::kBinaryF1},
  };
  return metrics;
}

Metric choice_metric(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& metric : choice_metrics()) {
    if (metric.name == name) {
      return metric;
    }
    known.push_back(metric.name);
  }
  throw UserError("metric '{}' is unknown; known: {}", name, fmt::join(known, ", "));
}

Metric macro_f1() { return {"f1", pick_value, Aggregation::kMacroF1}; }
Metric answer_mass() { return {"acc", mass_of_right_answers}; }

Metric greedy() {
  return {"acc", [](const Question&, const QuestionScores& scores) {
            return scores.at(0).is_greedy ? 1.0 : 0.0;
          }};
}

Metric perplexity() {
  return {"perplexity",
          [](const Question&, const QuestionScores& scores) { return scores.at(0).logprob; },
          Aggregation::kPerplexity, false};
}

Metric entity_f1() {
  return {"f1", [](const Question& question, const QuestionScores& scores) {
            return best_entity(question, scores, word_f1);
          }};
}

Metric entity_match() {
  return {"em", [](const Question& question, const QuestionScores& scores) {
            return best_entity(question, scores, [](const std::string& a, const std::string& b) {
              return squad_words(a) == squad_words(b) ? 1.0 : 0.0;
            });
          }};
}

std::vector<std::string> squad_words(const std::string& text) {
  std::string plain;
  for (const char c : lower(text)) {
    const bool is_punctuation = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
                                (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    if (!is_punctuation) {
      plain += c;
    }
  }
  std::string result;
  for (size_t i = 0; i < plain.size();) {
    size_t article = 0;
    for (const std::string_view word : {"an", "a", "the"}) {
      if (article == 0 && std::string_view(plain).substr(i).starts_with(word) &&
          is_word_boundary(plain, i) && is_word_boundary(plain, i + word.size())) {
        article = word.size();
      }
    }
    result += article == 0 ? plain[i] : ' ';
    i += article == 0 ? 1 : article;
  }
  return split_words(result);
}

Mean mean_of(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  const auto n = static_cast<double>(values.size());
  Mean mean{sum_of(values) / n, std::nullopt};
  if (values.size() > 1) {
    mean.standard_error = sample_deviation(values) / std::sqrt(n);
  }
  return mean;
}

Mean aggregate(const Metric& metric, const std::vector<double>& values,
               const std::vector<int64_t>& golds, int64_t resamples) {
  MOE_CHECK(!values.empty(), "no values");
  switch (metric.aggregation) {
    case Aggregation::kMean:
      return mean_of(values);
    case Aggregation::kBinaryF1:
      return {class_f1(values, golds, 1), std::nullopt};
    case Aggregation::kMacroF1:
      break;
    case Aggregation::kPerplexity: {
      Mean mean{exp_of_minus_mean(values), std::nullopt};
      if (values.size() > 1 && resamples > 0) {
        mean.standard_error = bootstrap_deviation(values, resamples);
      }
      return mean;
    }
  }
  double sum = 0;
  for (const int64_t kind : std::array<int64_t, 3>{0, 1, 2}) {
    sum += class_f1(values, golds, kind);
  }
  return {sum / 3, std::nullopt};
}

}  // namespace moe::eval
