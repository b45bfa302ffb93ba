#include "core/eval/metrics/metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

// Returns the index of the largest log-probability; ties go to the lower index.
int64_t best_choice(const QuestionScores& scores) {
  MOE_CHECK(!scores.empty(), "no scores");
  return std::ranges::max_element(scores, {}, &Score::logprob) - scores.begin();
}

// Returns Metric::compute of acc, acc_norm or acc_bytes: 1 if the choice with the largest
// log-probability / choice_length(choice) is right, else 0.
template <typename Length>
auto accuracy(Length choice_length) {
  return [choice_length](const Question& question, const QuestionScores& scores) {
    MOE_CHECK(!scores.empty() && scores.size() == question.choices.size(), "{} {}", scores.size(),
              question.choices.size());
    std::vector<double> values;
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto length = static_cast<double>(choice_length(question.choices[i]));
      values.push_back(length == 0 ? -std::numeric_limits<double>::infinity()
                                   : scores[i].logprob / length);
    }
    return std::ranges::max_element(values) - values.begin() == question.gold ? 1.0 : 0.0;
  };
}

double chosen_class(const Question&, const QuestionScores& scores) {
  return static_cast<double>(best_choice(scores));
}

// Subtracts the largest log-probability before exp(). The harness does not, and returns NaN if all
// log-probabilities are below -745. Otherwise the results are equal.
double mc2(const Question& question, const QuestionScores& scores) {
  const auto& labels = question.fields.at("mc2_targets").at("labels");
  MOE_CHECK(labels.size() == scores.size(), "{} {}", labels.size(), scores.size());
  const double largest = scores[static_cast<size_t>(best_choice(scores))].logprob;
  double all = 0, right = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double probability = std::exp(scores[i].logprob - largest);
    all += probability;
    right += labels[i] == 1 ? probability : 0.0;
  }
  return right / all;
}

