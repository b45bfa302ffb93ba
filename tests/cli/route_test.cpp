// moe route on every golden case (core/route/README.md, "Cases") and on plain logits, as a user
// runs it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"

namespace moe::test {
namespace {

// Numbers agree to 1e-5 relative in f32, gradients of whole layers to 1e-4.
double tolerance_of(const std::string& kind) { return kind == "layer" ? 1e-4 : 1e-5; }

// The first difference, as a path with both values; empty when all of `want` is in `got` and
// nothing besides. Whole numbers, lists and words are equal; others within `tolerance` * (1 +
// |want|).
std::string difference(const Json& got, const Json& want, double tolerance) {
  if (want.is_object()) {
    if (!got.is_object() || got.size() != want.size()) {
      return fmt::format(": {} keys for {}", got.size(), want.size());
    }
    for (const auto& [key, value] : want.items()) {
      const std::string inside =
          got.contains(key) ? difference(got[key], value, tolerance) : ": missing";
      if (!inside.empty()) {
        return "/" + key + inside;
      }
    }
    return "";
  }
  if (want.is_array()) {
    if (!got.is_array() || got.size() != want.size()) {
      return ": another length";
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string inside = difference(got[i], want[i], tolerance);
      if (!inside.empty()) {
        return fmt::format("/{}{}", i, inside);
      }
    }
    return "";
  }
  if (want.is_number_float() || got.is_number_float()) {
    const double a = got.get<double>(), b = want.get<double>();
    return std::abs(a - b) <= tolerance * (1 + std::abs(b)) ? "" : fmt::format(": {} for {}", a, b);
  }
  return got == want ? "" : ": " + got.dump() + " for " + want.dump();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string write(const TempDir& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder / name) << text;
  return (folder / name).string();
}

// A refusal: exit code 2, nothing on standard output, and a sentence with `words`.
void check_refused(const std::vector<std::string>& arguments, const std::string& words) {
  INFO(words);
  const auto run = run_moe(arguments);
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, moe::test::contains_text(words));
}

// The worked example of core/route/README.md.
constexpr const char* kWorked =
    "2,1,0,-1\n1.5,0.5,-0.5,1\n1,0.25,0.75,0\n-1,0,2,1\n0,2,1.5,0.5\n-0.5,1,0.5,1.25\n"
    "0.25,0,0.5,2.5\n0.5,0.25,1,1.5\n";

}  // namespace

TEST_CASE("route answers every golden case", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const auto folder = shared_data() / ".." / "oracle" / "cases";
  if (!std::filesystem::is_directory(folder)) {
    MOE_SKIP("no golden cases: put the oracle folder beside the shared data");
  }
  std::vector<std::string> command = {"route"}, files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  command.insert(command.end(), files.begin(), files.end());
  const auto run = run_moe(command);
  REQUIRE(run.exit_code == 0);
  const auto answers = lines_of(run.out);
  REQUIRE(answers.size() == files.size());
  REQUIRE(files.size() >= 57);
  for (size_t i = 0; i < files.size(); ++i) {
    INFO(files[i]);
    const Json want = read_json(files[i]), got = parse_json(answers[i], "the answer");
    CHECK(difference(got, want, tolerance_of(want["kind"])) == "");
  }
}

TEST_CASE("route needs no more of a case than kind and input", "[cli]") {
  const TempDir folder;
  const std::string file = write(
      folder, "small.json",
      R"({"kind": "topk", "input": {"logits": [[1, 0], [2, 0], [0.5, 0]], "k": 1, "capacity_factor": 1.0}})");
  const auto run = run_moe({"route", file});
  REQUIRE(run.exit_code == 0);
  const Json got = parse_json(run.out, "the answer");
  CHECK(got["expect"]["capacity"] == Json::parse("[2]"));  // ceil(1.0 * 3 / 2)
  CHECK(got["expect"]["slots"] == Json::parse("[[[1, 0], []]]"));
  CHECK(got["expect"]["drops"] == Json::parse("[[2, 1, 0]]"));
  CHECK_FALSE(got["loss"].contains("combine"));  // no upstream
  CHECK(got["loss"].contains("lb_first"));
}

TEST_CASE("route draws who goes where, who was dropped, filled in and rectified", "[cli]") {
  const TempDir folder;
  const std::string file = write(folder, "worked.csv", std::string("e0,e1,e2,e3\n") + kWorked);
  const auto run = run_moe({"route", file, "--router", "top1+ir+fr", "--ep-ranks", "2"});
  REQUIRE(run.exit_code == 0);
  // The worked example under top1+ir+fr.
  CHECK(run.out ==
        R"(top1+ir+fr: 8 tokens, 4 experts on 2 ranks, slots an expert takes from each rank: 1 1

             |   rank 0          |   rank 1
token  rank  |     e0       e1   |     e2       e3
    0     0  |  0.731    0.269+  |      .        .
    1     0  |       x       .   |      .    1.000+
    2     0  |  1.000x*      .   |      .        .
    3     0  |      .        .   |  1.000        .
    4     1  |      .    0.622   |  0.378+       .
    5     1  |      .        .   |      .    1.000x*
    6     1  |      .        .   |      .    1.000
    7     1  |      .        .   |      .    1.000x*

slots of each expert, in order of acceptance (- is padding)
   e0  from rank 0: t0   from rank 1: -
   e1  from rank 0: t0+   from rank 1: t4
   e2  from rank 0: t3   from rank 1: t4+
   e3  from rank 0: t1+   from rank 1: t6

requests     8, 4 dropped (50.0 %); 3 of 8 fill-ins accepted (+); 3 tokens rectified at home (*)
slots        8, 7 used, 1 padding
experts      1.250 a token, 0 tokens without any; rows of each: 2 2 2 4 (max 1.60 x mean)
losses       load balance 1.4849 (unscaled)
)");
}

