// Prompts as exact text, written by hand from the harness's task files; the counts are those of the
// authors' files.
#include "core/eval/tasks/tasks.h"

#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using Strings = std::vector<std::string>;
using test::TempDir;
using test::user_error_of;
using test::write_file;

LoadedTask load_one(const std::string& name, const std::filesystem::path& data) {
  return load_tasks({name}, data, std::nullopt).at(0);
}

TEST_CASE("LogiQA: 651 questions, the loader's spaces after full stops, options as text",
          "[eval]") {
  MOE_NEED_SHARED_DATA();
  const LoadedTask loaded = load_one("logiqa", test::shared_data() / "bench");
  REQUIRE(loaded.questions.size() == 651);
  const Question& first = loaded.questions.front();
  CHECK(
      first.context ==
      "Passage: In the planning of a new district in a township, it was decided to build a special "
      "community in the "
      "southeast, northwest, centered on the citizen park. These four communities are designated "
      "as cultural area, "
      "leisure area, commercial area and administrative service area. It is known that the "
      "administrative service area "
      "is southwest of the cultural area, and the cultural area is southeast of the leisure area.\n"
      "Question: Based on the above statement, which of the following can be derived?\n"
      "Choices:\n"
      "A. Civic Park is north of the administrative service area\n"
      "B. The leisure area is southwest of the cultural area\n"
      "C. The cultural district is in the northeast of the business district\n"
      "D. The business district is southeast of the leisure area\n"
      "Answer:");
  CHECK(first.choices ==
        Strings{"Civic Park is north of the administrative service area",
                "The leisure area is southwest of the cultural area",
                "The cultural district is in the northeast of the business district",
                "The business district is southeast of the leisure area"});
  CHECK(first.gold == 0);
  CHECK(loaded.questions.back().choices.back() ==
        "Z was a member of the committee the following year.");
}

TEST_CASE("ARC-Easy: 2376 questions of 3 to 5 choices", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const LoadedTask loaded = load_one("arc_easy", test::shared_data() / "bench");
  REQUIRE(loaded.questions.size() == 2376);
  const Question& first = loaded.questions.front();
  CHECK(first.context ==
        "Question: Which statement best explains why photosynthesis is the foundation of most food "
        "webs?\nAnswer:");
  CHECK(first.choices == Strings{"Sunlight is the source of energy for nearly all ecosystems.",
                                 "Most ecosystems are found on land instead of in water.",
                                 "Carbon dioxide is more available than other gases.",
                                 "The producers in all ecosystems are plants."});
  CHECK(first.gold == 0);
  std::map<size_t, int> sizes;
  for (const auto& question : loaded.questions) {
    ++sizes[question.choices.size()];
  }
  CHECK(sizes.size() == 3);
  CHECK(sizes.begin()->first == 3);
  CHECK(sizes.rbegin()->first == 5);
}

TEST_CASE("ARC-Challenge: 1172 questions", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const LoadedTask loaded = load_one("arc_challenge", test::shared_data() / "bench");
  REQUIRE(loaded.questions.size() == 1172);
  const Question& first = loaded.questions.front();
  CHECK(first.context ==
        "Question: An astronomer observes that a planet rotates faster after a meteorite impact. "
        "Which is the most "
        "likely effect of this increase in rotation?\nAnswer:");
  CHECK(first.choices ==
        Strings{"Planetary density will decrease.", "Planetary years will become longer.",
                "Planetary days will become shorter.", "Planetary gravity will become stronger."});
  CHECK(first.gold == 2);
}

TEST_CASE("PIQA: 1838 goals with two solutions", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const LoadedTask loaded = load_one("piqa", test::shared_data() / "bench");
  REQUIRE(loaded.questions.size() == 1838);
  const Question& first = loaded.questions.front();
  CHECK(first.context ==
        "Question: How do I ready a guinea pig cage for it's new occupants?\nAnswer:");
  CHECK(first.choices ==
        Strings{"Provide the guinea pig with a cage full of a few inches of bedding made of ripped "
                "paper strips, you will "
                "also need to supply it with a water bottle and a food dish.",
                "Provide the guinea pig with a cage full of a few inches of bedding made of ripped "
                "jeans material, you "
                "will also need to supply it with a water bottle and a food dish."});
  CHECK(first.gold == 0);
  CHECK(loaded.questions[1].choices[1] == "finish, woodgrain with  bobby pin ");  // spaces are kept
  CHECK(loaded.questions[1].gold == 1);
}