double word_f1(const std::string& prediction, const std::string& truth) {
  const auto expected = squad_words(truth), predicted = squad_words(prediction);
  if (expected.empty() || predicted.empty()) {
    return expected == predicted ? 1.0 : 0.0;
  }
  std::vector<std::string> unmatched = expected;
  double matches = 0;
  for (const auto& word : predicted) {
    if (const auto found = std::ranges::find(unmatched, word); found != unmatched.end()) {
      unmatched.erase(found);
      ++matches;
    }
  }
  if (matches == 0) {
    return 0.0;
  }
  const double precision = matches / static_cast<double>(predicted.size());
  const double recall = matches / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

double same_words(const std::string& prediction, const std::string& truth) {
  return squad_words(prediction) == squad_words(truth) ? 1.0 : 0.0;
}

// Returns the maximum of compare(model's choice, right answer) over the right answers of ReCoRD.
template <double (*compare)(const std::string&, const std::string&)>
double best_entity(const Question& question, const QuestionScores& scores) {
  const auto choice = static_cast<size_t>(best_choice(scores));
  const auto prediction = question.fields.at("entities").at(choice).get<std::string>();
  double best = 0;
  for (const auto& answer : question.fields.at("answers")) {
    best = std::max(best, compare(prediction, answer.get<std::string>()));
  }
  return best;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double sample_deviation(const std::vector<double>& values) {
  const double mean = sum(values) / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// Returns the standard deviation of the perplexity over bootstrap samples. They are drawn in chunks
// of up to 1000, chunk i with random.Random(i), as in the harness.
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

// Returns the F1 of class `label`: 2 TP / (2 TP + FP + FN); 0 if the denominator is 0.
double class_f1(const std::vector<double>& predictions, const std::vector<int64_t>& golds,
                int64_t label) {
  MOE_CHECK(predictions.size() == golds.size(), "{} {}", predictions.size(), golds.size());
  double true_positives = 0, denominator = 0;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const bool is_predicted = static_cast<int64_t>(predictions[i]) == label;
    const bool is_right = golds[i] == label;
    true_positives += is_predicted && is_right ? 1 : 0;
    denominator += (is_predicted ? 1 : 0) + (is_right ? 1 : 0);
  }
  return denominator == 0 ? 0.0 : 2 * true_positives / denominator;
}

}  // namespace

const std::vector<Metric>& choice_metrics() {
  static const std::vector<Metric> metrics = {
      {"acc", accuracy([](const std::string&) { return 1; })},
      {"acc_norm", accuracy(count_code_points)},
      {"acc_bytes", accuracy([](const std::string& choice) { return choice.size(); })},
      {"exact_match",
       [](const Question& question, const QuestionScores& scores) {
         const auto gold = static_cast<size_t>(question.gold);
         return question.gold >= 0 && scores[gold].is_greedy ? 1.0 : 0.0;
       }},
      {"f1", chosen_class, Aggregation::kBinaryF1},
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

Metric known_task_metric(const std::string& name) {
  static const std::map<std::string, Metric> metrics = {
      {"macro_f1", {"f1", chosen_class, Aggregation::kMacroF1}},
      {"mc2", {"acc", mc2}},
      {"record_f1", {"f1", best_entity<word_f1>}},
      {"record_em", {"em", best_entity<same_words>}}};
  const auto found = metrics.find(name);
  return found == metrics.end() ? choice_metric(name) : found->second;
}

Metric greedy_accuracy() {
  return {"acc", [](const Question&, const QuestionScores& scores) {
            return scores.at(0).is_greedy ? 1.0 : 0.0;
          }};
}

Metric perplexity() {
  return {"perplexity",
          [](const Question&, const QuestionScores& scores) { return scores.at(0).logprob; },
          Aggregation::kPerplexity};
}

std::vector<std::string> squad_words(const std::string& text) {
  std::string plain = lower(text);
  std::erase_if(plain, [](unsigned char c) { return c < 0x80 && std::ispunct(c) != 0; });
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

Mean compute_mean(const std::vector<double>& values) {
  MOE_CHECK(!values.empty(), "no values");
  const auto n = static_cast<double>(values.size());
  Mean mean{sum(values) / n, std::nullopt};
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
      return compute_mean(values);
    case Aggregation::kBinaryF1:
      return {class_f1(values, golds, 1), std::nullopt};
    case Aggregation::kMacroF1:
      break;
    case Aggregation::kPerplexity: {
      Mean mean{std::exp(-compute_mean(values).value), std::nullopt};
      if (values.size() > 1 && resamples > 0) {
        mean.standard_error = bootstrap_deviation(values, resamples);
      }
      return mean;
    }
  }
  const double sum =
      class_f1(values, golds, 0) + class_f1(values, golds, 1) + class_f1(values, golds, 2);
  return {sum / 3, std::nullopt};
}

PythonRandom::PythonRandom(uint32_t seed) {
  // CPython's init_by_array() with one word; std::mt19937 has no such constructor.
  struct ArraySeed {
    using result_type = uint32_t;
    void generate(uint32_t* state, const uint32_t* /*end*/) const {
      state[0] = 19650218U;
      for (uint32_t i = 1; i < 624; ++i) {
        state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30U)) + i;
      }
      uint32_t at = 1;
      for (uint32_t step = 0; step < 624 + 623; ++step) {
        const uint32_t mixed = state[at - 1] ^ (state[at - 1] >> 30U);
        state[at] = step < 624 ? (state[at] ^ (mixed * 1664525U)) + seed
                               : (state[at] ^ (mixed * 1566083941U)) - at;
        if (++at == 624) {
          state[0] = state[623];
          at = 1;
        }
      }
      state[0] = 0x80000000U;
    }
    uint32_t seed;
  };
  ArraySeed array{seed};
  engine_.seed(array);
}

double PythonRandom::uniform() {
  const auto high = static_cast<uint32_t>(engine_() >> 5U),
             low = static_cast<uint32_t>(engine_() >> 6U);
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t PythonRandom::below(uint64_t n) {
  MOE_CHECK(n > 0 && n < (uint64_t{1} << 32U), "{}", n);
  const auto bits = static_cast<uint32_t>(64 - __builtin_clzll(n));
  uint64_t value = n;
  while (value >= n) {
    value = engine_() >> (32U - bits);
  }
  return value;
}

std::vector<uint64_t> PythonRandom::sample(uint64_t n, uint64_t k) {
  MOE_CHECK(k <= n, "{} of {}", k, n);
  // If n <= set_size, CPython draws from a list of the remaining indices. If n is larger, it draws
  // from all indices and repeats a draw whose index was drawn before.
  double set_size = 21;
  if (k > 5) {
    set_size += std::pow(4, std::ceil(std::log(static_cast<double>(k * 3)) / std::log(4.0)));
  }
  std::vector<uint64_t> drawn;
  if (static_cast<double>(n) <= set_size) {
    std::vector<uint64_t> pool(n);
    std::iota(pool.begin(), pool.end(), uint64_t{0});
    for (uint64_t i = 0; i < k; ++i) {
      const uint64_t j = below(n - i);
      drawn.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return drawn;
  }
  std::set<uint64_t> taken;
  while (drawn.size() < k) {
    const uint64_t j = below(n);
    if (taken.insert(j).second) {
      drawn.push_back(j);
    }
  }
  return drawn;
}

}  // namespace moe::eval
