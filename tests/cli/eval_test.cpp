// `moe eval` as a user meets it: good runs, and every user error by its message.
#include <sstream>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe {
namespace {

using test::run_moe;
using test::RunResult;
using test::TempDir;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

std::string stories() { return (test::shared_data() / "stories260K-hf").string(); }
std::string bench() { return (test::shared_data() / "bench").string(); }

// Exit code 2 and one line on standard error that holds `part`; nothing on standard output.
void check_refused(const std::vector<std::string>& arguments, const std::string& part) {
  const RunResult result = run_moe(arguments);
  CAPTURE(result.err, part);
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, part));
  CHECK(result.out.empty());
}

const std::string kQuiz =
    "{\"question\": \"Who is it?\", \"choices\": [\"Lily\", \"xq\", \"Tim\"], \"answer\": "
    "\"Lily\"}\n"
    "{\"context\": \"Once upon a\", \"choices\": [\"time\", \"qqqq\"], \"answer\": \"A\"}\n";

TEST_CASE("benchmarks and a quiz in one run: table, results.json, samples", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  test::write_file(folder / "mine.jsonl", kQuiz);
  const std::string out = (folder / "out").string();
  const RunResult result =
      run_moe({"eval", stories(), "--tasks", "arc_easy," + (folder / "mine.jsonl").string(),
               "--data", bench(), "--limit", "5", "--threads", "1", "-o", out});
  REQUIRE(result.exit_code == 0);
  CHECK(contains(result.out, "Task"));
  CHECK(contains(result.out, "arc_easy"));
  CHECK(contains(result.out, "mine"));
  const Json results = Json::parse(test::read_file(folder / "out/results.json"));
  CHECK(results["results"]["arc_easy"]["sample_len"] == 5);
  CHECK(results["n-samples"]["arc_easy"]["original"] == 2376);
  CHECK(results["results"]["mine"]["sample_len"] == 2);
  CHECK(results["versions"]["mine"].is_null());
  CHECK(json_lines(test::read_file(folder / "out/samples_arc_easy.jsonl")).size() == 5);
  const auto samples = json_lines(test::read_file(folder / "out/samples_mine.jsonl"));
  CHECK(samples.at(1)["acc"] == 1.0);  // "Once upon a time" is what this model knows best
  check_refused({"eval", stories(), "--tasks", "arc_easy", "--data", bench(), "-o", out},
                "results.json: is there already; give another -o, or --force to replace it");
  CHECK(run_moe({"eval", stories(), "--tasks", "arc_easy", "--data", bench(), "--limit", "1", "-o",
                 out, "--force"})
            .exit_code == 0);
}

TEST_CASE("--precision bf16 computes in it and says so", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  test::write_file(folder / "mine.jsonl", kQuiz);
  const auto run = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"eval",    stories(),
                                      "--tasks", (folder / "mine.jsonl").string(),
                                      "-o",      (folder / out).string()};
    words.insert(words.end(), more.begin(), more.end());
    const RunResult result = run_moe(words);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    return Json::parse(test::read_file(folder / out / "results.json"));
  };
  const auto logprob = [&](const std::string& out) {
    const Json sample = json_lines(test::read_file(folder / out / "samples_mine.jsonl")).at(1);
    CHECK(sample["acc"] == 1.0);
    return std::stod(sample["resps"].at(0).at(0).at(0).get<std::string>());
  };
  CHECK(run("f32", {})["config"]["model_dtype"] == "float32");
  CHECK(run("said", {"--precision", "fp32"})["config"]["model_dtype"] == "float32");
  CHECK(run("bf16", {"--precision", "bf16"})["config"]["model_dtype"] == "bfloat16");
  CHECK(logprob("f32") == logprob("said"));
  CHECK(logprob("f32") != logprob("bf16"));
  // Roundings of 2^-9, some 60 in five layers in a root of squares, of logits of order 5.
  CHECK(std::abs(logprob("f32") - logprob("bf16")) < 5 * 8 * 2.0 / 512);
  check_refused(
      {"eval", stories(), "--tasks", (folder / "mine.jsonl").string(), "--precision", "tf32"},
      "--precision tf32: CUDA GPUs alone multiply in TF32");
  check_refused(
      {"eval", stories(), "--tasks", (folder / "mine.jsonl").string(), "--precision", "fp16"},
      "--precision 'fp16' is unknown; known: fp32, tf32, bf16");
}

TEST_CASE("--list needs no model and names tasks, groups and files", "[cli]") {
  const RunResult result = run_moe({"eval", "--list"});
  REQUIRE(result.exit_code == 0);
  CHECK(contains(result.out, "\nlambada_openai  version 1.0  loglikelihood\n"));
  CHECK(contains(result.out, "superglue/BoolQ/val.jsonl, or boolq/validation.jsonl or .csv"));
  CHECK(contains(result.out, "\nbbh_zeroshot  27 tasks"));
}

