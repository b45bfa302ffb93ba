// moe eval: scores, requests, generated answers, routing statistics, resumed evaluations, sweeps,
// and invalid flags.

#include <csignal>
#include <filesystem>
#include <regex>

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/data.h"
#include "tests/support/process.h"

namespace moe {
namespace {

using namespace moe::test;

// Copies tiny("model") with a window of 512 tokens, for generated answers. Returns the path.
std::string tiny_with_window_512(const TempDir& dir) {
  fs::copy(tiny("model"), dir / "window512", fs::copy_options::recursive);
  OrderedJson config = OrderedJson::parse(read_file(dir / "window512/config.json"));
  config["max_position_embeddings"] = 512;
  write_file(dir / "window512/config.json", config.dump());
  return (dir / "window512").string();
}

const std::string kQuiz =
    "{\"question\": \"Who is it?\", \"choices\": [\"Lily\", \"xq\", \"Tim\"], \"answer\": "
    "\"Lily\"}\n"
    "{\"context\": \"The number before 31 is\", \"choices\": [\"30\", \"qqqq\"], \"answer\": "
    "\"A\"}\n";

void write_mixture(const fs::path& out, const std::string& router = "top1:cf=1") {
  succeed({"upcycle", tiny("model"), "-o", out.string(), "--experts", "4", "--router", router,
           "--quiet"});
}

// Returns an evaluation with small batches and groups, so that it can be stopped between many
// forward passes.
Args eval_args(const TempDir& folder, const std::string& out, const std::string& router) {
  return joined({"eval", folder / "moe", "--tasks", tiny("quiz.jsonl"), "--limit", "120",
                 "--batch-tokens", "16", "--group-tokens", "8", "--threads", "1"},
                {"-o", folder / out, "--router", router});
}

size_t lines_in(const fs::path& file) {
  const std::string text = fs::exists(file) ? read_file(file) : "";
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// Starts a command and sends `signal` once the cache has `lines` more lines. Returns the exit code.
int stop_after(const Args& args, const fs::path& cache, size_t lines, int signal) {
  const size_t end = lines_in(cache) + lines;
  Process process(args);
  REQUIRE(wait_until([&] { return lines_in(cache) >= end || process.has_ended(); }));
  REQUIRE_FALSE(process.has_ended());
  ::kill(process.pid(), signal);
  return process.exit_code();
}

// Returns results.json without the elapsed times.
std::string without_times(const std::string& results) {
  return std::regex_replace(
      results, std::regex(R"re(("total_evaluation_time_seconds"|"seconds"): [^,\n]*)re"), "$1");
}

TEST_CASE("benchmarks and a quiz in one run: table, results.json, samples") {
  const TempDir folder;
  write_file(folder / "mine.jsonl", kQuiz);
  const std::string out = folder / "out";
  const std::string tasks = "arc_easy," + (folder / "mine.jsonl").string();
  const Args args = {
      "eval",    tiny("model"), "--tasks", tasks, "--data",    bench_folder().string(),
      "--limit", "5",           "-o",      out,   "--threads", "1"};
  check_contains(succeed(args).out, {"Task", "arc_easy", "mine"});
  const Json results = Json::parse(read_file(folder / "out/results.json"));
  CHECK(results["results"]["arc_easy"]["sample_len"] == 5);
  CHECK(results["n-samples"]["arc_easy"]["original"] == 9);
  CHECK(results["results"]["mine"]["sample_len"] == 2);
  CHECK(results["versions"]["mine"].is_null());
  CHECK(json_lines(read_file(folder / "out/samples_arc_easy.jsonl")).size() == 5);
  const auto samples = json_lines(read_file(folder / "out/samples_mine.jsonl"));
  CHECK(samples.at(1)["acc"] == 1.0);  // the tiny model is trained on such sentences
  check_refused(args, "results.json: exists already");
  succeed(joined(args, {"--force", "--precision", "bf16"}));
  const Json again = Json::parse(read_file(folder / "out/results.json"));
  CHECK(results["config"]["model_dtype"] == "float32");
  CHECK(again["config"]["model_dtype"] == "bfloat16");
}

TEST_CASE("--list needs no model and names tasks, groups and files") {
  check_contains(succeed({"eval", "--list"}).out,
                 {"\nlambada_openai  version 1.0  loglikelihood\n",
                  "superglue/BoolQ/val.jsonl, or boolq/validation.jsonl, .csv or .parquet",
                  "\nbbh_zeroshot  27 tasks"});
}

TEST_CASE("a task file with few-shot examples is compared with an earlier run") {
  const TempDir folder;
  std::string lines;
  for (const char* name : {"Lily", "Tim", "Tom", "Sue", "Max"}) {
    lines +=
        OrderedJson({{"q", std::string("Who is ") + name}, {"a", name}, {"b", "xq"}, {"label", 0}})
            .dump() +
        "\n";
  }
  write_file(folder / "names.jsonl", lines);
  write_file(folder / "mine.toml",
             "data = \"names.jsonl\"\nfewshot_data = \"names.jsonl\"\n"
             "doc_to_text = \"Question: {{q}}?\\nAnswer:\"\n"
             "doc_to_choice = [\"{{a}}\", \"{{b}}\"]\ndoc_to_target = \"{{label}}\"\n");
  const std::string first = folder / "first";
  const Args args = {"eval", tiny("model"), "--tasks", folder / "mine.toml", "--quiet"};
  succeed(joined(args, {"-o", first}));
  check_contains(succeed(joined(args, {"--num-fewshot", "2", "--against", first, "--items"})).out,
                 {"mine        -      2  5  acc",
                  "Task  Metric         n      this     other    change   stderr"});
  const auto samples = json_lines(read_file(folder / "first/samples_mine.jsonl"));
  CHECK(samples.size() == 5);
  CHECK(samples[0]["arguments"]["gen_args_0"]["arg_0"] == "Question: Who is Lily?\nAnswer:");
}

TEST_CASE("a chat template renders prompts; one that refuses a system message gets none") {
  const TempDir folder;
  std::filesystem::copy(tiny("model"), folder / "model");
  const Args args =
      joined({"eval", folder / "model", "--tasks", tiny("quiz.jsonl"), "-o", folder / "out"},
             {"--apply-chat-template", "--system-instruction", "S"});
  check_refused(args, "has no chat template");
  write_file(folder / "model/chat_template.jinja",
             "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
             "{{ raise_exception('no') }}{% endif %}[{{ m.content }}]{% endfor %}");
  check_contains(succeed(args).err, {"refuses system messages"});
  const auto samples = json_lines(read_file(folder / "out/samples_quiz.jsonl"));
  CHECK(samples.at(0)["arguments"]["gen_args_0"]["arg_0"].get<std::string>().starts_with("<s>["));
  CHECK(read_json(folder / "out/results.json")["system_instruction"] == "S");
}

TEST_CASE("--requests prints one line per request, in order") {
  const TempDir folder;
  // Every token of a greedily generated text is the argmax.
  const Json greedy = Json::parse(succeed({"generate", tiny("model"), "--prompt", "", "--bos", "on",
                                           "--max-tokens", "20", "--json"})
                                      .out);
  const OrderedJson request = {{"context", ""}, {"continuation", greedy["text"]}};
  write_file(folder / "r.jsonl",
             "{\"context\": \"The number before 31 is\", \"continuation\": \" 30\"}\n"
             "{\"context\": \"The number before 31 is\", \"continuation\": \" 12\"}\n" +
                 request.dump() + "\r\n");
  const auto lines = json_lines(succeed({"eval", tiny("model"), "--requests", folder / "r.jsonl",
                                         "--bos", "on", "--quiet", "--threads", "1"})
                                    .out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["is_greedy"] == true);
  CHECK(lines[0]["tokens"] == 3);
  CHECK(lines[1]["is_greedy"] == false);
  CHECK(lines[0]["logprob"].get<double>() > lines[1]["logprob"].get<double>());
  CHECK(lines[2]["is_greedy"] == true);
  CHECK(lines[2]["tokens"] == 20);
}

TEST_CASE("moe eval prints the routing of a mixture, and --cf and --router override it") {
  const TempDir folder;
  const std::string moe = folder / "moe";
  write_mixture(moe);
  const Args base = {"eval", moe, "--tasks", tiny("quiz.jsonl"), "--limit", "4", "--threads", "1"};
  check_contains(succeed(base).out,
                 {"4 logical ranks, groups of up to 16384 tokens", "% of requests dropped"});
  CHECK_THAT(succeed(joined(base, {"--cf", "inf"})).out,
             contains_text("no capacity, 0.00 % of requests dropped"));
  const RunResult json = succeed(joined(base, {"--json", "--quiet"}));
  CHECK(json.err.empty());
  CHECK(Json::parse(json.out)["results"]["quiz"]["sample_len"] == 4);
  check_refused(joined(base, {"--ep-ranks", "3"}), "--ep-ranks 3 does not divide the 4 experts");
  check_refused(joined(base, {"--router", "relu:k=1"}),
                "ReLU and softmax logits mean different things");
  check_refused(joined(base, {"--router", "top1:gate=none"}), "use --force to change it anyway");
}

TEST_CASE("--stats writes the groups of --stats-by, and a table of layers is printed") {
  const TempDir folder;
  const std::string moe = folder / "moe", file = folder / "stats.json", quiz = tiny("quiz.jsonl");
  write_mixture(moe, "top1+ir+fr:cf=1");
  const Args args = {"eval",    moe,  "--tasks",   quiz, "--limit",   "4",
                     "--stats", file, "--threads", "1",  "--stats-by"};
  check_contains(succeed(joined(args, {"layer,source,task,token"})).out,
                 {"layer  drop %  fill %    IR %  padding %  experts/token  load", "\nall "});
  const Json all = Json::parse(read_file(file));
  CHECK(all["router"] == "top1+ir+fr");
  CHECK(all["layers"].size() == 2);  // every second of four layers
  CHECK(all["layers"][0]["load"].size() == 4);
  CHECK(all["task"][0]["task"] == "quiz");
  CHECK(all["source"][0]["source"] == quiz);
  CHECK(all["token"][0]["piece"].is_string());
  succeed(joined(args, {"layer", "--force"}));
  const Json by_layer = Json::parse(read_file(file));
  for (const std::string key : {"source", "task", "token"}) {
    CHECK_FALSE(by_layer.contains(key));
  }
  write_file(folder / "text.txt", "One two three four.\n");
  const RunResult texts = succeed(
      {"eval", moe, "--stats-text", folder / "text.txt", "--json", "--quiet", "--threads", "1"});
  CHECK(Json::parse(texts.out)["total"]["tokens"] > 4);

  check_refused(joined(args, {"layer"}), "stats.json: exists already");
  check_refused({"eval", tiny("model"), "--tasks", quiz, "--stats", folder / "new"},
                "this model is dense and has no routing statistics");
  check_refused({"eval", tiny("model"), "--stats-text", quiz}, "--stats-text needs a mixture");
}

TEST_CASE("--stats does not replace a file that the evaluation reads") {
  const TempDir folder;
  const std::string quiz = folder / "quiz.jsonl", task = folder / "mine.toml";
  succeed({"upcycle", tiny("model"), "-o", folder / "moe", "--experts", "4", "--quiet"});
  write_file(quiz,
             "{\"text\": \"a\", \"context\": \"a\", \"continuation\": \" b\", \"label\": \"b\"}\n");
  write_file(task,
             "data = \"quiz.jsonl\"\noutput_type = \"loglikelihood\"\n"
             "doc_to_text = \"{{context}}\"\ndoc_to_target = \"{{continuation}}\"\n");
  const std::string before = read_file(quiz);
  for (const Args& read : {Args{"--stats-text", quiz}, {"--requests", quiz}, {"--tasks", task}}) {
    check_refused(joined({"eval", folder / "moe", "--stats", quiz, "--force"}, read),
                  quiz + ": is read by this command and would be replaced");
    CHECK(read_file(quiz) == before);
  }
}

TEST_CASE("answers are generated without a capacity, and --stats counts the right answers") {
  const TempDir folder;
  const std::string moe = folder / "moe", name = "bbh_zeroshot_boolean_expressions";
  succeed({"upcycle", tiny_with_window_512(folder), "-o", moe, "--experts", "4", "--router",
           "top1+ir+fr:cf=1", "--quiet"});
  const RunResult run =
      succeed({"eval", moe, "--tasks", name, "--data", bench_folder().string(), "--limit", "2",
               "-o", folder / "out", "--stats", folder / "stats.json", "--stats-by", "task,source",
               "--threads", "1"});
  check_contains(run.err, {"note: answers are generated without a capacity and without +fr",
                           "--stats counts a separate forward pass"});
  CHECK_THAT(run.out,
             contains_text("exact_match,flexible-extract") && !contains_text("requests dropped"));
  CHECK(json_lines(read_file(folder / "out" / ("samples_" + name + ".jsonl"))).size() == 4);
  const Json task = Json::parse(read_file(folder / "stats.json"))["task"].at(0);
  CHECK(task["task"] == name);
  CHECK(task["total"]["tokens"] > 2);
  CHECK(task["gold"]["total"]["tokens"] == task["total"]["tokens"]);
  CHECK(task["gold"]["total"]["experts_per_token"] > 0);
}

TEST_CASE("moe eval refuses incompatible flags and names invalid lines") {
  const TempDir folder;
  const std::string model = folder / "model", quiz = folder / "mine.jsonl",
                    requests = folder / "r.jsonl";
  write_tiny_checkpoint(model);
  write_file(quiz, kQuiz);
  write_file(requests, "{\"context\": \"a\", \"continuation\": \"b\"}\nnot json\n");
  check_refused_each(
      {"eval"},
      {{{model}, "nothing to evaluate"},
       {{"--tasks", quiz}, "MODEL is missing"},
       {{model, "--requests", "-", "--ranks", "2"}, "--requests - cannot be used with 2 ranks"},
       {{model, "--tasks", quiz, "--requests", quiz}, "--tasks and --requests cannot be combined"},
       {{model, "--requests", quiz, "--stats-text", quiz},
        "--requests and --stats-text cannot be combined"},
       {{model, "--requests", quiz, "-o", quiz}, "remove -o"},
       {{model, "--requests", quiz, "--against", "x"}, "--against needs --tasks"},
       {{model, "--requests", requests}, "r.jsonl line 2"},
       {{model, "--tasks", quiz, "--stats-by", "token"}, "--stats-by needs --stats FILE"},
       {{model, "--tasks", "piqa"}, "task piqa needs --data DIR"},
       {{model, "--tasks", quiz, "--items"}, "--items needs --against DIR"},
       {{model, "--tasks", quiz}, "has neither tokenizer.model nor tokenizer.json"},
       {{model, "--tasks", quiz, "--cf", "1"}, "this model is dense and has no router"}});
}

TEST_CASE("several ranks write the results of a single process") {
  const TempDir dir;
  write_mixture(dir / "moe", "top1+ir:cf=1");
  const auto eval = [&](const std::string& out, const Args& more) {
    return succeed(joined({"eval", dir / "moe", "--tasks", tiny("quiz.jsonl"), "--limit", "60",
                           "--group-tokens", "100", "--threads", "1", "--stats",
                           (dir / (out + "-stats.json")).string(), "-o", dir / out, "--quiet"},
                          more));
  };
  CHECK(eval("one", {}).out == eval("two", {"--ranks", "2"}).out);
  CHECK(read_file(dir / "two-stats.json") == read_file(dir / "one-stats.json"));
  for (const auto& entry : fs::directory_iterator(dir / "one")) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    REQUIRE(fs::exists(dir / "two" / name));
    if (name != "results.json") {  // results.json has elapsed times
      CHECK(read_file(dir / "two" / name) == read_file(entry.path()));
    }
  }
}

// Checks that two processes generate the same answers to `count` questions as one process.
void check_answers(int count) {
  const TempDir dir;
  std::string lines;
  for (int i = 1; i <= count; ++i) {
    lines += fmt::format("{{\"n\": {}, \"before\": \"{}\"}}\n", i, i - 1);
  }
  write_file(dir / "numbers.jsonl", lines);
  write_file(dir / "numbers.toml",
             "data = \"numbers.jsonl\"\noutput_type = \"generate_until\"\n"
             "doc_to_text = \"The number before {{n}} is\"\ndoc_to_target = \"{{before}}\"\n"
             "until = [\".\"]\nmax_gen_toks = 16\n");
  const auto answers = [&](const std::string& out, const Args& more) {
    succeed(joined({"eval", tiny("model"), "--tasks", dir / "numbers.toml", "--threads", "1", "-o",
                    dir / out, "--quiet"},
                   more));
    return read_file(dir / out / "samples_numbers.jsonl");
  };
  CHECK(answers("one", {}) == answers("two", {"--ranks", "2"}));
}

TEST_CASE("several ranks write the generated answers of a single process") { check_answers(9); }

TEST_CASE("several ranks generate answers in several rounds", "[.][slow]") { check_answers(131); }

// Interrupted evaluations that are resumed by the same command, and sweeps.

TEST_CASE("a killed and resumed evaluation writes the same bytes as an uninterrupted one") {
  const TempDir folder;
  write_mixture(folder / "moe");
  for (const std::string router : {"top1:cf=1", "top1:cf=inf"}) {
    CAPTURE(router);
    const std::string name = router.substr(5);
    succeed(eval_args(folder, "whole" + name, router));
    const Args args = eval_args(folder, "again" + name, router);
    const auto cache = folder / ("again" + name) / "responses.cache";
    CHECK(stop_after(args, cache, 3, SIGKILL) == 128 + SIGKILL);
    REQUIRE(lines_in(cache) >= 3);
    CHECK(stop_after(args, cache, 3, SIGINT) == 130);
    succeed(args);
    CHECK_FALSE(fs::exists(cache));
    const auto file = [&](const std::string& run, const std::string& leaf) {
      return read_file(folder / (run + name) / leaf);
    };
    CHECK(file("whole", "samples_quiz.jsonl") == file("again", "samples_quiz.jsonl"));
    CHECK(without_times(file("whole", "results.json")) ==
          without_times(file("again", "results.json")));
  }
}

TEST_CASE("--cache-responses is shared by later and concurrent runs, and damage is reported") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const auto cache = folder / "kept/responses.cache";
  fs::create_directories(folder / "kept");
  const auto args = [&](const std::string& out, const std::string& cache_responses) {
    return joined(eval_args(folder, out, "top1:cf=1"), {"--cache-responses", cache_responses});
  };
  Process first(args("a", (folder / "kept").string())), second(args("b", cache.string()));
  CHECK(first.exit_code() == 0);
  CHECK(second.exit_code() == 0);
  const size_t lines = lines_in(cache);
  REQUIRE(lines > 5);
  CHECK_THAT(succeed(args("c", cache.string())).err,
             contains_text("cached responses; those with this model and these settings are "));
  CHECK(lines_in(cache) == lines);
  std::string damaged = read_file(cache);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  write_file(cache, damaged);
  CHECK_THAT(succeed(args("d", cache.string())).err,
             contains_text("responses.cache: ignored 1 damaged line"));
  for (const std::string run : {"b", "c", "d"}) {
    CHECK(read_file(folder / "a/samples_quiz.jsonl") ==
          read_file(folder / run / "samples_quiz.jsonl"));
  }
  CHECK_THAT(succeed(args("e", "off")).err, !contains_text("cached responses"));
  write_file(folder / "notes", "mine\n");
  const RunResult refused = run_moe(args("f", (folder / "notes").string()));
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, contains_text("notes: does not begin with 'moe responses 1'"));
  CHECK(read_file(folder / "notes") == "mine\n");
}

