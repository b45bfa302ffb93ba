// score() against a plain loop (one request at a time, all logits, log-softmax in double), and with
// settings that must not change its results.

#include "core/eval/scoring/score.h"

#include <algorithm>
#include <cmath>

#include "core/base/json.h"
#include "core/eval/scoring/forwards.h"
#include "core/eval/scoring/generate_until.h"
#include "tests/core/eval/scoring/score_world.h"
#include "tests/support/data.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

// fp32 logits of magnitude ~1: another batch changes the order of sums of at most 64 terms, 3
// layers deep, and of a log-sum-exp over 64; 64 * 2^-24 * a few = 1e-5 a token, and requests score
// at most 12 tokens. Measured: 2e-6.
constexpr double kTolerance = 1e-4;

// Scores one request: all logits, log-softmax in double.
Score score_slowly(const model::Llama& llama, const Request& request,
                   const model::RoutingOptions& routing) {
  const std::vector<int64_t> inputs(request.tokens.begin(), request.tokens.end() - 1);
  const auto hidden =
      llama.forward({at::tensor(inputs, at::kLong), {request.inputs()}}, routing).hidden;
  const auto logits = llama.head(hidden).to(at::kDouble).contiguous();
  const int64_t vocab = logits.size(1);
  Score score{0, true, 0};
  for (int64_t row = request.inputs() - request.scored; row < request.inputs(); ++row) {
    const double* values = logits.const_data_ptr<double>() + row * vocab;
    const int64_t target = request.tokens[static_cast<size_t>(row) + 1];
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      sum += std::exp(values[v]);
      score.is_greedy = score.is_greedy && values[v] <= values[target];
    }
    score.logprob += values[target] - std::log(sum);
    ++score.tokens;
  }
  return score;
}

void check_equal(const std::vector<Score>& a, const std::vector<Score>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(a[i].logprob - b[i].logprob) <= tolerance);
    CHECK(a[i].is_greedy == b[i].is_greedy);
    CHECK(a[i].tokens == b[i].tokens);
  }
}

std::vector<Score> score(const model::Llama& llama, const std::vector<Request>& requests,
                         const ScoreSettings& settings) {
  return score_requests(llama, requests, settings).scores;
}

std::vector<Score> score_slowly(const model::Llama& llama, const std::vector<Request>& requests) {
  std::vector<Score> scores;
  for (const auto& request : requests) {
    scores.push_back(score_slowly(llama, request, llama.default_routing()));
  }
  return scores;
}

constexpr int kSeconds = 60;

// Events that a rank receives during a run.
struct Outputs {
  Scores scores;
  std::vector<std::vector<size_t>> observed, answered;
  int64_t token_rows = 0;  // their sum
};

Outputs score(const model::Llama& llama, const std::vector<Request>& requests,
              distributed::Comm* ranks, bool observes) {
  Outputs outputs;
  ScoreSettings settings{llama.default_routing(), 100, 40};
  settings.ranks = ranks;
  if (observes) {
    settings.routing.count_tokens = true;
    settings.observe = [&](const Forward& forward) {
      outputs.observed.push_back(forward.requests);
      for (const auto& rows : forward.token_rows.unbind(0)) {
        outputs.token_rows += rows.sum().item<int64_t>() * (1 + rows.size(0));
      }
    };
  }
  settings.answered = [&](const std::vector<size_t>& answered, const Scores& so_far) {
    outputs.answered.push_back(answered);
    REQUIRE(so_far.scores[answered[0]].tokens > 0);
  };
  outputs.scores = score_requests(llama, requests, settings);
  return outputs;
}

bool are_same(const Outputs& a, const Outputs& b) {
  return a.observed == b.observed && a.answered == b.answered && a.token_rows == b.token_rows &&
         same(a.scores, b.scores);
}

TextEncoder bytes_encoder(int64_t window, bool adds_bos = true) {
  return {[](std::string_view text) { return std::vector<int64_t>(text.begin(), text.end()); }, 1,
          "<s>", adds_bos, window};
}