TEST_CASE("a task of one's own, examples, and a second run beside the first", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  std::string lines;
  for (const char* name : {"Lily", "Tim", "Tom", "Sue", "Max"}) {
    lines +=
        OrderedJson({{"q", std::string("Who is ") + name}, {"a", name}, {"b", "xq"}, {"label", 0}})
            .dump() +
        "\n";
  }
  test::write_file(folder / "names.jsonl", lines);
  test::write_file(folder / "mine.toml",
                   "data = \"names.jsonl\"\nfewshot_data = \"names.jsonl\"\n"
                   "doc_to_text = \"Question: {{q}}?\\nAnswer:\"\n"
                   "doc_to_choice = [\"{{a}}\", \"{{b}}\"]\ndoc_to_target = \"{{label}}\"\n");
  const std::string task = (folder / "mine.toml").string();
  const std::string first = (folder / "first").string();
  REQUIRE(run_moe({"eval", stories(), "--tasks", task, "-o", first, "--quiet"}).exit_code == 0);
  const RunResult second = run_moe({"eval", stories(), "--tasks", task, "--num-fewshot", "2",
                                    "--against", first, "--items", "--quiet"});
  REQUIRE(second.exit_code == 0);
  CHECK(contains(second.out, "mine        -      2  5  acc"));
  CHECK(contains(second.out, "Task  Metric         n      this     other    change   stderr"));
  const auto samples = json_lines(test::read_file(folder / "first/samples_mine.jsonl"));
  CHECK(samples.size() == 5);
  CHECK(samples[0]["arguments"]["gen_args_0"]["arg_0"] == "Question: Who is Lily?\nAnswer:");
}

TEST_CASE("answers are written, filtered and compared", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const RunResult result =
      run_moe({"eval", stories(), "--tasks", "bbh_zeroshot_boolean_expressions", "--data", bench(),
               "--limit", "2", "-o", folder.path().string(), "--quiet"});
  REQUIRE(result.exit_code == 0);
  CHECK(contains(result.out, "exact_match,flexible-extract"));
  CHECK(json_lines(test::read_file(folder / "samples_bbh_zeroshot_boolean_expressions.jsonl"))
            .size() == 4);
}

TEST_CASE("--json prints what results.json holds, and --quiet nothing else", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const RunResult result = run_moe({"eval", stories(), "--tasks", "piqa", "--data", bench(),
                                    "--limit", "3", "--json", "--quiet", "--threads", "1"});
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(Json::parse(result.out)["results"]["piqa"]["sample_len"] == 3);
}

TEST_CASE("requests are answered in order, a line each", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  test::write_file(folder / "r.jsonl",
                   "{\"context\": \"Once upon a time, there was a little girl named\", "
                   "\"continuation\": \" Lily\"}\n"
                   "{\"context\": \"Once upon a time, there was a little girl named\", "
                   "\"continuation\": \" Zebra\"}\n"
                   "{\"context\": \"\", \"continuation\": \"Once\"}\r\n");
  const RunResult result = run_moe({"eval", stories(), "--requests", (folder / "r.jsonl").string(),
                                    "--bos", "on", "--quiet", "--threads", "1"});
  REQUIRE(result.exit_code == 0);
  const auto lines = json_lines(result.out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["is_greedy"] == true);
  CHECK(lines[0]["tokens"] == 1);
  CHECK(lines[1]["is_greedy"] == false);
  CHECK(lines[0]["logprob"].get<double>() > lines[1]["logprob"].get<double>());
  CHECK(lines[2]["logprob"].get<double>() < 0);
}

TEST_CASE("the real model's first story, through the tokenizer", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const Json reference =
      Json::parse(test::read_file(test::shared_data() / "stories260K-hf/reference.json"));
  // The greedy text from BOS: every token of it is the argmax.
  const OrderedJson request = {{"context", ""}, {"continuation", reference["greedy_256_text"]}};
  test::write_file(folder / "r.jsonl", request.dump() + "\n");
  const RunResult result = run_moe({"eval", stories(), "--requests", (folder / "r.jsonl").string(),
                                    "--quiet", "--threads", "1"});
  REQUIRE(result.exit_code == 0);
  const Json line = json_lines(result.out).at(0);
  CHECK(line["is_greedy"] == true);
  CHECK(line["tokens"] == 256);
}

