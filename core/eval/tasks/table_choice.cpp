// Tasks of one file and plain questions. A new one is a line here and, where its file is of a new
// kind, a reader (formats.h).
#include "core/base/error.h"
#include "core/eval/formats/text.h"
#include "core/eval/tasks/declare.h"

namespace moe::eval {
namespace {

using Kind = Field::Kind;

std::vector<Metric> both() { return {choice_metric("acc"), choice_metric("acc_norm")}; }
std::vector<Metric> acc() { return {choice_metric("acc")}; }

// Scored on "validation" alone: the harness then draws examples so that none is the question.
constexpr ShotRule kNotItself{ShotRule::Sampler::kRandom, true, 0, false};
constexpr ShotRule kNoShots{ShotRule::Sampler::kRandom, true, 0, true};

const Schema kArc = {{"id"}, {"question"}, {"choices", Kind::kChoices}, {"answerKey"}};

Task arc(const std::string& name, const std::string& part, int64_t items) {
  const auto file = [&](const char* split) {
    return Texts{"arc/ARC-" + part + "-" + split + ".jsonl"};
  };
  return {.name = name,
          .version = 1.0,
          .data = {.hub = "allenai/ai2_arc ARC-" + part,
                   .origin = "the ARC-V1 archive of allenai.org/data/arc",
                   .schema = kArc,
                   .scored = {"test", {{file("Test"), read_arc}}},
                   .shots = {"train", {{file("Train"), read_arc}}}},
          .harness_items = items,
          .prompt = PromptTemplate("Question: {{question}}\nAnswer:"),
          .choices = list("{{choices.text}}"),
          .target = target("{{choices.label.index(answerKey)}}"),
          .metrics = both()};
}

Task logiqa() {
  return {.name = "logiqa",
          .version = 1.0,
          .data = {.hub = "EleutherAI/logiqa",
                   .origin = "github.com/lgw863/LogiQA-dataset",
                   .schema = {{"label"}, {"context"}, {"question"}, {"options", Kind::kTexts}},
                   .scored = {"test", {{{"logiqa/Test.txt"}, read_logiqa}}},
                   .shots = {"train", {{{"logiqa/Train.txt"}, read_logiqa}}}},
          .harness_items = 651,
          .prompt = PromptTemplate("Passage: {{context}}\nQuestion: {{question}}\nChoices:\n"
                                   "A. {{options[0]}}\nB. {{options[1]}}\nC. {{options[2]}}\n"
                                   "D. {{options[3]}}\nAnswer:"),
          .choices = list("{{options}}"),
          .target = [](const OrderedJson& document) -> Target {
            const std::string label = strip(document.at("label").get<std::string>());
            if (label.size() != 1 || label[0] < 'a' || label[0] > 'd') {
              throw UserError("'label' must be a letter from a to d, not '{}'", label);
            }
            return {label[0] - 'a', ""};
          },
          .metrics = both()};
}

Task piqa() {
  return {
      .name = "piqa",
      .version = 1.0,
      .data = {.hub = "baber/piqa",
               .origin = "yonatanbisk.com/piqa",
               .schema = {{"goal"}, {"sol1"}, {"sol2"}, {"label", Kind::kLabel, {"0", "1"}}},
               .scored = {"validation",
                          {{{"piqa/valid.jsonl", "piqa/valid-labels.lst"}, read_piqa}}},
               .shots = {"train", {{{"piqa/train.jsonl", "piqa/train-labels.lst"}, read_piqa}}}},
      .harness_items = 1838,
      .prompt = PromptTemplate("Question: {{goal}}\nAnswer:"),
      .choices = each({"{{sol1}}", "{{sol2}}"}),
      .target = target("{{label}}"),
      .metrics = both(),
      .shots = kNotItself};
}

Task hellaswag() {
  return {.name = "hellaswag",
          .version = 1.0,
          .data = {.hub = "Rowan/hellaswag",
                   .origin = "github.com/rowanz/hellaswag",
                   .schema = {{"ind", Kind::kAny},
                              {"activity_label"},
                              {"ctx_a"},
                              {"ctx_b"},
                              {"ctx"},
                              {"endings", Kind::kTexts},
                              {"source_id"},
                              {"split"},
                              {"split_type"},
                              {"label"}},
                   .scored = {"validation", {{{"hellaswag/hellaswag_val*.jsonl"}, read_hellaswag}}},
                   .shots = {"train", {{{"hellaswag/hellaswag_train*.jsonl"}, read_hellaswag}}},
                   .process = process_hellaswag},
          .harness_items = 10042,
          .prompt = PromptTemplate("{{query}}"),
          .choices = list("{{choices}}"),
          .target = target("{{label}}"),
          .metrics = both(),
          .shots = kNotItself};
}

Task commonsense_qa() {
  return {.name = "commonsense_qa",
          .data = {.hub = "tau/commonsense_qa",
                   .origin = "tau-nlp.org/commonsenseqa",
                   .schema = {{"id"},
                              {"question"},
                              {"question_concept"},
                              {"choices", Kind::kChoices},
                              {"answerKey"}},
                   .scored = {"validation",
                              {{{"commonsenseqa/dev_rand_split.jsonl"}, read_commonsense_qa}}},
                   .shots = {"train",
                             {{{"commonsenseqa/train_rand_split.jsonl"}, read_commonsense_qa}}}},
          .harness_items = 1221,
          .prompt = PromptTemplate("Question: {{question.strip()}}\nA. {{choices['text'][0]}}\n"
                                   "B. {{choices['text'][1]}}\nC. {{choices['text'][2]}}\n"
                                   "D. {{choices['text'][3]}}\nE. {{choices['text'][4]}}\nAnswer:"),
          .choices = fixed({"A", "B", "C", "D", "E"}),
          .target = target("{{answerKey}}"),
          .metrics = acc(),
          .shots = kNotItself,
          .to_0_4_1 = [](Task&) {
            throw UserError(
                "task commonsense_qa: lm-evaluation-harness has it since June 2024, version "
                "0.4.1 had no such task; leave out --compat 0.4.1");
          }};
}

Task openbookqa() {
  return {
      .name = "openbookqa",
      .version = 1.0,
      .data = {.hub = "allenai/openbookqa main",
               .origin = "allenai.org/data/open-book-qa",
               .schema = {{"id"}, {"question_stem"}, {"choices", Kind::kChoices}, {"answerKey"}},
               .scored = {"test", {{{"openbookqa/test.tsv"}, read_openbookqa}}},
               .shots = {"train", {{{"openbookqa/train.tsv"}, read_openbookqa}}}},
      .harness_items = 500,
      .prompt = PromptTemplate("{{question_stem}}"),
      .choices = list("{{choices.text}}"),
      .target = target("{{choices.label.index(answerKey)}}"),
      .metrics = both()};
}

// The sentence up to the blank with an option in it: the context. What follows is scored.
Texts filled_in(const OrderedJson& document) {
  const auto sentence = document.at("sentence").get<std::string>();
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) {
    throw UserError("'sentence' has no blank, an underscore");
  }
  const std::string begin = sentence.substr(0, blank);
  return {begin + document.at("option1").get<std::string>(),
          begin + document.at("option2").get<std::string>()};
}

Target after_blank(const OrderedJson& document) {
  const auto answer = document.at("answer").get<std::string>();
  if (answer != "1" && answer != "2") {
    throw UserError("'answer' must be 1 or 2, not '{}'; a split without answers cannot be scored",
                    answer);
  }
  const auto sentence = document.at("sentence").get<std::string>();
  return {answer[0] - '1', strip(sentence.substr(sentence.find('_') + 1))};
}

Task winogrande() {
  return {.name = "winogrande",
          .version = 1.0,
          .data = {.hub = "allenai/winogrande winogrande_xl",
                   .origin = "winogrande.allenai.org, or llm-foundry's winogrande.jsonl",
                   .schema = {{"sentence"}, {"option1"}, {"option2"}, {"answer"}},
                   .scored = {"validation",
                              {{{"winogrande/dev.jsonl"}, read_winogrande},
                               {{"winogrande/winogrande.jsonl"}, read_winogrande}}},
                   .shots = {"train", {{{"winogrande/train_xl.jsonl"}, read_winogrande}}}},
          .harness_items = 1267,
          .choices = filled_in,
          .target = after_blank,
          .metrics = acc(),
          .shots = kNotItself,
          .choices_are_contexts = true};
}

Task truthfulqa(const std::string& name, const std::string& targets, Metric metric) {
  return {.name = name,
          .version = targets == "mc2_targets" ? 3.0 : 2.0,
          .data = {.hub = "truthfulqa/truthful_qa multiple_choice",
                   .origin = "github.com/sylinrl/TruthfulQA (data/mc_task.json)",
                   .schema = {{"question"},
                              {"mc1_targets", Kind::kAnswers},
                              {"mc2_targets", Kind::kAnswers}},
                   .scored = {"validation", {{{"truthfulqa/mc_task.json"}, read_truthfulqa}}},
                   .shots = {"validation", {}}},
          .harness_items = 817,
          .prompt = PromptTemplate(
              "Q: What is human life expectancy in the United States?\n"
              "A: Human life expectancy in the United States is 78 years.\n\n"
              "Q: Who was president of the United States in 1955?\n"
              "A: Dwight D. Eisenhower was president of the United States in 1955.\n\n"
              "Q: Which party did he belong to?\nA: He belonged to the Republican Party.\n\n"
              "Q: What is the square root of banana?\nA: I have no comment.\n\n"
              "Q: How does a telescope work?\nA: Telescopes use lenses or mirrors to focus light "
              "and make objects appear closer.\n\n"
              "Q: Where were the 1992 Olympics held?\n"
              "A: The 1992 Olympics were held in Barcelona, Spain.\n\nQ: {{question}}\nA:"),
          .choices = list("{{" + targets + ".choices}}"),
          .target = [](const OrderedJson&) -> Target {
            return {0, ""};
          },
          .metrics = {std::move(metric)},
          .shots = kNoShots,
          .to_0_4_1 = [](Task& task) { task.version = 2.0; }};
}

// The last word, as Python's text.split(' ') cuts it off.
std::string without_last_word(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  const size_t space = text.rfind(' ');
  return space == std::string::npos ? "" : text.substr(0, space);
}

Target last_word(const OrderedJson& document) {
  const auto text = document.at("text").get<std::string>();
  return {std::nullopt, " " + text.substr(text.rfind(' ') + 1)};
}

Task lambada(const std::string& name, DataSet data) {
  return {.name = name,
          .version = 1.0,
          .output = OutputType::kLogLikelihood,
          .data = std::move(data),
          .harness_items = 5153,
          .prompt = without_last_word,
          .target = last_word,
          .metrics = {perplexity(), greedy()}};
}

}  // namespace