TEST_CASE("without a capacity, any batch size gives the scores of single requests", "[eval]") {
  const auto requests = random_requests(40);
  for (const model::Llama& llama : {dense(), mixture("top2:cf=inf")}) {
    const auto slow = score_slowly(llama, requests);
    for (const int64_t batch_tokens : {0, 1, 37, 200, 100000}) {  // 0: auto
      CAPTURE(batch_tokens);
      const auto found = score(llama, requests, {llama.default_routing(), batch_tokens, 4096});
      check_equal(found, slow, kTolerance);
    }
  }
}

TEST_CASE("scores with bf16 products equal those in f32 within rounding", "[eval]") {
  // bf16 rounds to 8 bits, by at most 2^-9 of a number. There are about 30 successive
  // roundings: in each of 3 layers those of the norm, q k v, attention, its output, the norm, gate
  // and up, their product and down, of results and operands; then the head. They add in quadrature,
  // and this is the error of a logit relative to the root mean square of the logits.
  const double logit_share = std::sqrt(30.0) / 512;
  // log p = z_t - logsumexp(z): twice the largest error of a logit, which of 64 normal ones is
  // rarely above 3.5 deviations.
  constexpr double kDeviations = 2 * 3.5;
  const auto requests = random_requests(40);
  for (const auto dtype : {io::DType::kF32, io::DType::kF16, io::DType::kBF16}) {
    // With equal experts whose gates sum to 1 the output does not depend on the routing.
    for (const bool is_mixture : {false, true}) {
      CAPTURE(static_cast<int>(dtype), is_mixture);
      const TempDir folder;
      test::write_tiny_checkpoint(folder / "dense", {.dtype = dtype, .std = 0.3});
      if (is_mixture) {
        test::write_mixture(folder / "dense", folder / "moe",
                            {.router = "top2:cf=inf", .router_std = 1.0});
      }
      const io::Checkpoint checkpoint(folder / (is_mixture ? "moe" : "dense"));
      const auto load = [&](model::Precision precision) {
        return model::Llama::load(checkpoint, {}, at::kCPU, model::Storage::kStored, {precision});
      };
      const model::Llama f32 = load(model::Precision::kF32), bf16 = load(model::Precision::kBf16);
      const auto routing = f32.default_routing();
      const auto truth = score(f32, requests, {routing}), scores = score(bf16, requests, {routing});
      const at::Tensor logits =
          f32.head(f32.forward({at::arange(60, at::kLong), {60}}, routing).hidden);
      const double most = kDeviations * logit_share * logits.square().mean().sqrt().item<double>();
      double sum = 0;
      for (size_t i = 0; i < truth.size(); ++i) {
        const double off = std::abs(scores[i].logprob - truth[i].logprob);
        CHECK(off < most * static_cast<double>(truth[i].tokens));
        sum += off;
      }
      CHECK(sum > 1e-3);  // the precision differs
    }
  }
}

TEST_CASE("a common prefix is computed once and does not change the scores", "[eval]") {
  std::vector<Request> requests = random_requests(12);
  for (size_t i = 2; i < 12; ++i) {  // four choices after each of ten contexts, one of them twice
    for (int choice = 0; choice < 4; ++choice) {
      Request request = requests[i];
      const int64_t longer = choice == 3 ? 0 : 1 + (choice + static_cast<int64_t>(i)) % 5;
      for (int64_t t = 0; t < longer; ++t) {
        request.tokens.push_back((choice * 11 + t * 7 + static_cast<int64_t>(i)) % 64);
      }
      request.scored = std::min(request.inputs(), longer + 1);
      requests.push_back(request);
    }
  }
  for (const model::Llama& llama : {dense(), mixture("top2:cf=inf"), mixture("topp:0.4")}) {
    const auto slow = score_slowly(llama, requests);
    int64_t alone = 0;
    for (const auto& request : requests) {
      alone += request.inputs();
    }
    for (const int64_t batch_tokens : {1, 100, 100000}) {
      const Scores found =
          score_requests(llama, requests, {llama.default_routing(), batch_tokens, 4096});
      check_equal(found.scores, slow, kTolerance);
      CHECK(found.input_tokens < alone * 2 / 5);
    }
  }
}

