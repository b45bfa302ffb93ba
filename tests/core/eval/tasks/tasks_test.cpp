// Known tasks, quizzes, groups and their files; the counts are those of the authors' files.

#include "core/eval/tasks/tasks.h"

#include <algorithm>
#include <set>

#include "tests/support/data.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;
using Strings = std::vector<std::string>;

LoadedTask load_one(const std::string& name, const std::filesystem::path& data) {
  return load_tasks({name}, data, std::nullopt).at(0);
}

const Task& task_named(const std::string& name, Compat compat = Compat::kCurrent) {
  const auto& tasks = known_tasks(compat);
  const auto found =
      std::find_if(tasks.begin(), tasks.end(), [&](const Task& task) { return task.name == name; });
  REQUIRE(found != tasks.end());
  return *found;
}

struct Case {
  std::string name, line;
  size_t choices;
  int64_t gold;
  std::string context, last_continuation;
};

std::string quiz(const std::string& choices, const std::string& answer) {
  return R"({"context": "C:", "choices": )" + choices + R"(, "answer": )" + answer + "}";
}

TEST_CASE("the forms of BIG-Bench-Hard have their own subtasks and choices", "[eval]") {
  CHECK(task_named("bbh_zeroshot_dyck_languages").output == OutputType::kGenerateUntil);
  const auto& chosen = find_group("leaderboard_bbh")->members;
  CHECK(std::find(chosen.begin(), chosen.end(), "leaderboard_bbh_dyck_languages") == chosen.end());
  CHECK(task_named("leaderboard_bbh_reasoning_about_colored_objects").choices({}).size() == 18);
  CHECK(task_named("leaderboard_bbh_hyperbaton").choices({}) == Strings{"(A)", "(B)"});
  CHECK(task_named("leaderboard_bbh_object_counting").choices({}).back() == "18");
  const Task& snarks = task_named("bbh_zeroshot_snarks");
  CHECK(snarks.description.ends_with("ambivalent or witty remarks.\n\n"));
  CHECK(snarks.harness_items == 178);
  CHECK(snarks.ignores_case_and_punctuation);
}

// prompts_test.cpp has texts of questions, of small files of the same formats.
TEST_CASE("all questions of the published files are read", "[eval]") {
  MOE_NEED_SHARED_DATA();
  struct Case {
    const char* task;
    size_t questions, fewest_choices, most_choices;
  };
  for (const auto& [task, questions, fewest, most] : {Case{"logiqa", 651, 4, 4},
                                                      {"arc_easy", 2376, 3, 5},
                                                      {"arc_challenge", 1172, 3, 5},
                                                      {"piqa", 1838, 2, 2},
                                                      {"hellaswag", 1000, 4, 4}}) {
    CAPTURE(task);
    const LoadedTask loaded = load_one(task, test::shared_data() / "bench");
    CHECK(loaded.questions.size() == questions);
    std::set<size_t> sizes;
    for (const auto& question : loaded.questions) {
      sizes.insert(question.choices.size());
    }
    CHECK((*sizes.begin() == fewest && *sizes.rbegin() == most));
  }
  for (const char* task : {"boolq", "cb", "sglue_rte", "wic", "wsc", "copa", "multirc",
                           "truthfulqa_mc1", "commonsense_qa", "openbookqa", "winogrande",
                           "lambada_openai", "bbh_zeroshot_boolean_expressions"}) {
    const LoadedTask loaded = load_one(task, test::shared_data() / "bench");
    CAPTURE(task);
    CHECK(std::ssize(loaded.questions) == loaded.task.harness_items);
  }
}

TEST_CASE("hellaswag preprocessing follows the harness's regular expressions", "[eval]") {
  CHECK(preprocess_hellaswag(" a [title] b ") == "a. b");
  CHECK(preprocess_hellaswag("a [title]b") == "a. b");
  CHECK(preprocess_hellaswag("a [x] b") == "a b");
  CHECK(preprocess_hellaswag("a [x][y] b [z") == "a b [z");
  CHECK(preprocess_hellaswag("[a[b]c]d") == "c]d");
  CHECK(preprocess_hellaswag("a [x\ny] b") == "a [x\ny] b");  // a dot does not match a line feed
  CHECK(preprocess_hellaswag("a     b") == "a   b");          // five spaces: two pairs and one
}