TEST_CASE("route reads lists, objects, columns and standard input alike", "[cli]") {
  const TempDir folder;
  const std::vector<std::string> router = {"--router", "top1", "--json"};
  const std::string list = write(folder, "list.json", "[[1, 0.5], [0, 2]]");
  const std::string object = write(
      folder, "object.json", R"({"logits": [[1, 0.5], [0, 2]], "home": [0, 1], "num_ranks": 2})");
  const std::string csv = write(folder, "blanks.csv", "# two tokens\n1 0.5\n\n0\t2\r\n");
  const auto of = [&](const std::string& file, const std::string& prefix = "") {
    const auto run = run_moe({"route", file, router[0], router[1], router[2]}, prefix);
    REQUIRE(run.exit_code == 0);
    return parse_json(run.out, file);
  };
  CHECK(of(list) == of(csv));
  CHECK(of(list)["input"]["logits"] == of(object)["input"]["logits"]);
  CHECK(of(object)["input"]["home"] == Json::parse("[0, 1]"));
  CHECK(of(list)["expect"]["slots"] == Json::parse("[[[0], [1]]]"));
  // What --json prints is a case again, with the same answer.
  const std::string again = write(folder, "again.json", of(list).dump());
  const auto answered = run_moe({"route", again});
  REQUIRE(answered.exit_code == 0);
  CHECK(parse_json(answered.out, "again")["expect"] == of(list)["expect"]);
}

TEST_CASE("route lists experts where columns would not fit, and draws so many tokens", "[cli]") {
  const TempDir folder;
  std::string text;
  for (int token = 0; token < 100; ++token) {
    for (int expert = 0; expert < 64; ++expert) {
      text += fmt::format("{}{}", expert == 0 ? "" : ",", (token * 7 + expert * 13) % 64);
    }
    text += "\n";
  }
  const auto run =
      run_moe({"route", write(folder, "wide.csv", text), "--router", "topp:0.4", "--tokens", "10"});
  REQUIRE(run.exit_code == 0);
  CHECK_THAT(run.out, moe::test::contains_text("    0     0  e59 0.6"));
  CHECK_THAT(run.out, moe::test::contains_text("and 90 more tokens"));
  CHECK_THAT(run.out, !moe::test::contains_text("\033["));  // no colours in a pipe
}

TEST_CASE("route refuses what it cannot route, in a sentence", "[cli]") {
  const TempDir folder;
  const auto file = [&](const std::string& text) { return write(folder, "in", text); };
  const auto plain = [&](const std::string& text) {
    return std::vector<std::string>{"route", file(text), "--router", "top1"};
  };
  check_refused({"route", file("1,2\n3,4\n")}, "plain logits need a router");
  check_refused(plain("1,2\n3\n"), "line 2: 1 numbers, the lines before have 2");
  check_refused(plain("1,2\n3,x\n"), "line 2: 'x' is no number");
  check_refused(plain("1,2\n3,nan\n"), "no finite 32-bit number");
  check_refused(plain(""), "holds no logits");
  check_refused(plain("[[1, 2], [3]]"), "row 1 of 'logits' does not have 2 numbers");
  check_refused(plain("[[1, 1e300]]"), "no finite 32-bit number");
  check_refused(plain("[]"), "'logits' is not a list of rows");
  check_refused(plain("{\"a\": 1}"), "neither 'kind' (a case) nor 'logits'");
  check_refused({"route", file("1,2,3\n"), "--router", "top4"}, "4");
  check_refused({"route", file("1,2,3\n"), "--router", "top1", "--ep-ranks", "2"},
                "2 ranks do not divide 3 experts");
  check_refused({"route", (folder / "absent").string(), "--router", "top1"},
                "absent: no such file");
  check_refused({"route", file(R"({"kind": "top", "input": {}})")}, "unknown kind 'top'");
  check_refused({"route", file(R"({"kind": "topk"})")}, "needs an object 'input'");
  check_refused({"route", file(R"({"kind": "topk", "input": {"k": 1}})")},
                "'capacity_factor' is missing");
  check_refused(
      {"route", file(R"({"kind": "relu", "input": {"k": 1, "logits": [[1]]}})"), "--cf", "1"},
      "a case says its own router");
  check_refused(
      {"route",
       file(
           R"({"kind": "relu", "input": {"k": 1, "logits": [[1]], "num_ranks": 1, "home": [3]}})")},
      "'home' names rank 3");
  check_refused({"route", file(R"({"kind": "lambda", "input": {}})")}, "'k' is missing");
  check_refused({"route", file(R"({"kind": "capacity", "input": {"rows": [[1, 2]]}})")},
                "row 1 is not [capacity factor");
  check_refused({"route", file(R"({"kind": "layer", "input": {"x": [[1]]}})")},
                "'router_weight' is not a list of rows");
}

}  // namespace moe::test