TEST_CASE("greedy continuations are marked as greedy", "[eval]") {
  const model::Llama llama = dense();
  Request request{{3, 9, 27}, 0, false};
  for (int i = 0; i < 4; ++i) {  // the argmax of the model
    const auto hidden = llama
                            .forward({at::tensor(request.tokens, at::kLong),
                                      {static_cast<int64_t>(request.tokens.size())}},
                                     {})
                            .hidden;
    request.tokens.push_back(llama.head(hidden)[-1].argmax().item<int64_t>());
  }
  request.scored = 4;
  CHECK(score(llama, {request}, {}).at(0).is_greedy);
  request.tokens[4] = (request.tokens[4] + 1) % 64;
  CHECK_FALSE(score(llama, {request}, {}).at(0).is_greedy);
}

TEST_CASE("with a capacity scores do not depend on the batch size", "[eval]") {
  const model::Llama llama = mixture("top1:cf=0.5");
  const auto requests = random_requests(40);
  const auto routing = llama.default_routing();
  const Scores reference = score_requests(llama, requests, {routing, 4096, 100});
  for (const int64_t batch_tokens : {1, 64, 100000}) {
    check_equal(score(llama, requests, {routing, batch_tokens, 100}), reference.scores, 0.0);
  }
  CHECK(reference.forwards ==
        static_cast<int64_t>(
            pack_in_order(single_request_groups(requests), 200).size()));  // 100 a rank, 2 ranks
  CHECK(reference.counters.size() == 2);                                   // MoE layers
  CHECK(reference.counters[0].tokens == reference.input_tokens);
  CHECK(reference.counters[0].dropped_requests > 0);
  // The group size changes scores, so it is printed.
  const auto other = score(llama, requests, {routing, 4096, 10});
  double difference = 0;
  for (size_t i = 0; i < other.size(); ++i) {
    difference = std::max(difference, std::abs(other[i].logprob - reference.scores[i].logprob));
  }
  CHECK(difference > kTolerance);
}

TEST_CASE("a group is scored as one forward of its requests in file order", "[eval]") {
  const model::Llama llama = mixture("top2:cf=1");
  const auto requests = random_requests(6, 11);
  const auto routing = llama.default_routing();
  std::vector<int64_t> ids, lengths;
  for (const auto& request : requests) {
    ids.insert(ids.end(), request.tokens.begin(), request.tokens.end() - 1);
    lengths.push_back(request.inputs());
  }
  const auto logprobs =
      llama.head(llama.forward({at::tensor(ids, at::kLong), lengths}, routing).hidden)
          .log_softmax(1);
  const auto scores = score(llama, requests, {routing, 1, 100000});
  int64_t end = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    end += lengths[i];
    double sum = 0;
    for (int64_t j = 1; j <= requests[i].scored; ++j) {
      sum += logprobs[end - j][*(requests[i].tokens.end() - j)].item<double>();
    }
    CHECK(scores[i].logprob == Approx(sum).margin(kTolerance));
  }
}

TEST_CASE("batches keep whole requests, groups keep the order of the file", "[eval]") {
  const auto of_lengths = [](const std::vector<int64_t>& inputs) {
    std::vector<Request> requests;
    for (const int64_t length : inputs) {
      requests.push_back({std::vector<int64_t>(static_cast<size_t>(length) + 1), 1, false});
    }
    return requests;
  };
  const auto requests = of_lengths({3, 5, 2, 9, 4, 5});
  const auto indices = [](const PrefixBatches& batches) {
    std::vector<std::vector<size_t>> all;
    for (const auto& batch : batches) {
      all.emplace_back();
      for (const auto& group : batch) {
        all.back().push_back(group.request);
      }
    }
    return all;
  };
  using Indices = std::vector<std::vector<size_t>>;
  const auto groups = single_request_groups(requests);
  CHECK(indices(pack_in_order(groups, 8)) == Indices{{0, 1}, {2}, {3}, {4}, {5}});
  CHECK(indices(pack_in_order(groups, 10)) == Indices{{0, 1, 2}, {3}, {4, 5}});
  CHECK(indices(pack_longest_first(groups, 10)) == Indices{{3}, {1, 5}, {4, 0, 2}});
  CHECK(indices(pack_longest_first(groups, 1)) == Indices{{3}, {1}, {5}, {4}, {0}, {2}});
  CHECK(pack_in_order({}, 8).empty());
}