TEST_CASE("a quiz has questions or contexts, and answers as indices, texts or letters", "[eval]") {
  const TempDir folder;
  const auto file = folder / "my quiz.jsonl";
  write_file(file,
             "\xEF\xBB\xBF{\"question\": \"1+1?\", \"choices\": [\"2\", \"3\"], \"answer\": 1}\r\n"
             "\r\n"
             "{\"question\": \"1+1?\", \"choices\": [\"2\", \"3\"], \"answer\": \"3\"}\r\n"
             "{\"context\": \"Once \", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": \"C\"}\r\n"
             "{\"context\": \"x\", \"choices\": [\"B\", \"A\"], \"answer\": \"A\"}");
  const LoadedTask loaded = load_one(file.string(), "");
  CHECK(loaded.task.name == "my quiz");
  REQUIRE(loaded.questions.size() == 4);
  CHECK(loaded.questions[0].context == "Question: 1+1?\nAnswer:");
  CHECK(loaded.questions[0].gold == 1);
  CHECK(loaded.questions[1].gold == 1);  // the text of a choice
  CHECK(loaded.questions[2].context == "Once ");
  CHECK(loaded.questions[2].gold == 2);  // a letter
  CHECK(loaded.questions[3].gold == 1);  // both a text and a letter: the text has precedence
}

TEST_CASE("--limit parses no line after the last selected question", "[eval]") {
  const TempDir folder;
  const auto quiz = folder / "quiz.jsonl", table = folder / "own.csv", own = folder / "own.toml";
  const std::string line = "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  write_file(quiz, line + "\n" + line + "no JSON\n\n" + line);
  CHECK(load_tasks({quiz.string()}, "", 2).at(0).total_questions == 4);
  CHECK_THAT(user_error_of([&] { load_tasks({quiz.string()}, "", 3); }), contains_text("line 4"));
  write_file(own,
             "data = \"own.csv\"\ndoc_to_text = \"{{q}}\"\ndoc_to_choice = [\"a\", \"b\"]\n"
             "doc_to_target = \"0\"\n");
  write_file(table, "q,r\n\"x\ny\",1\nz,2\nonly one field\n");
  CHECK(load_tasks({own.string()}, "", 2).at(0).total_questions == 3);
  CHECK_THAT(user_error_of([&] { load_tasks({own.string()}, "", 3); }),
             contains_text("line 5: 1 fields"));
}

TEST_CASE("unknown tasks, missing folders and repeated tasks are refused by name", "[eval]") {
  CHECK_THAT(user_error_of([] { load_one("arc_eazy", "."); }),
             contains_text("'arc_eazy'") && contains_text("'arc_easy'") &&
                 contains_text("moe eval --list"));
  CHECK_THAT(user_error_of([] { load_one("piqa", ""); }),
             contains_text("--data DIR") && contains_text("piqa/valid.jsonl") &&
                 contains_text("piqa/validation.jsonl"));
  CHECK_THAT(user_error_of([] { load_one("piqa", "/no/such/folder"); }),
             contains_text("--data /no/such/folder: "));
  const TempDir folder;
  write_file(folder / "a.jsonl", R"({"question": "q", "choices": ["a", "b"], "answer": 0})");
  const std::string name = (folder / "a.jsonl").string();
  CHECK_THAT(user_error_of([&] {
               load_tasks({name, name}, "", std::nullopt);
             }),
             contains_text("'a' twice"));
}

TEST_CASE("the message of a missing benchmark file names all accepted paths", "[eval]") {
  const TempDir data;
  const auto error = [&](const char* task) {
    return user_error_of([&] { load_one(task, data.path()); });
  };
  CHECK_THAT(error("logiqa"), contains_text((data / "logiqa/Test.txt").string()) &&
                                  contains_text("logiqa/test.jsonl, .csv or .parquet") &&
                                  contains_text("EleutherAI/logiqa"));
  write_file(data / "piqa/valid.jsonl", "{}");
  CHECK_THAT(error("piqa"), contains_text((data / "piqa/valid-labels.lst").string()));
  CHECK_THAT(error("hellaswag"), contains_text("hellaswag_val*.jsonl not found"));
  write_file(data / "hellaswag/hellaswag_val_a.jsonl", "{}");
  write_file(data / "hellaswag/hellaswag_val_b.jsonl", "{}");
  CHECK_THAT(error("hellaswag"), contains_text("2 files match"));
  // The whole file is used instead of its parts.
  write_file(data / "hellaswag/hellaswag_val.jsonl", "\n");
  CHECK_THAT(error("hellaswag"), contains_text("hellaswag_val.jsonl: the file is empty"));
}