TEST_CASE("a mixture reports its routing, and takes another router at test", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const std::string moe = (folder / "moe").string();
  REQUIRE(run_moe({"upcycle", stories(), "-o", moe, "--experts", "4", "--router", "top1:cf=1",
                   "--quiet"})
              .exit_code == 0);
  test::write_file(folder / "mine.jsonl", kQuiz);
  const std::vector<std::string> base = {
      "eval", moe, "--tasks", (folder / "mine.jsonl").string(), "--threads", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  const RunResult plain = run_moe(with({}));
  REQUIRE(plain.exit_code == 0);
  CHECK(contains(plain.out, "4 logical ranks, groups of up to 16384 tokens"));
  CHECK(contains(plain.out, "% of requests dropped"));
  const RunResult batch = run_moe(with({"--batch-tokens", "7", "--json", "--quiet"}));
  const RunResult other = run_moe(with({"--json", "--quiet"}));
  CHECK(Json::parse(batch.out)["results"] == Json::parse(other.out)["results"]);
  const RunResult dropless = run_moe(with({"--cf", "inf"}));
  REQUIRE(dropless.exit_code == 0);
  CHECK(contains(dropless.out, "no capacity, 0.00 % of requests dropped"));
  const RunResult written = run_moe({"eval", moe, "--tasks", "bbh_zeroshot_boolean_expressions",
                                     "--data", bench(), "--limit", "1"});
  REQUIRE(written.exit_code == 0);
  CHECK(contains(written.err, "note: answers are generated without a capacity and without +fr"));
  CHECK_FALSE(contains(written.out, "of requests dropped"));
  check_refused(with({"--ep-ranks", "3"}), "--ep-ranks 3 does not divide the 4 experts");
  check_refused(with({"--router", "relu:k=1"}), "ReLU and softmax logits mean different things");
  check_refused(with({"--router", "top1:gate=none"}), "add --force if that is meant");
}

TEST_CASE("--stats writes what --stats-by names, and the layers are told after the scores",
          "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const std::string moe = (folder / "moe").string();
  REQUIRE(run_moe({"upcycle", stories(), "-o", moe, "--experts", "4", "--router", "top1+ir+fr:cf=1",
                   "--quiet"})
              .exit_code == 0);
  test::write_file(folder / "mine.jsonl", kQuiz);
  test::write_file(folder / "text.txt", "Once upon a time there was a girl.\n");
  const std::string quiz = (folder / "mine.jsonl").string();
  const std::string file = (folder / "stats.json").string();
  const auto stats_by = [&](const std::string& words) {
    const RunResult result = run_moe({"eval", moe, "--tasks", quiz, "--stats", file, "--stats-by",
                                      words, "--threads", "1", "--force"});
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(contains(result.out, "layer  drop %  fill %    IR %  padding %  experts/token  load"));
    CHECK(contains(result.out, "\nall "));
    return Json::parse(test::read_file(file));
  };
  for (const std::string word : {"layer", "source", "task", "token"}) {
    const Json json = stats_by(word);
    CHECK(json["router"] == "top1+ir+fr");
    CHECK(json["layers"].size() == 3);  // every other of five
    CHECK(json["layers"][0]["load"].size() == 4);
    for (const std::string key : {"source", "task", "token"}) {
      CHECK(json.contains(key) == (key == word));
    }
  }
  const Json all = stats_by("layer,source,task,token");
  CHECK(all["task"][0]["task"] == "mine");
  CHECK(all["source"][0]["source"] == quiz);
  CHECK(all["token"][0]["piece"].is_string());
  const RunResult texts = run_moe({"eval", moe, "--stats-text", (folder / "text.txt").string(),
                                   "--json", "--quiet", "--threads", "1"});
  REQUIRE(texts.exit_code == 0);
  CHECK(Json::parse(texts.out)["total"]["tokens"] > 5);

  // A task whose answers are generated: each question with its right answer, as one text.
  const RunResult written = run_moe(
      {"eval", moe, "--tasks", "bbh_zeroshot_boolean_expressions," + quiz, "--data", bench(),
       "--limit", "2", "--stats", file, "--stats-by", "task,source", "--force", "--threads", "1"});
  INFO(written.err);
  REQUIRE(written.exit_code == 0);
  CHECK(contains(written.err, "--stats counts each question with its right answer as one text"));
  const Json tasks = Json::parse(test::read_file(file))["task"];
  REQUIRE(tasks.size() == 2);
  CHECK(tasks[0]["task"] == "bbh_zeroshot_boolean_expressions");
  CHECK(tasks[0]["total"]["tokens"] > 2);
  CHECK(tasks[0]["gold"]["total"]["tokens"] == tasks[0]["total"]["tokens"]);
  CHECK(tasks[0]["gold"]["total"]["experts_per_token"] > 0);
  CHECK(tasks[1]["gold"]["total"]["tokens"] < tasks[1]["total"]["tokens"]);

  check_refused({"eval", moe, "--tasks", quiz, "--stats", file},
                "stats.json: is there already; give another --stats, or --force to replace it");
  check_refused({"eval", moe, "--tasks", quiz, "--stats", file, "--stats-by", "layers,token"},
                "--stats-by 'layers' is unknown, did you mean 'layer'?; known: layer, source, "
                "task, token");
  check_refused({"eval", stories(), "--tasks", quiz, "--stats", (folder / "new").string()},
                "stories260K-hf: this model is dense, it routes nothing to count; leave out "
                "--stats");
  check_refused({"eval", stories(), "--stats-text", quiz}, "--stats-text needs a mixture");
}

TEST_CASE("what is missing is said in one sentence", "[cli]") {
  const TempDir folder;
  const std::string model = (folder / "model").string();
  test::write_tiny_checkpoint(model);
  test::write_file(folder / "mine.jsonl", kQuiz);
  const std::string quiz = (folder / "mine.jsonl").string();
  check_refused(
      {"eval", model},
      "nothing to evaluate: give --tasks NAME,.. with --data DIR, or --requests FILE.jsonl");
  check_refused({"eval", model, "--tasks", quiz, "--requests", quiz},
                "--tasks and --requests together");
  check_refused({"eval", model, "--requests", quiz, "-o", quiz}, "leave out -o");
  check_refused({"eval", model, "--stats-text", quiz, "-o", quiz},
                "--stats-text prints its results to standard output; leave out -o");
  check_refused({"eval", model, "--requests", quiz, "--stats-text", quiz},
                "--requests and --stats-text together");
  check_refused({"eval", model, "--tasks", quiz, "--stats-by", "token"},
                "--stats-by splits the counts of --stats; give --stats FILE too");
  check_refused({"eval", model, "--requests", quiz, "--stats", "s.json", "--stats-by", "task"},
                "--stats-by task needs --tasks");
  check_refused({"eval", model, "--tasks", "arc_eazy"},
                "unknown task 'arc_eazy', did you mean 'arc_easy'?");
  check_refused({"eval", model, "--tasks", "piqa"}, "task piqa needs --data DIR");
  check_refused({"eval", model, "--tasks", "piqa", "--data", folder.path().string()},
                "piqa/valid.jsonl is not there (expected under --data: piqa/valid.jsonl and "
                "piqa/valid-labels.lst, or piqa/validation.jsonl or .csv); it comes from");
  check_refused({"eval", "--tasks", quiz}, "MODEL is missing: moe eval MODEL --tasks ..");
  check_refused({"eval", model, "--tasks", quiz, "--compat", "0.3"},
                "--compat '0.3' is unknown; known: current, 0.4.1");
  check_refused({"eval", model, "--tasks", quiz, "--items"},
                "--items lists where two runs differ; give --against DIR too");
  check_refused({"eval", model, "--requests", quiz, "--against", "x"},
                "--requests has nothing to compare; --against needs --tasks");
  check_refused({"eval", model, "--tasks", quiz, "--against", folder.path().string()},
                "no sample log of");
  check_refused({"eval", model, "--tasks", quiz + "x.jsonl"}, "x.jsonl: no such file");
  check_refused({"eval", model, "--tasks", quiz}, "has neither tokenizer.model nor tokenizer.json");
  check_refused({"eval", (folder / "absent").string(), "--tasks", quiz}, "absent");
  check_refused({"eval", model, "--tasks", quiz, "--cf", "1"},
                "this model is dense, it has no router");
  check_refused({"eval", model, "--tasks", quiz, "--bos", "maybe"}, "--bos 'maybe' is unknown");
  check_refused({"eval", model, "--tasks", quiz, "--limit", "0"}, "--limit");
  check_refused({"eval", model, "--tasks", quiz, "--batch-tokens", "0"}, "--batch-tokens");
  check_refused({"eval", model, "--task", quiz}, "--tasks");
}

TEST_CASE("bad lines are named by file and number", "[cli]") {
  const TempDir folder;
  const std::string model = (folder / "model").string();
  test::write_tiny_checkpoint(model);
  const auto refuse = [&](const char* flag, const std::string& text, const std::string& part) {
    test::write_file(folder / "f.jsonl", text);
    check_refused({"eval", model, flag, (folder / "f.jsonl").string()}, part);
  };
  refuse("--requests", "{\"context\": \"a\", \"continuation\": \"b\"}\nnot json\n",
         "f.jsonl line 2");
  refuse("--requests", "{\"context\": \"a\"}\n", "continuation");
  refuse("--requests", "", "f.jsonl: the file is empty");
  refuse("--requests", "{\"context\": \"\xFF\"}\n", "f.jsonl line 1: not UTF-8");
  refuse("--tasks", "{\"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}\n",
         "f.jsonl line 1: one choice");
  refuse("--tasks", kQuiz + "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 7}\n",
         "f.jsonl line 3: answer 7");
  refuse("--tasks", kQuiz.substr(0, kQuiz.size() - 20), "f.jsonl line 2");
}

}  // namespace
}  // namespace moe