TEST_CASE("weights that are not finite throw UserError", "[eval]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.std = 1e38});
  const auto llama = model::Llama::load(io::Checkpoint(folder / "dense"));
  CHECK_THAT(user_error_of([&] { score(llama, random_requests(1), {}); }),
             contains_text("NaN, infinity or very large values"));
}

void check_losses(const std::filesystem::path& folder, const std::filesystem::path& file) {
  CAPTURE(folder);
  const auto llama = model::Llama::load(io::Checkpoint(folder));
  const Json story = read_json(file)["first_story"];
  const auto ids = story["ids_with_bos"].get<std::vector<int64_t>>();
  const auto losses = story["token_nll"].get<std::vector<double>>();
  std::vector<Request> requests;
  for (size_t i = 1; i < ids.size(); i += 7) {
    requests.push_back({{ids.begin(), ids.begin() + static_cast<int64_t>(i) + 1}, 1, false});
  }
  const auto scores = score(llama, requests, {});
  for (size_t i = 0; i < scores.size(); ++i) {
    CHECK(-scores[i].logprob == Approx(losses.at(7 * i)).margin(1e-4));
  }
  const Request whole{ids, static_cast<int64_t>(ids.size()) - 1, false};
  // Losses are rounded to 1e-6 each, their mean is not.
  CHECK(-score(llama, {whole}, {}).at(0).logprob / static_cast<double>(whole.scored) ==
        Approx(story["mean_nll"].get<double>()).margin(1e-4));
}

TEST_CASE("scores of single tokens and of a text are the losses of transformers", "[eval]") {
  for (const auto& [folder, file] : test::reference_models()) {
    check_losses(folder, file);
  }
}

// Scores of several ranks equal those of one bit for bit: the forwards are the same.

TEST_CASE("several ranks give the bits of the scores of one", "[eval]") {
  for (const char* router : {"top1+ir+fr:cf=0.5", "top2:cf=inf", "topp:0.4"}) {
    const model::Llama llama = mixture(router);
    for (const size_t count : {0, 1, 19}) {
      const auto requests = random_requests(count);
      for (const bool observes : {false, true}) {
        const Outputs one = score(llama, requests, nullptr, observes);
        for (const int64_t ranks : {2, 3, 8}) {
          INFO(router << ", " << count << " requests, " << ranks << " ranks, " << observes);
          const TimeLimit limit(kSeconds);
          std::vector<Outputs> outputs(static_cast<size_t>(ranks));
          run_as_threads(ranks, [&](distributed::Comm& comm) {
            outputs[comm.rank()] = score(llama, requests, &comm, observes);
          });
          for (const auto& many : outputs) {
            CHECK(are_same(many, one));
          }
        }
      }
    }
  }
}

TEST_CASE("scores that are not finite throw the same UserError on all ranks", "[eval]") {
  const model::Llama llama = mixture("top2:cf=inf");
  llama.parameters().front().tensor[5].fill_(std::numeric_limits<float>::quiet_NaN());
  auto requests = random_requests(9);
  for (auto& request : requests) {
    for (auto& token : request.tokens) {
      token = token == 5 ? 6 : token;
    }
  }
  requests[8].tokens[0] = 5;  // seen by one rank
  const TimeLimit limit(kSeconds);
  std::vector<std::string> errors(3);
  run_as_threads(3, [&](distributed::Comm& comm) {
    errors[comm.rank()] = user_error_of([&] { score(llama, requests, &comm, /*observes=*/false); });
  });
  for (const auto& error : errors) {
    CHECK(error.starts_with("request 9: log-probability nan"));
  }
}