TEST_CASE("HellaSwag: 1000 scenes, ctx_b capitalised, WikiHow's marks cleaned", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const LoadedTask loaded = load_one("hellaswag", test::shared_data() / "bench");
  REQUIRE(loaded.questions.size() == 1000);
  const Question& first = loaded.questions.front();
  CHECK(first.context ==
        "Pole vault: Pole vault is a sport where you run with a pole and stop and swing your body. "
        "A few women");
  CHECK(first.choices ==
        Strings{"go down a rock and stop.", "watch from around a pole vault.",
                "are in the wading pool.",
                "are in the gym practicing to do this pole vault, trying to do their best."});
  CHECK(first.gold == 3);
  const Question& wikihow = loaded.questions[3];
  CHECK(wikihow.context ==
        "Sports and Fitness: How to bowl the leg spinner's variations. To bowl a googly, you grip "
        "the ball the same as you "
        "would for a leg break but hold it so your palm faces away from you. As you bowl, you "
        "bring your elbow close to "
        "your head and cock your wrist so that back of your hand faces the batsman. You spin the "
        "ball by rotating the "
        "fingers.");
  // A mark at the start has no space before it: it is removed and its own space stays.
  CHECK(wikihow.choices[0] ==
        " If you're outside, the batsman only looks at the batsman as they dribble.. If you're "
        "inside, the batsman lets "
        "you line up the batsman with you.");
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

TEST_CASE("a quiz takes a question or a whole context, and an answer of any kind", "[eval]") {
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
  CHECK(loaded.questions[3].gold == 1);  // both a text and a letter: the text wins
}

TEST_CASE("--limit keeps the first questions and remembers how many there were", "[eval]") {
  const TempDir folder;
  const auto file = folder / "quiz.jsonl";
  const std::string line = "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  write_file(file, line + line + line);
  const auto loaded = load_tasks({file.string()}, "", 2);
  CHECK(loaded.at(0).questions.size() == 2);
  CHECK(loaded.at(0).total_questions == 3);
  CHECK(load_tasks({file.string()}, "", 9).at(0).questions.size() == 3);
}

TEST_CASE("--limit parses no line behind the last question that it keeps", "[eval]") {
  const TempDir folder;
  const auto quiz = folder / "quiz.jsonl", table = folder / "own.csv", own = folder / "own.toml";
  const std::string line = "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  write_file(quiz, line + "\n" + line + "no JSON\n\n" + line);
  CHECK(load_tasks({quiz.string()}, "", 2).at(0).total_questions == 4);
  CHECK(user_error_of([&] { load_tasks({quiz.string()}, "", 3); }).find("line 4") !=
        std::string::npos);
  write_file(own,
             "data = \"own.csv\"\ndoc_to_text = \"{{q}}\"\ndoc_to_choice = [\"a\", \"b\"]\n"
             "doc_to_target = \"0\"\n");
  write_file(table, "q,r\n\"x\ny\",1\nz,2\nonly one field\n");
  CHECK(load_tasks({own.string()}, "", 2).at(0).total_questions == 3);
  CHECK(user_error_of([&] { load_tasks({own.string()}, "", 3); }).find("line 5: 1 fields") !=
        std::string::npos);
}

TEST_CASE("unknown tasks name the nearest one and where all are shown", "[eval]") {
  CHECK(user_error_of([] { load_one("arc_eazy", "."); }) ==
        "unknown task 'arc_eazy', did you mean 'arc_easy'?; moe eval --list shows all; or a file "
        "of your own: TASK.json, TASK.toml or QUIZ.jsonl");
  CHECK(user_error_of([] { load_one("piqa", ""); }) ==
        "task piqa needs --data DIR, the folder that holds piqa/valid.jsonl and "
        "piqa/valid-labels.lst, or piqa/validation.jsonl or .csv");
  CHECK(user_error_of([] { load_one("piqa", "/no/such/folder"); }) ==
        "--data /no/such/folder: not a folder");
}

TEST_CASE("a missing benchmark file is named with all places where it may lie", "[eval]") {
  const TempDir data;
  CHECK(user_error_of([&] { load_one("logiqa", data.path()); }) ==
        fmt::format("task logiqa: {}/logiqa/Test.txt is not there (expected under --data: "
                    "logiqa/Test.txt, or logiqa/test.jsonl or .csv); it comes from "
                    "github.com/lgw863/LogiQA-dataset, or exported from the Hub's "
                    "EleutherAI/logiqa; put it there or change --data",
                    data.path().string()));
  write_file(data / "piqa/valid.jsonl", "{}");
  CHECK(user_error_of([&] { load_one("piqa", data.path()); }) ==
        fmt::format("task piqa: {0}/piqa/valid-labels.lst is not there, beside "
                    "{0}/piqa/valid.jsonl; put it there or change --data",
                    data.path().string()));
  CHECK(user_error_of([&] {
          load_one("hellaswag", data.path());
        }).find("hellaswag_val*.jsonl is not there") != std::string::npos);
  write_file(data / "hellaswag/hellaswag_val_a.jsonl", "{}");
  write_file(data / "hellaswag/hellaswag_val_b.jsonl", "{}");
  CHECK(user_error_of([&] { load_one("hellaswag", data.path()); }).find("2 files match") !=
        std::string::npos);
  // The whole file, by its own name, wins over parts of it: its (empty) content is what is
  // complained about.
  write_file(data / "hellaswag/hellaswag_val.jsonl", "\n");
  CHECK(user_error_of([&] {
          load_one("hellaswag", data.path());
        }).find("hellaswag_val.jsonl: the file is empty") != std::string::npos);
}

TEST_CASE("records exported from the Hub stand in for the authors' files", "[eval]") {
  const TempDir data;
  write_file(data / "piqa/validation.jsonl",
             "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}\n");
  const LoadedTask piqa = load_one("piqa", data.path());
  CHECK(piqa.questions.at(0).context == "Question: g\nAnswer:");
  CHECK(piqa.questions[0].gold == 1);
  // Examples: PIQA's authors have a train.jsonl too, whose labels stand in another file.
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
  CHECK(user_error_of([&] { load_one("arc_easy", data.path()); }) ==
        (data / "arc_easy/test.jsonl").string() +
            " line 1: {{choices.label.index(answerKey)}}: \"3\" is not in [\"1\",\"2\"]");
}

TEST_CASE("a group stands for its tasks, and tasks of two groups come once", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto data = test::shared_data() / "bench";
  const auto loaded = load_tasks({"mmlu_stem", "mmlu"}, data, 1);
  CHECK(loaded.size() == 57);
  CHECK(loaded.front().task.name == "mmlu_abstract_algebra");
  CHECK(loaded.front().total_questions == 100);
  CHECK(user_error_of([&] {
          load_tasks({"piqa", "piqa"}, data, 1);
        }) == "--tasks names 'piqa' twice; name it once");
}

TEST_CASE("0.4.1 had other definitions", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto data = test::shared_data() / "bench";
  const auto old = [&](const std::string& name) {
    return load_tasks({name}, data, 1, {Compat::k041, {}}).at(0);
  };
  CHECK(old("record").questions[0].choices[0] == "Blues");
  CHECK(load_tasks({"record"}, data, 1).at(0).questions[0].choices[0].starts_with("  - "));
  CHECK(old("truthfulqa_mc2").task.version == 2.0);
  CHECK(old("bbh_zeroshot_snarks").task.metrics.size() == 1);
  CHECK(user_error_of([&] { old("commonsense_qa"); }).find("0.4.1 had no such task") !=
        std::string::npos);
  CHECK(user_error_of([&] { old("leaderboard_bbh_snarks"); }).find("0.4.1") != std::string::npos);
}

TEST_CASE("the list names each task with its files and where they come from", "[eval]") {
  const std::string list = task_list();
  CHECK(list.find(
            "boolq  version 2.0  multiple_choice\n"
            "    files under --data: superglue/BoolQ/val.jsonl, or boolq/validation.jsonl or "
            ".csv\n"
            "    from super.gluebenchmark.com/tasks; or exported from aps/super_glue boolq\n") !=
        std::string::npos);
  CHECK(list.find("mmlu  57 tasks: the 57 subjects of MMLU\n") != std::string::npos);
}

TEST_CASE("a task named twice is refused", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.jsonl",
             "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}");
  const std::string name = (folder / "a.jsonl").string();
  CHECK(user_error_of([&] {
          load_tasks({name, name}, "", std::nullopt);
        }) == "--tasks names 'a' twice; name it once");
}

}  // namespace
}  // namespace moe::eval
