#include "core/bench/eval.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/bench/environment.h"
#include "core/bench/parts.h"
#include "core/eval/asked.h"
#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/tasks.h"

namespace moe::bench {

namespace {

struct RequestSet {
  std::string name;  // a task, or "letters" and "spans"
  int64_t questions = 0;
  std::vector<eval::Request> requests;
  double tokenising_s = 0;
};

constexpr int kChoices = 4;

// exp(N(mean, 0.5^2)) within least..most.
int64_t some_length(Random& random, double mean, int64_t least, int64_t most) {
  const double length = std::exp(mean + 0.5 * random.normal());
  return std::clamp(static_cast<int64_t>(length), std::min(least, most), most);
}

void append(std::vector<int64_t>& tokens, Random& random, int64_t count, int64_t vocabulary) {
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary))));
  }
}

RequestSet synthetic_set(const std::string& name, const model::ModelConfig& config, int64_t count) {
  const bool spans = name == "spans";
  const int64_t half = std::max<int64_t>(1, config.max_position_embeddings / 2);
  Random random(0, name);
  RequestSet set{name, count, {}, 0};
  for (int64_t question = 0; question < count; ++question) {
    std::vector<int64_t> context;
    const int64_t length =
        spans ? some_length(random, 4.2, 16, 256) : some_length(random, 5.0, 48, 512);
    append(context, random, std::min(length, half), config.vocab_size);
    for (int choice = 0; choice < kChoices; ++choice) {
      const int64_t scored = spans ? std::min(some_length(random, 2.6, 2, 64), half) : 1;
      eval::Request request{context, scored, false};
      append(request.tokens, random, scored, config.vocab_size);
      set.requests.push_back(std::move(request));
    }
  }
  return set;
}

// One a task.
std::vector<RequestSet> task_sets(const std::vector<eval::LoadedTask>& tasks,
                                  const eval::TextEncoder& encoder) {
  std::vector<RequestSet> sets;
  for (const auto& loaded : tasks) {
    if (loaded.task.output == eval::OutputType::kGenerateUntil) {
      throw UserError(
          "{}: its answers are generated, not scored; bench eval measures scoring, name tasks with "
          "choices",
          loaded.task.name);
    }
    const double start = clock_now_s();
    auto requests = eval::encode_requests(encoder, eval::text_pairs(loaded.questions));
    sets.push_back({loaded.task.name, static_cast<int64_t>(loaded.questions.size()),
                    std::move(requests), clock_now_s() - start});
  }
  return sets;
}

// Random tokens, the same in every run. "letters": four choices of one token after 48 to 512, about
// 150 (MMLU); "spans": four of 2 to 64, about 14, after 16 to 256, about 70 (HellaSwag, PIQA). A
// smaller window or vocabulary makes them shorter.
std::vector<RequestSet> synthetic_sets(const model::ModelConfig& config, int64_t questions) {
  return {synthetic_set("letters", config, questions), synthetic_set("spans", config, questions)};
}

// A product of all rows of a forward with one weight, `count` times in it.
struct Product {
  int64_t rows, inner, outer, count;
  double flop() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) *
           static_cast<double>(outer) * static_cast<double>(count);
  }
};

constexpr int64_t kHeadRows = 512;  // of logits at once, in the roof too

// The products of an average forward with `rows` tokens, `routed_rows` rows in each MoE layer and
// `head_rows` rows of logits, the only ones that a dense last layer goes on with behind its
// attention (model::Packed::output_rows).
std::vector<Product> products_of(const model::ModelConfig& config, int64_t rows,
                                 int64_t routed_rows, int64_t head_rows) {
  const int64_t width = config.hidden_size, layers = config.layers;
  const int64_t queries = config.heads * config.head_dim;
  const int64_t keys = 2 * config.kv_heads * config.head_dim;
  const int64_t moe_layers = config.moe ? static_cast<int64_t>(config.moe->layers.size()) : 0;
  const int64_t shortened = config.is_moe_layer(layers - 1) ? 0 : 1;
  std::vector<Product> products = {{rows, width, queries + keys, layers}};
  const auto add_dense = [&](int64_t its_rows, int64_t inner, int64_t outer, int64_t count) {
    for (const Product& product : {Product{its_rows, inner, outer, count - shortened},
                                   Product{head_rows, inner, outer, shortened}}) {
      if (product.count > 0) {
        products.push_back(product);
      }
    }
  };
  add_dense(rows, queries, width, layers);
  if (layers > moe_layers) {
    const int64_t inner = config.intermediate_size, count = layers - moe_layers;
    add_dense(rows, width, 2 * inner, count);
    add_dense(rows, inner, width, count);
  }
  if (moe_layers > 0) {
    products.push_back({routed_rows, width, 2 * config.moe->expert_width, moe_layers});
    products.push_back({routed_rows, config.moe->expert_width, width, moe_layers});
    if (const int64_t shared = config.moe->shared_expert_width; shared > 0) {
      products.push_back({rows, width, 2 * shared, moe_layers});
      products.push_back({rows, shared, width, moe_layers});
    }
  }
  for (int64_t row = 0; row < head_rows; row += kHeadRows) {
    products.push_back({std::min(kHeadRows, head_rows - row), width, config.vocab_size, 1});
  }
  return products;
}

