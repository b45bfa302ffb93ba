// Scores of several ranks equal those of one bit for bit: the forwards are the same.

#include "core/eval/scoring/forwards.h"
#include "tests/core/eval/scoring/score_world.h"
#include "tests/support/catch.h"
#include "tests/support/rank_threads.h"
#include "tests/support/time_limit.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

constexpr int kSeconds = 60;

// Events that a rank receives during a run.
struct Outputs {
  Scores scores;
  std::vector<std::vector<size_t>> observed, answered;
  int64_t token_rows = 0;  // their sum
  std::vector<int64_t> progress;
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
      for (const auto& rows : forward.token_rows) {
        outputs.token_rows += rows.sum().item<int64_t>() * (1 + rows.size(0));
      }
    };
  }
  settings.answered = [&](const std::vector<size_t>& answered, const Scores& so_far) {
    outputs.answered.push_back(answered);
    REQUIRE(so_far.scores[answered[0]].tokens > 0);
  };
  outputs.scores = score_requests(llama, requests, settings,
                                  [&](int64_t done) { outputs.progress.push_back(done); });
  return outputs;
}

bool are_same(const Outputs& a, const Outputs& b) {
  return a.observed == b.observed && a.answered == b.answered && a.token_rows == b.token_rows &&
         a.progress == b.progress && same(a.scores, b.scores);
}

}  // namespace

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
    CHECK(error.starts_with("request 9: the model gives a log-probability of nan"));
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
  CHECK(errors[0].find("what is evaluated") != std::string::npos);
  CHECK(errors[0] == errors[1]);
}

TEST_CASE("values of the ranks are returned in the order of the ranks", "[eval]") {
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

}  // namespace moe::eval