TEST_CASE("a sweep writes a page and a folder for each value, and prints a table") {
  const TempDir folder;
  write_mixture(folder / "moe");
  const Args base = {"eval", folder / "moe", "--tasks", tiny("quiz.jsonl"), "--limit",
                     "10",   "--threads",    "1",       "--quiet",          "--sweep"};
  const std::string out = folder / "out";
  const RunResult result = succeed(joined(base, {"cf=0.25,0.5,inf", "-o", out}));
  CAPTURE(result.out);
  CHECK(result.out.starts_with("value      quiz  drop %  rows/token   n\ncf=0.25  "));
  CHECK(result.out.ends_with("plot: " + out + "/sweep.html\n"));
  CHECK(read_file(folder / "out/sweep.html").starts_with("<!doctype html>"));
  CHECK(Json::parse(read_file(folder / "out/cf=0.5/results.json"))["moe"]["router"] ==
        "top1:cf=0.5");
  CHECK(Json::parse(succeed(joined(base, {"cf=inf", "--json"})).out)["values"][0]["drop_rate"] ==
        0.0);
  check_refused(joined(base, {"cf=0.25,-1"}), "moe: --sweep cf=-1: --cf '-1'");
  check_refused(joined(base, {"cf=1", "--stats", "x"}), "--sweep and --stats cannot be combined");
}

}  // namespace
}  // namespace moe