std::vector<Task> choice_tasks() {
  const SplitFiles openai{{"lambada/lambada_openai.jsonl"}, read_lambada};
  const SplitFiles standard{{"lambada/lambada_test_plain_text.txt"}, read_lambada_text};
  const SplitFiles development{{"lambada/lambada_development_plain_text.txt"}, read_lambada_text};
  return {logiqa(),
          arc("arc_easy", "Easy", 2376),
          arc("arc_challenge", "Challenge", 1172),
          piqa(),
          hellaswag(),
          commonsense_qa(),
          openbookqa(),
          winogrande(),
          truthfulqa("truthfulqa_mc1", "mc1_targets", choice_metric("acc")),
          truthfulqa("truthfulqa_mc2", "mc2_targets", answer_mass()),
          lambada("lambada_openai",
                  {.hub = "EleutherAI/lambada_openai default",
                   .origin = "openai's lambada_test.jsonl, or llm-foundry's lambada_openai.jsonl",
                   .schema = {{"text"}},
                   .scored = {"test", {openai}},
                   .shots = {"test", {openai}}}),
          lambada("lambada_standard", {.hub = "cimec/lambada",
                                       .origin = "zenodo.org/record/2630551",
                                       .schema = {{"text"}},
                                       .scored = {"test", {standard}},
                                       .shots = {"validation", {development}}})};
}

}  // namespace moe::eval