TEST_CASE("ranks with different requests are refused", "[eval]") {
  const model::Llama llama = mixture("top2:cf=inf");
  const TimeLimit limit(kSeconds);
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](distributed::Comm& comm) {
    const auto requests = random_requests(comm.rank() == 0 ? 5 : 6);
    errors[comm.rank()] = user_error_of([&] { score(llama, requests, &comm, /*observes=*/false); });
  });
  CHECK(errors[0].find("requests or settings") != std::string::npos);
  CHECK(errors[0] == errors[1]);
}

TEST_CASE("gather_generated() returns the values in rank order", "[eval]") {
  const TimeLimit limit(kSeconds);
  std::vector<std::vector<std::string>> all(3);
  run_as_threads(3, [&](distributed::Comm& comm) {
    std::optional<std::string> own;
    if (comm.rank() < 2) {
      own = comm.rank() == 0 ? "" : "one";  // an empty answer is valid
    }
    all[comm.rank()] = gather_generated(&comm, own);
  });
  for (const auto& texts : all) {
    CHECK((texts == std::vector<std::string>{"", "one"}));
  }
}

// Generated answers: stop words and the prompt's share of the window.

TEST_CASE("an answer is cut before each stop word in turn", "[eval]") {
  CHECK(truncate_at_stop_words("a Q: b </s> c", {"</s>", "Q:"}) == "a ");
  CHECK(truncate_at_stop_words("abc", {"x", ""}) == "abc");
  CHECK(truncate_at_stop_words("Q: a", {"Q:"}).empty());
}

TEST_CASE("a prompt is cut from the left to leave room for the answer", "[eval]") {
  Generation generation;
  generation.max_tokens = 4;
  CHECK((encode_prompt(bytes_encoder(8), generation, "abc") ==
         std::vector<int64_t>{1, 'a', 'b', 'c'}));
  CHECK((encode_prompt(bytes_encoder(8), generation, "abcde") ==
         std::vector<int64_t>{'b', 'c', 'd', 'e'}));
  CHECK((encode_prompt(bytes_encoder(8, false), generation, "") == std::vector<int64_t>{1}));
  CHECK_THAT(user_error_of([&] { encode_prompt(bytes_encoder(4), generation, "a"); }),
             contains_text("4 tokens"));
}

TEST_CASE("StopWords finds words that the last token completes, in any text length", "[eval]") {
  const io::Tokenizer tokenizer = io::Tokenizer::load(test::tiny_model_folder(), 1024);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"once upon", "", "\n\n", " Q"}, {"p ", "nQ"}}) {
    const StopWords stop(tokenizer, words);
    // Pseudo-random letters, spaces and line feeds.
    std::vector<int64_t> ids;
    uint64_t state = 1;
    int64_t found = 0;
    const std::string letters = "once upn Q\n";
    for (int64_t i = 0; i < 1200; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const char letter = letters[(state >> 33) % letters.size()];
      for (const int64_t id : tokenizer.encode(std::string(1, letter))) {
        ids.push_back(id);
      }
      const std::string text = tokenizer.decode(ids);
      const bool is_in = std::any_of(words.begin(), words.end(), [&](const auto& word) {
        return !word.empty() && text.find(word) != std::string::npos;
      });
      CHECK(stop.appears_in(ids) == is_in);
      if (is_in) {  // a caller stops here; remove the tokens of the stop word
        ++found;
        ids.resize(ids.size() - std::min<size_t>(ids.size(), 3));
      }
    }
    CHECK(found > 10);
    CHECK(ids.size() > 300);
  }
  CHECK_FALSE(StopWords(tokenizer, {"", ""}).appears_in({5, 6}));
}

}  // namespace
}  // namespace moe::eval