Timing scaled(const Timing& time, double factor) {
  return {time.best_s * factor, time.median_s * factor, time.worst_s * factor};
}

// Seconds of an average forward's products: each is timed once and counts as often as it occurs.
Timing time_products(const std::vector<Product>& products, int64_t repeats,
                     const at::TensorOptions& options) {
  Timing sum;
  std::vector<std::pair<Product, Timing>> timed;
  for (const Product& product : products) {
    auto same = std::find_if(timed.begin(), timed.end(), [&](const auto& entry) {
      return entry.first.rows == product.rows && entry.first.inner == product.inner &&
             entry.first.outer == product.outer;
    });
    if (same == timed.end()) {
      const at::Tensor left = at::randn({product.rows, product.inner}).to(options);
      const at::Tensor right = at::randn({product.outer, product.inner}).to(options);
      const Timing time = time_of(
          repeats, [&] { at::mm(left, right.t()); }, options.device());
      same = timed.insert(timed.end(), {product, time});
    }
    const Timing each = scaled(same->second, static_cast<double>(product.count));
    sum.best_s += each.best_s;
    sum.median_s += each.median_s;
    sum.worst_s += each.worst_s;
  }
  return sum;
}

void add_routing(const eval::Scores& scores, EvalReport& report, int64_t* routed_rows) {
  int64_t rows = 0, dropped = 0;
  for (const auto& layer : scores.counters) {
    rows += layer.rows();
    dropped += layer.dropped_requests;
  }
  const auto layers = static_cast<int64_t>(scores.counters.size());
  *routed_rows = layers == 0 ? 0 : rows / layers / scores.forwards;
  if (rows + dropped > 0) {
    report.drop_share = static_cast<double>(dropped) / static_cast<double>(rows + dropped);
  }
}

// Of at::mm: on the CPU f32, whatever we multiply, as everywhere in bench.
at::TensorOptions product_options(const model::Llama& llama) {
  return at::TensorOptions(llama.device())
      .dtype(llama.device().is_cuda() ? llama.product_type() : at::kFloat);
}

// The widths of "product K x N" (kernels/ops/linear.cpp).
std::optional<std::pair<int64_t, int64_t>> widths_of(const std::string& name) {
  std::pair<int64_t, int64_t> widths;
  std::istringstream words(name);
  std::string product, by;
  words >> product >> widths.first >> by >> widths.second;
  return words && product == "product" ? std::optional(widths) : std::nullopt;
}

// at::mm's time for the operations of a part: a product's at its own shape and mean rows, the
// head's at blocks of kHeadRows, attention's at the rate of the fastest of these.
void add_roofs(const model::Llama& llama, std::vector<EvalPart>& parts) {
  const auto options = product_options(llama);
  const int64_t width = llama.config().hidden_size;
  double fastest = 0;  // operations a second
  for (EvalPart& part : parts) {
    auto widths = widths_of(part.name);
    if (part.name == "head") {
      widths = {width, llama.config().vocab_size};
    }
    if (part.flop == 0 || !widths) {
      continue;
    }
    const double of_row = 2.0 * static_cast<double>(widths->first * widths->second);
    auto rows = static_cast<int64_t>(part.flop / of_row) / std::max<int64_t>(1, part.calls);
    rows = std::max<int64_t>(1, part.name == "head" ? std::min(kHeadRows, rows) : rows);
    const Product product{rows, widths->first, widths->second, 1};
    const double rate = product.flop() / time_products({product}, 5, options).best_s;
    part.roof_s = part.flop / rate;
    fastest = std::max(fastest, rate);
  }
  for (EvalPart& part : parts) {
    if (part.flop > 0 && part.roof_s == 0 && fastest > 0) {
      part.roof_s = part.flop / fastest;
    }
  }
}

std::vector<EvalPart> parts_of_scoring(const model::Llama& llama,
                                       const std::function<void()>& score) {
  const double start = clock_now_s();
  const auto recorded = own_parts(score);
  double rest = clock_now_s() - start;
  std::vector<EvalPart> parts;
  for (const auto& [name, part] : recorded) {
    parts.push_back({name, part.seconds, part.flop, 0, part.calls});
    rest -= part.seconds;
  }
  parts.push_back({"the rest", rest});
  add_roofs(llama, parts);
  std::sort(parts.begin(), parts.end(),
            [](const EvalPart& a, const EvalPart& b) { return a.seconds > b.seconds; });
  return parts;
}