TEST_CASE("records exported from the Hub replace the authors' files", "[eval]") {
  const TempDir data;
  write_file(data / "piqa/validation.jsonl",
             "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}\n");
  const LoadedTask piqa = load_one("piqa", data.path());
  CHECK(piqa.questions.at(0).context == "Question: g\nAnswer:");
  CHECK(piqa.questions[0].gold == 1);
  // Examples: the authors' train.jsonl of PIQA has no labels, the one of the Hub has.
  write_file(data / "piqa/train.jsonl",
             "{\"goal\": \"h\", \"sol1\": \"c\", \"sol2\": \"d\", \"label\": 0}\n"
             "{\"goal\": \"h\", \"sol1\": \"c\", \"sol2\": \"d\", \"label\": 0}\n");
  CHECK(load_tasks({"piqa"}, data.path(), std::nullopt, {Compat::kCurrent, 1})
            .at(0)
            .questions.at(0)
            .context == "Question: h\nAnswer: c\n\nQuestion: g\nAnswer:");
  write_file(data / "mmlu_anatomy/test.csv",
             "question,subject,choices,answer\n why? ,anatomy,['p' 'q' 'r' 's'],C\n");
  const LoadedTask mmlu = load_one("mmlu_anatomy", data.path());
  CHECK(mmlu.questions.at(0).context ==
        "The following are multiple choice questions (with answers) about anatomy.\n\n"
        "why?\nA. p\nB. q\nC. r\nD. s\nAnswer:");
  CHECK(mmlu.questions[0].gold == 2);
  write_file(data / "arc_easy/test.jsonl",
             "{\"id\": \"1\", \"question\": \"q\", \"choices\": {\"text\": [\"x\", \"y\"], "
             "\"label\": [\"1\", \"2\"]}, \"answerKey\": \"3\"}\n");
  CHECK_THAT(user_error_of([&] { load_one("arc_easy", data.path()); }),
             contains_text((data / "arc_easy/test.jsonl").string() + " line 1: ") &&
                 contains_text("\"3\""));
}

TEST_CASE("Parquet and compressed files replace the plain ones", "[eval]") {
  const std::string rows = read_file(source_folder() / "tests/golden/boolq.parquet");
  for (const std::string name : {"super_glue/boolq/validation-00000-of-00001.parquet",
                                 "boolq/validation.parquet", "superglue/BoolQ/val.jsonl.gz"}) {
    const TempDir data;
    write_file(data / name, rows);
    write_file(data / "logiqa/Test.txt", rows);
    const std::string error = user_error_of([&] { load_one("logiqa", data.path()); });
    if (error.find("MOE_PARQUET") != std::string::npos) {
      MOE_SKIP("no pyarrow where this was built");
    }
    CHECK_THAT(error, contains_text("Test.txt: this is a Parquet file, but a text"));
    const LoadedTask boolq = load_one("boolq", data.path());
    REQUIRE(boolq.total_questions == 2);
    CHECK(boolq.questions[1].context == "Q.\nQuestion: why  \u00e9?\nAnswer:");
    CHECK(boolq.questions[0].gold == 1);
    CHECK_THAT(user_error_of([&] { load_one((data / name).string(), ""); }),
               contains_text(name + " row 1: "));  // no quiz
  }
}

TEST_CASE("a group loads its tasks, and a task of two groups is loaded once", "[eval]") {
  const TempDir data;
  for (const Task& task : known_tasks(Compat::kCurrent)) {
    if (task.name.starts_with("mmlu_")) {
      write_file(data / "mmlu/test" / (task.name.substr(5) + "_test.csv"), "q,a,b,c,d,A\n");
    }
  }
  const auto loaded = load_tasks({"mmlu_stem", "mmlu"}, data.path(), 1);
  CHECK(loaded.size() == 57);
  CHECK(loaded.front().task.name == "mmlu_abstract_algebra");
}

