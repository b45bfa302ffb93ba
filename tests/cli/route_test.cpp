// moe route.

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe::test {
namespace {

std::string write(const TempDir& folder, const std::string& name, const std::string& text) {
  write_file(folder / name, text);
  return (folder / name).string();
}

// The worked example of core/route/README.md.
constexpr const char* kWorked =
    "2,1,0,-1\n1.5,0.5,-0.5,1\n1,0.25,0.75,0\n-1,0,2,1\n0,2,1.5,0.5\n-0.5,1,0.5,1.25\n"
    "0.25,0,0.5,2.5\n0.5,0.25,1,1.5\n";

}  // namespace

TEST_CASE("route prints a table with dropped, filled-in and rectified requests") {
  const TempDir folder;
  const std::string file = write(folder, "worked.csv", std::string("e0,e1,e2,e3\n") + kWorked);
  const auto run = succeed({"route", file, "--router", "top1+ir+fr", "--ep-ranks", "2"});
  CHECK(run.out ==
        R"(top1+ir+fr: 8 tokens, 4 experts on 2 ranks, slots per expert and rank: 1 1

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

requests     8, 4 dropped (50.0 %); 3 of 8 fill-ins accepted (+); 3 tokens rectified to their own rank (*)
slots        8, 7 used, 1 padding
experts      1.250 per token, 0 tokens without any; rows per expert: 2 2 2 4 (max 1.60 x mean)
losses       load balance 1.4849 (unscaled)
)");
}

TEST_CASE("route reads JSON lists, JSON objects and columns of text") {
  const TempDir folder;
  const std::string list = write(folder, "list.json", "[[1, 0.5], [0, 2]]");
  const std::string object = write(
      folder, "object.json", R"({"logits": [[1, 0.5], [0, 2]], "home": [0, 1], "num_ranks": 2})");
  const std::string csv = write(folder, "blanks.csv", "# two tokens\n1 0.5\n\n0\t2\r\n");
  const auto route = [&](const std::string& file) {
    return parse_json(succeed({"route", file, "--router", "top1", "--json"}).out, file);
  };
  const Json answer = route(list), ranks = route(object);
  CHECK(answer == route(csv));
  CHECK(answer["input"]["logits"] == ranks["input"]["logits"]);
  CHECK(ranks["input"]["home"] == Json::parse("[0, 1]"));
  CHECK(answer["expect"]["slots"] == Json::parse("[[[0], [1]]]"));
  CHECK(answer["loss"].contains("load_balance"));
  // The input that --json prints can be read again and gives the same answer.
  CHECK(route(write(folder, "again.json", answer["input"].dump())) == answer);
}

TEST_CASE("route lists the experts of each token if the columns do not fit, up to --tokens") {
  const TempDir folder;
  std::string text;
  for (int token = 0; token < 100; ++token) {
    for (int expert = 0; expert < 64; ++expert) {
      text += fmt::format("{}{}", expert == 0 ? "" : ",", (token * 7 + expert * 13) % 64);
    }
    text += "\n";
  }
  const auto run =
      succeed({"route", write(folder, "wide.csv", text), "--router", "topp:0.4", "--tokens", "10"});
  check_contains(run.out, {"    0     0  e59 0.6", "and 90 more tokens"});
  CHECK_THAT(run.out, !contains_text("\033["));  // no colours in a pipe
}

TEST_CASE("route refuses invalid input and names the line, row or key") {
  const TempDir folder;
  for (const auto& [text, fact] : std::vector<std::pair<std::string, std::string>>{
           {"1,2\n3\n", "line 2: 1 numbers, the lines before have 2"},
           {"1,2\n3,x\n", "line 2: 'x' is not a number"},
           {"1,2\n3,nan\n", "not a finite 32-bit number"},
           {"", "has no logits"},
           {"[[1, 2], [3]]", "row 1 of 'logits' does not have 2 numbers"},
           {"[[1, 1e300]]", "not a finite 32-bit number"},
           {"{\"a\": 1}", "has no 'logits'"},
           {R"({"logits": [[1]], "num_ranks": 1, "home": [3]})", "'home' names rank 3"}}) {
    check_refused({"route", write(folder, "in", text), "--router", "top1"}, fact);
  }
  const std::string file = write(folder, "in", "1,2,3\n");
  check_refused({"route", file}, "--router is required");
  check_refused({"route", file, "--router", "top1", "--ep-ranks", "2"},
                "2 ranks do not divide 3 experts");
  check_refused({"route", folder / "absent"}, "absent: no such file");
}

}  // namespace moe::test