EvalReport measure(const model::Llama& llama, const RequestSet& set,
                   const eval::ScoreSettings& settings, const EvalSettings& asked) {
  const int64_t repeats = asked.repeats;
  EvalReport report;
  report.name = set.name;
  report.questions = set.questions;
  report.requests = static_cast<int64_t>(set.requests.size());
  for (const auto& request : set.requests) {
    report.tokens_asked += request.inputs();
  }
  eval::Scores scores;
  report.scoring = time_of(
      repeats, [&] { scores = eval::score_requests(llama, set.requests, settings); },
      llama.device());
  report.peak_bytes = process_use().peak_bytes;
  report.tokens_computed = scores.input_tokens;
  report.head_rows = scores.head_rows;
  report.forwards = scores.forwards;
  int64_t routed_rows = 0;
  add_routing(scores, report, &routed_rows);
  const auto each = [&](int64_t all) { return std::max<int64_t>(1, all / scores.forwards); };
  const auto products =
      products_of(llama.config(), each(scores.input_tokens), routed_rows, each(scores.head_rows));
  for (const Product& product : products) {
    report.flop += product.flop() * static_cast<double>(scores.forwards);
  }
  report.roof = scaled(time_products(products, repeats, product_options(llama)),
                       static_cast<double>(scores.forwards));
  report.tokenising_s = set.tokenising_s;
  if (asked.parts) {
    report.parts =
        parts_of_scoring(llama, [&] { eval::score_requests(llama, set.requests, settings); });
  }
  return report;
}

}  // namespace

std::vector<EvalReport> bench_eval(const EvalSettings& settings) {
  eval::EvalSettings asked;
  asked.model = settings.model;
  asked.router = settings.router;
  const auto tasks = settings.tasks.empty()
                         ? std::vector<eval::LoadedTask>()
                         : eval::load_tasks(settings.tasks, settings.data, settings.limit);
  const eval::OpenedModel opened = eval::open_model(asked, {});
  const auto sets = settings.tasks.empty()
                        ? synthetic_sets(opened.config, settings.limit.value_or(60))
                        : task_sets(tasks, eval::encoder_of(opened, asked.compat));
  asked.batch_tokens = settings.batch_tokens;
  asked.group_tokens = settings.group_tokens;
  asked.device = settings.device;
  eval::Asked largest;
  for (const auto& set : sets) {
    const eval::Asked of_set = eval::asked_of(asked, opened, set.requests);
    largest.forward_tokens = std::max(largest.forward_tokens, of_set.forward_tokens);
  }
  check_memory(eval::memory_need(asked, opened, largest), settings.force_memory);
  const model::Llama llama = model::Llama::load(opened.checkpoint, {}, settings.device,
                                                model::Storage::kStored, {settings.precision});
  const eval::ScoreSettings scoring = {{opened.routing.router, opened.routing.ep_ranks},
                                       settings.batch_tokens,
                                       settings.group_tokens};
  std::vector<EvalReport> reports;
  for (const auto& set : sets) {
    reports.push_back(measure(llama, set, scoring, settings));
    if (opened.config.moe) {
      reports.back().router = route::to_string(opened.routing.router);
    }
  }
  return reports;
}

double EvalReport::seconds_of_parts() const {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const EvalPart& part) { return sum + part.seconds; });
}

OrderedJson to_json(const EvalReport& report) {
  const auto per_second = [&](int64_t count) {
    return static_cast<double>(count) / report.scoring.median_s;
  };
  OrderedJson json = {{"name", report.name},
                      {"questions", report.questions},
                      {"requests", report.requests},
                      {"tokens_asked", report.tokens_asked},
                      {"tokens_computed", report.tokens_computed},
                      {"head_rows", report.head_rows},
                      {"forwards", report.forwards},
                      {"flop", report.flop},
                      {"scoring", to_json(report.scoring)},
                      {"roof", to_json(report.roof)},
                      {"questions_per_second", per_second(report.questions)},
                      {"tokens_asked_per_second", per_second(report.tokens_asked)},
                      {"tokens_computed_per_second", per_second(report.tokens_computed)},
                      {"share_of_roof", report.roof.median_s / report.scoring.median_s},
                      {"peak_bytes", report.peak_bytes}};
  for (const EvalPart& part : report.parts) {
    json["parts"].push_back({{"name", part.name},
                             {"ms", part.seconds * 1e3},
                             {"share", part.seconds / report.seconds_of_parts()},
                             {"calls", part.calls}});
    if (part.roof_s > 0) {
      json["parts"].back()["gflops"] = part.flop / part.seconds / 1e9;
      json["parts"].back()["share_of_roof"] = part.roof_s / part.seconds;
    }
  }
  if (report.tokenising_s > 0) {
    json["tokenising_ms"] = report.tokenising_s * 1e3;
  }
  if (!report.router.empty()) {
    json["router"] = report.router;
  }
  if (report.drop_share) {
    json["drop_share"] = *report.drop_share;
  }
  return json;
}

}  // namespace moe::bench
