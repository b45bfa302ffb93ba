// Task files of the user.
#include <ctime>

#include "core/eval/tasks/task.h"
#include "core/eval/tasks/tasks.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

LoadedTask load_one(const std::filesystem::path& file, const TaskOptions& options = {}) {
  return load_tasks({file.string()}, "", std::nullopt, options).at(0);
}

std::string complaint(const TempDir& folder, const std::string& name, const std::string& text) {
  write_file(folder / name, text);
  const std::string message = user_error_of([&] { load_one(folder / name); });
  const std::string place = folder.path().string() + "/";
  return message.starts_with(place) ? message.substr(place.size()) : message;
}

const std::string kToml =
    "task = \"capitals\"\n"
    "data = \"capitals.jsonl\"\n"
    "fewshot_data = \"shots.csv\"\n"
    "description = \"Cities.\\n\\n\"\n"
    "doc_to_text = \"Q: {{q.strip()}}\\nA:\"\n"
    "doc_to_choice = [\"{{a}}\", \"{{b}}\"]\n"
    "doc_to_target = \"{{label}}\"\n"
    "metric_list = [\"acc\", \"acc_bytes\"]\n"
    "fewshot_sampler = \"first_n\"\n"
    "version = 1.5\n";

TEST_CASE("a TOML file, JSON lines and CSV become questions", "[eval]") {
  const TempDir folder;
  write_file(folder / "t.toml", kToml);
  write_file(folder / "capitals.jsonl",
             "{\"q\": \"France? \", \"a\": \"Paris\", \"b\": \"Rome\", \"label\": 0}\n"
             "{\"q\": \"Italy?\", \"a\": \"Paris\", \"b\": \"Rome\", \"label\": \"Rome\"}\n");
  write_file(folder / "shots.csv", "q,a,b,label\nSpain?,Madrid,Oslo,0\n");
  const LoadedTask loaded = load_one(folder / "t.toml", {{}, 1});
  CHECK(loaded.task.name == "capitals");
  CHECK(loaded.task.version == 1.5);
  CHECK(loaded.task.metrics[1].name == "acc_bytes");
  REQUIRE(loaded.questions.size() == 2);
  CHECK(loaded.questions[0].context == "Cities.\n\nQ: Spain?\nA: Madrid\n\nQ: France?\nA:");
  CHECK(loaded.questions[0].gold == 0);
  CHECK(loaded.questions[1].gold == 1);  // by its text
  CHECK(loaded.questions[1].target == "Rome");
  TaskOptions options = {{}, 1, "Brief.", [](const Messages& messages) {
                           std::string text;
                           for (const Message& message : messages) {
                             text += message.role.substr(0, 1) + "[" + message.content + "]";
                           }
                           return text;
                         }};
  const auto question = [&](const std::string& more) {
    write_file(folder / "t.toml", kToml + more);
    return load_one(folder / "t.toml", options).questions.at(0);
  };
  const std::string system = "Brief.\n\nCities.\n\n", begin = "gen_prefix = \"It is\"\n";
  CHECK(question("").context == "s[" + system + "]u[Q: Spain?\nA:]a[Madrid]u[Q: France?\nA:]");
  CHECK(question("").choice_continuation(0) == "Paris");
  CHECK(question(begin).context ==
        "s[" + system + "]u[Q: Spain?\nA:]a[It is Madrid]u[Q: France?\nA:]a[It is]");
  CHECK(question(begin).choice_continuation(0) == " Paris");
  options.examples_as_turns = false;
  const std::string text = "Q: Spain?\nA: It is Madrid\n\nQ: France?\nA:";
  CHECK(question(begin).context == "s[" + system + "]u[" + text + "]a[It is]");
  options.render_chat = nullptr;
  CHECK(question(begin).context == system + text + " It is");
}

TEST_CASE("a JSON file with a list of choices, and one whose answers are generated", "[eval]") {
  const TempDir folder;
  write_file(folder / "d.jsonl", "{\"q\": \"x\", \"c\": [\"1\", \"2\", \"3\"], \"k\": 2}\n");
  write_file(folder / "t.json",
             R"({"data": "d.jsonl", "doc_to_text": "{{q}}", "doc_to_choice": "{{c}}",)"
             R"( "doc_to_target": "{{k}}", "target_delimiter": ""})");
  const LoadedTask loaded = load_one(folder / "t.json");
  CHECK(loaded.task.name == "t");
  CHECK(loaded.questions.at(0).choices.size() == 3);
  CHECK(loaded.questions[0].choice_continuation(2) == "3");
  write_file(folder / "w.json",
             R"({"data": "d.jsonl", "doc_to_text": "{{q}}", "doc_to_target": "{{q}}",)"
             R"( "output_type": "generate_until", "until": ["\n"], "max_gen_toks": 5})");
  const LoadedTask generated = load_one(folder / "w.json");
  CHECK(generated.task.output == OutputType::kGenerateUntil);
  CHECK(generated.task.generation.max_tokens == 5);
  CHECK(generated.questions.at(0).target == "x");
}