TEST_CASE("version 0.4.1 of the harness has other definitions", "[eval]") {
  CHECK(task_named("mmlu_anatomy").version == 1.0);
  CHECK(task_named("mmlu_anatomy", Compat::k041).version == 0.0);
  CHECK(task_named("truthfulqa_mc2").version == 3.0);
  CHECK(task_named("truthfulqa_mc2", Compat::k041).version == 2.0);
  const Task& navigate = task_named("bbh_zeroshot_navigate", Compat::k041);
  CHECK(navigate.metrics.size() == 1);
  CHECK(navigate.generation.until.back() == "\n\n");
  CHECK_FALSE(navigate.ignores_case_and_punctuation);
  CHECK(navigate.description == task_named("bbh_zeroshot_navigate").description);
  CHECK_FALSE(task_named("leaderboard_bbh_navigate").not_in_0_4_1.empty());
  CHECK(task_named("arc_easy").not_in_0_4_1.empty());
  const auto data = test::bench_folder();
  const auto old = [&](const std::string& name) {
    return load_tasks({name}, data, 1, {Compat::k041, {}}).at(0);
  };
  CHECK(old("record").questions[0].choices[0] == "Bergen");
  CHECK(load_tasks({"record"}, data, 1).at(0).questions[0].choices[0].starts_with("  - "));
  CHECK(old("truthfulqa_mc2").task.version == 2.0);
  CHECK(old("bbh_zeroshot_snarks").task.metrics.size() == 1);
  for (const char* task : {"commonsense_qa", "leaderboard_bbh_snarks"}) {
    CHECK_THAT(user_error_of([&] { old(task); }), contains_text("0.4.1"));
  }
}

TEST_CASE("the list names each task with its files and their origin", "[eval]") {
  const std::string list = task_list();
  CHECK(list.find(
            "boolq  version 2.0  multiple_choice\n"
            "    files under --data: superglue/BoolQ/val.jsonl, or boolq/validation.jsonl, "
            ".csv or .parquet, or super_glue/boolq/validation-00000-of-00001*.parquet\n"
            "    from super.gluebenchmark.com/tasks; or exported from aps/super_glue boolq\n") !=
        std::string::npos);
  CHECK(list.find("mmlu  57 tasks: the 57 subjects of MMLU\n") != std::string::npos);
}

// Unusual questions from file to request; expected values follow the harness, by hand.

TEST_CASE("awkward questions give the requests of the harness", "[eval]") {
  const std::string thirteen = R"(["0","1","2","3","4","5","6","7","8","9","10","11","12"])";
  const std::vector<Case> cases = {
      {"an empty choice", quiz(R"(["", "b"])", "1"), 2, 1, "C:", " b"},
      {"identical choices", quiz(R"(["a", "a", "b"])", "\"a\""), 3, 0, "C:", " b"},
      {"13 choices, the last right", quiz(thirteen, "12"), 13, 12, "C:", " 12"},
      {"a letter beyond the choices is one of their texts", quiz(R"(["Z", "Y"])", "\"Y\""), 2, 1,
       "C:", " Y"},
      // U+FB01 is one letter, two after NFKC: the text is not normalized.
      {"a ligature", quiz("[\"\xEF\xAC\x81\", \"x\"]", "0"), 2, 0, "C:", " x"},
      {"Windows newlines and a byte order mark",
       "\xEF\xBB\xBF" + quiz(R"(["a", "b"])", "0") + "\r\n\r\n", 2, 0, "C:", " b"},
      {"a line separator inside a text", quiz("[\"a\xE2\x80\xA8z\", \"b\"]", "0"), 2, 0,
       "C:", " b"},
      {"trailing white space of the context stays in the prompt",
       R"({"context": "C: \n", "choices": ["a", "b"], "answer": 0})", 2, 0, "C: \n", " b"},
  };
  for (const auto& item : cases) {
    CAPTURE(item.name);
    const TempDir folder;
    write_file(folder / "q.jsonl", item.line);
    const LoadedTask loaded = load_one((folder / "q.jsonl").string(), "");
    REQUIRE(loaded.questions.size() == 1);
    const Question& question = loaded.questions[0];
    CHECK(question.choices.size() == item.choices);
    CHECK(question.gold == item.gold);
    CHECK(question.context == item.context);
    CHECK(question.choice_continuation(item.choices - 1) == item.last_continuation);
  }
}

