// SuperGLUE as the harness asks it (its tag super-glue-lm-eval-v1).
#include <algorithm>

#include "core/base/error.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "core/eval/tasks/declare.h"

namespace moe::eval {
namespace {

using Kind = Field::Kind;

constexpr ShotRule kNotItself{ShotRule::Sampler::kRandom, true, 0, false};
constexpr const char* kOrigin = "super.gluebenchmark.com/tasks";

Field truth(const std::string& no, const std::string& yes) {
  return {"label", Kind::kLabel, {no, yes}};
}

// The authors' files have the Hub's fields (in any order) where nothing is nested.
DataSet flat(const std::string& folder, const std::string& part, const Schema& schema) {
  const auto read = [schema](const Files& files, int64_t limit) {
    return read_exported(files.at(0), schema, limit);
  };
  return {.hub = "aps/super_glue " + part,
          .origin = kOrigin,
          .schema = schema,
          .scored = {"validation", {{{"superglue/" + folder + "/val.jsonl"}, read}}},
          .shots = {"train", {{{"superglue/" + folder + "/train.jsonl"}, read}}}};
}

DataSet nested(const std::string& folder, const std::string& part, const Schema& schema,
               std::vector<Document> (*read)(const Files&)) {
  return {.hub = "aps/super_glue " + part,
          .origin = kOrigin,
          .schema = schema,
          .scored = {"validation", {{{"superglue/" + folder + "/val.jsonl"}, read}}},
          .shots = {"train", {{{"superglue/" + folder + "/train.jsonl"}, read}}}};
}

Task question_task(const std::string& name, double version, int64_t items, DataSet data,
                   const std::string& prompt, Texts choices) {
  return {.name = name,
          .version = version,
          .data = std::move(data),
          .harness_items = items,
          .prompt = PromptTemplate(prompt),
          .choices = fixed(std::move(choices)),
          .target = target("{{label}}"),
          .metrics = {choice_metric("acc")},
          .shots = kNotItself};
}

Task boolq() {
  return question_task(
      "boolq", 2.0, 3270,
      flat("BoolQ", "boolq",
           {{"question"}, {"passage"}, {"idx", Kind::kAny}, truth("False", "True")}),
      "{{passage}}\nQuestion: {{question}}?\nAnswer:", {"no", "yes"});
}

Task cb() {
  Task task =
      question_task("cb", 1.0, 56,
                    flat("CB", "cb",
                         {{"premise"},
                          {"hypothesis"},
                          {"idx", Kind::kAny},
                          {"label", Kind::kLabel, {"entailment", "contradiction", "neutral"}}}),
                    "{{premise}}\nQuestion: {{hypothesis}}. True, False, or Neither?\nAnswer:",
                    {"True", "False", "Neither"});
  task.metrics.push_back(macro_f1());
  return task;
}

Task rte() {
  return question_task(
      "sglue_rte", 0.0, 277,
      flat("RTE", "rte",
           {{"premise"},
            {"hypothesis"},
            {"idx", Kind::kAny},
            truth("entailment", "not_entailment")}),
      "{{premise}}\nQuestion: {{hypothesis}} True or False?\nAnswer:", {"True", "False"});
}

// COPA: the sentence without its full stop, a connector; the continuation has two spaces.
Texts copa_choices(const OrderedJson& document) {
  Texts choices;
  for (const char* key : {"choice1", "choice2"}) {
    const auto choice = document.at(key).get<std::string>();
    choices.push_back(" " + lower(slice(choice, 0, 1)) + slice(choice, 1));
  }
  return choices;
}

std::string copa_prompt(const OrderedJson& document) {
  const auto question = document.at("question").get<std::string>();
  if (question != "cause" && question != "effect") {
    throw UserError("'question' must be cause or effect, not '{}'", question);
  }
  const std::string premise = strip(document.at("premise").get<std::string>());
  return slice(premise, 0, std::max<int64_t>(0, count_code_points(premise) - 1)) +
         (question == "cause" ? " because" : " therefore");
}

Task copa() {
  Task task = question_task("copa", 1.0, 100,
                            flat("COPA", "copa",
                                 {{"premise"},
                                  {"choice1"},
                                  {"choice2"},
                                  {"question"},
                                  {"idx", Kind::kAny},
                                  truth("choice1", "choice2")}),
                            "", {});
  task.prompt = copa_prompt;
  task.choices = copa_choices;
  task.target = [](const OrderedJson& document) -> Target {
    return {std::nullopt, copa_choices(document)[document.at("label") == 0 ? 0 : 1]};
  };
  return task;
}

// The harness has "yes" first and label 1 = a right answer, so it counts the wrong choice:
// "multirc" copies that, "multirc_fixed" does not.
Task multirc(const std::string& name, bool fixed_order) {
  const std::string yes = "{{answer}}\nIs the answer correct? yes";
  const std::string no = "{{answer}}\nIs the answer correct? no";
  Task task = question_task(
      name, 2.0, 4848,
      nested("MultiRC", "multirc",
             {{"paragraph"}, {"question"}, {"answer"}, {"idx", Kind::kAny}, truth("False", "True")},
             read_multirc),
      "{{paragraph}}\nQuestion: {{question}}\nAnswer:", {});
  task.choices = fixed_order ? each({no, yes}) : each({yes, no});
  if (fixed_order) {
    task.version = std::nullopt;
  }
  return task;
}

Task wic() {
  Task task = question_task("wic", 1.0, 638,
                            flat("WiC", "wic",
                                 {{"word"},
                                  {"sentence1"},
                                  {"sentence2"},
                                  {"start1", Kind::kInt},
                                  {"start2", Kind::kInt},
                                  {"end1", Kind::kInt},
                                  {"end2", Kind::kInt},
                                  {"idx", Kind::kAny},
                                  truth("False", "True")}),
                            "", {"no", "yes"});
  task.prompt = [](const OrderedJson& document) {
    const auto sentence = document.at("sentence1").get<std::string>();
    return "Sentence 1: " + sentence +
           "\nSentence 2: " + document.at("sentence2").get<std::string>() +
           "\nQuestion: Is the word '" +
           slice(sentence, document.at("start1"), document.at("end1")) +
           "' used in the same way in the two sentences above?\nAnswer:";
  };
  return task;
}

// The harness's general_detokenize.
std::string detokenize(std::string text) {
  const std::pair<const char*, const char*> pairs[] = {
      {" n't", "n't"}, {" )", ")"}, {"( ", "("}, {"\" ", "\""}, {" \"", "\""}};
  for (const auto& [from, to] : pairs) {
    text = replace_all(text, from, to);
  }
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool drops = text[i] == ' ' && i + 1 < text.size() &&
                       std::string_view("'.,").find(text[i + 1]) != std::string_view::npos;
    if (drops) {
      ++i;  // the mark itself cannot be dropped in its turn
    }
    result += text[i];
  }
  return result;
}

std::string wsc_prompt(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  const auto noun = document.at("span1_text").get<std::string>();
  const auto pronoun = document.at("span2_text").get<std::string>();
  const std::vector<std::string> words = split_words(text);
  const auto count = std::clamp<int64_t>(document.at("span2_index").get<int64_t>(), 0,
                                         static_cast<int64_t>(words.size()));
  const std::string before =
      fmt::format("{}", fmt::join(words.begin(), words.begin() + count, " "));
  const std::string after = slice(text, count_code_points(before) + count_code_points(pronoun) + 1);
  return "Passage: " + detokenize(before + " *" + pronoun + "*" + after) +
         "\nQuestion: In the passage above, does the pronoun \"*" + pronoun + "*\" refer to \"*" +
         noun + "*\"?\nAnswer:";
}

Task wsc() {
  Task task = question_task("wsc", 1.0, 104,
                            nested("WSC", "wsc.fixed",
                                   {{"text"},
                                    {"span1_index", Kind::kInt},
                                    {"span2_index", Kind::kInt},
                                    {"span1_text"},
                                    {"span2_text"},
                                    {"idx", Kind::kAny},
                                    truth("False", "True")},
                                   read_wsc),
                            "", {"no", "yes"});
  task.prompt = wsc_prompt;
  return task;
}

// ReCoRD: the summary's points below the passage, each entity in the query's place; no gold choice.
std::string record_prompt(const OrderedJson& document) {
  std::string rest = strip(document.at("passage").get<std::string>());
  const std::string mark = "\n@highlight\n";
  size_t end = rest.find(mark);
  std::string prompt = rest.substr(0, end) + "\n\n";
  while (end != std::string::npos) {
    rest.erase(0, end + mark.size());
    end = rest.find(mark);
    prompt += "  - " + rest.substr(0, end) + ".\n";
  }
  return prompt;
}

std::string filled_query(const OrderedJson& document, const std::string& entity) {
  return "  - " + replace_all(document.at("query").get<std::string>(), "@placeholder", entity);
}

void process_record(OrderedJson& fields) {
  for (const char* key : {"entities", "answers"}) {
    auto texts = fields.at(key).get<Texts>();
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    fields[key] = texts;
  }
}

Task record() {
  return {.name = "record",
          .version = 2.0,
          .data = {.hub = "aps/super_glue record",
                   .origin = kOrigin,
                   .schema = {{"passage"},
                              {"query"},
                              {"entities", Kind::kTexts},
                              {"answers", Kind::kTexts},
                              {"idx", Kind::kAny}},
                   .scored = {"validation",
                              {{{"superglue/ReCoRD/val.jsonl"}, read_record},
                               {{"superglue/ReCoRD/fewglue_train32.jsonl"}, read_record}}},
                   .shots = {"train", {{{"superglue/ReCoRD/train.jsonl"}, read_record}}},
                   .process = process_record},
          .harness_items = 10000,
          .prompt = record_prompt,
          .choices =
              [](const OrderedJson& document) {
                Texts choices;
                for (const auto& entity : document.at("entities")) {
                  choices.push_back(filled_query(document, entity.get<std::string>()));
                }
                return choices;
              },
          .target = [](const OrderedJson& document) -> Target {
            return {std::nullopt,
                    filled_query(document, document.at("answers").at(0).get<std::string>())};
          },
          .metrics = {entity_f1(), entity_match()},
          .shots = kNotItself,
          .gold_may_be_absent = true,
          .to_0_4_1 =
              [](Task& task) {
                task.version = 1.0;
                task.choices = list("{{entities}}");
                task.target = [](const OrderedJson& document) -> Target {
                  return {std::nullopt, document.at("answers").at(0).get<std::string>()};
                };
              }};
}

}  // namespace

std::vector<Task> superglue_tasks() {
  return {
      boolq(), cb(),  copa(), multirc("multirc", false), multirc("multirc_fixed", true), record(),
      rte(),   wic(), wsc()};
}

}  // namespace moe::eval