TEST_CASE("digits are the index of a choice, and text where there are no choices", "[eval]") {
  const TempDir folder;
  write_file(folder / "d.jsonl", "{\"q\": \"Agent?\", \"a\": \"007\"}\n");
  write_file(folder / "w.toml",
             "data = \"d.jsonl\"\nfewshot_data = \"d.jsonl\"\n"
             "doc_to_text = \"{{q}}\"\ndoc_to_target = \"{{a}}\"\n"
             "output_type = \"generate_until\"\n");
  const LoadedTask generated = load_one(folder / "w.toml", {{}, 1});
  CHECK(generated.questions.at(0).target == "007");
  CHECK(generated.questions[0].context == "Agent? 007\n\nAgent?");
  write_file(folder / "c.toml",
             "data = \"d.jsonl\"\ndoc_to_text = \"{{q}}\"\ndoc_to_target = \"001\"\n"
             "doc_to_choice = [\"no\", \"yes\"]\n");
  CHECK(load_one(folder / "c.toml").questions.at(0).gold == 1);
}

TEST_CASE("faults of a task file and of its data are named", "[eval]") {
  const TempDir folder;
  write_file(folder / "d.jsonl",
             "{\"q\": \"x\", \"a\": \"1\", \"b\": \"2\", \"label\": 0}\n"
             "{\"q\": \"x\", \"a\": \"1\", \"b\": \"2\", \"label\": 2}\n");
  const std::string rest =
      "data = \"d.jsonl\"\ndoc_to_choice = [\"{{a}}\", \"{{b}}\"]\n"
      "doc_to_target = \"{{label}}\"\n";
  const std::string text = "doc_to_text = \"{{q}}\"\n";
  struct Case {
    std::string content;
    const char *place, *fact;
    const char* name = "t.toml";
  };
  for (const auto& [content, place, fact, name] : std::vector<Case>{
           {rest + text, "d.jsonl line 2: ", "number 2"},
           {rest + "doc_to_text = \"{{r}}\"\n", "d.jsonl line 1: ", "'r' is undefined"},
           {rest + text + "metrik_list = [\"acc\"]\n", "t.toml: 'metrik_list'",
            "did you mean 'metric_list'?"},
           {rest + text + "metric_list = [\"bleu\"]\n", "t.toml: ", "'bleu' is unknown"},
           {rest, "t.toml: 'doc_to_text' ", ""},
           {rest + text + "metric_list = [{metric = \"acc\"}]\n", "t.toml: ", "= [\"acc\"]"},
           {rest + text + "filter_list = []\n", "t.toml: 'filter_list'", "'until'"},
           {rest + "doc_to_text = \"!function utils.f\"\n", "t.toml: doc_to_text", "Python"},
           {text, "", "YAML is not supported", "t.yaml"},
           {text, "t.toml: 'data' is missing", ""},
           {"x = = 1\n", "t.toml line 1: ", ""},
           {"[1]", "t.json: ", "not a JSON object", "t.json"},
           {rest + text + "output_type = \"rolling\"\n", "t.toml: ", "'rolling' is unknown"},
           {rest + text + "task = \"a/b\"\n", "t.toml: 'task' is 'a/b'", ""},
           {rest + text + "num_fewshot = 3\n", "t.toml: num_fewshot is 3", "'fewshot_data'"},
           {"data = \"no.jsonl\"\ndoc_to_choice = [\"a\", \"b\"]\ndoc_to_target = \"0\"\n" + text,
            "", "no.jsonl: no such file"}}) {
    CAPTURE(content);
    const std::string message = complaint(folder, name, content);
    CHECK(message.starts_with(place));
    CHECK_THAT(message, contains_text(fact));
  }
}

TEST_CASE("a table is read in time linear in its columns", "[eval]") {
  const TempDir folder;
  std::string header = "q", row = "why";
  for (int column = 0; column < 120000; ++column) {
    header += ",c" + std::to_string(column);
    row += ",0";
  }
  write_file(folder / "wide.csv", header + ",q\n" + row + ",how\n");
  write_file(folder / "wide.toml",
             "data = \"wide.csv\"\ndoc_to_text = \"{{q}}\"\ndoc_to_choice = [\"a\", \"b\"]\n"
             "doc_to_target = \"{{c119999}}\"\n");
  const std::clock_t begin = std::clock();  // CPU time: other processes may run
  const LoadedTask loaded = load_one(folder / "wide.toml");
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(seconds < 2);                              // 0.1 s; 10 s with a linear search per column
  CHECK(loaded.questions.at(0).context == "how");  // the last of equal columns
  CHECK(loaded.questions[0].gold == 0);
  CHECK(loaded.questions[0].fields.size() == 120001);
}

}  // namespace
}  // namespace moe::eval