TEST_CASE("MMLU's quoted fields hold line feeds and a carriage return", "[eval]") {
  const TempDir data;
  write_file(data / "mmlu/test/anatomy_test.csv", "\"a \"\"b\"\",\r\nc\",\"x\ry\",2,3,4,D\r\n");
  const auto loaded = load_tasks({"mmlu_anatomy"}, data.path(), std::nullopt);
  CHECK(loaded.at(0).questions.at(0).context.ends_with(
      "a \"b\",\nc\nA. x\ry\nB. 2\nC. 3\nD. 4\nAnswer:"));
  CHECK(loaded[0].questions[0].gold == 3);
}

TEST_CASE("truncated records, missing fields and wrong labels are refused by line", "[eval]") {
  struct BadFile {
    const char *task, *file, *text, *complaint;
  };
  const BadFile files[] = {
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,A\nq,1,2", " line 2: 3 fields"},
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,E\n", " line 1: "},
      {"boolq", "superglue/BoolQ/val.jsonl", R"({"question": "q", "passage": "p"})",
       " line 1: 'label' is missing"},
      {"boolq", "superglue/BoolQ/val.jsonl", R"({"question": "q", "passa)", " line 1"},
      {"cb", "superglue/CB/val.jsonl",
       "\n{\"premise\": \"p\", \"hypothesis\": \"h\", \"label\": \"maybe\"}\n",
       " line 2: 'label' is \"maybe\""},
      {"copa", "superglue/COPA/val.jsonl",
       R"({"premise": "p.", "choice1": "a", "choice2": "b", "question": "why", "label": 0})",
       " line 1: '{{premise.strip()[:-1]}} {{ {'cause':"},
      {"copa", "copa/validation.csv",  // exported from the Hub
       "premise,choice1,choice2,question,idx,label\np.,a,b,cause,0,2", " line 2: 'label'"},
      {"sglue_rte", "superglue/RTE/val.jsonl", R"({"premise": "p", "label": 0})",
       " line 1: 'hypothesis'"},
      {"wic", "superglue/WiC/val.jsonl",
       R"({"word": "w", "sentence1": "s", "sentence2": "s", "start1": 0})", " line 1: 'start2'"},
      {"wsc", "superglue/WSC/val.jsonl", R"({"text": "t", "label": true})", " line 1: 'target'"},
      {"multirc", "superglue/MultiRC/val.jsonl",
       R"({"passage": {"text": "t", "questions": [{"question": "q", "answers": )"
       R"([{"text": "a", "label": 2}]}]}})",
       " line 1: 'label' is 2"},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 1, "end": 3}]}, "qas": []})",
       " line 1: an entity from 1 to 3"},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 0, "end": -1}]}, "qas": []})",
       " line 1: "},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 1, "end": 2}]}, )"
       R"("qas": [{"query": "q", "answers": []}]})",
       " line 1: a query with 1 entities and 0 answers"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json",
       R"([{"question": "q", "mc1_targets": {"a": 2}}])", " question 1: 'mc1_targets'"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", R"([{"question": "q", "mc1)", ""},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", R"([{"question": "q"}])",
       " question 1: 'mc1_targets' is missing"},
      {"commonsense_qa", "commonsenseqa/dev_rand_split.jsonl",
       R"({"id": "1", "answerKey": "F", "question": {"question_concept": "c", "stem": "s", )"
       R"("choices": [{"label": "A", "text": "t"}]}})",
       " line 1: answerKey 'F'"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\t(A) a (B) b\tq\tA\n",
       " line 2: no (C) in the choices"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\n", " line 2: 2 fields"},
      {"winogrande", "winogrande/dev.jsonl",
       R"({"sentence": "a _ b", "option1": "x", "option2": "y", "answer": ""})",
       " line 1: '{{ {'1': 0, '2': 1}[answer]"},
      {"winogrande", "winogrande/dev.jsonl",
       R"({"sentence": "a b", "option1": "x", "option2": "y", "answer": "1"})",
       " line 1: '{{sentence.split('_', 1)[1]"},
      {"lambada_openai", "lambada/lambada_openai.jsonl", R"({"context": "c"})",
       " line 1: 'continuation'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", R"({"examples": [{"input": "i"}]})",
       " example 1: 'target'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", R"({"canary": "c"})", ": 'examples'"},
  };
  for (const auto& [task, file, text, complaint] : files) {
    CAPTURE(task, text);
    const TempDir data;
    write_file(data / file, text);
    const std::string message =
        user_error_of([&, name = task] { load_tasks({name}, data.path(), std::nullopt); });
    CHECK(message.starts_with((data / file).string() + complaint));
  }
}

}  // namespace
}  // namespace moe::eval
