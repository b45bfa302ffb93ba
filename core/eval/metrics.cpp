// The judges of single questions; what makes one number of many is in aggregate.cpp.
#include "core/eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/eval/text.h"

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

double exact_match(const Question& question, const QuestionScores& scores) {
  return question.gold >= 0 && scores[static_cast<size_t>(question.gold)].is_greedy ? 1.0 : 0.0;
}

double pick_value(const Question&, const QuestionScores& scores) {
  return static_cast<double>(pick_of(scores));
}

// A softmax over the sums. (The harness exponentiates them as they are: the same numbers, but none
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
      {"exact_match", exact_match},
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

}  // namespace moe::eval
