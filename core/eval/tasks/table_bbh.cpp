// BIG-Bench-Hard twice: the answer written out (bbh_zeroshot_*, filters applied), and the answer
// chosen from a fixed list (leaderboard_bbh_*, three examples).
#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/eval/metrics/filters.h"
#include "core/eval/tasks/declare.h"

namespace moe::eval {
namespace {

using Extract = std::function<std::string(const std::string&, const OrderedJson&)>;

struct Subtask {
  std::string name;
  std::string description;
  int64_t items;
  Extract extract;
  Texts choices;  // of the leaderboard's form; none = it has no such subtask
};

Texts letters(char last) {
  Texts choices;
  for (char letter = 'A'; letter <= last; ++letter) {
    choices.push_back({'(', letter, ')'});
  }
  return choices;
}

Texts numbers(int last) {
  Texts choices;
  for (int number = 0; number <= last; ++number) {
    choices.push_back(std::to_string(number));
  }
  return choices;
}

Extract words(Texts words) {
  return [words = std::move(words)](const std::string& answer, const OrderedJson&) {
    return first_word(answer, words);
  };
}

Extract phrases(std::vector<Phrases> groups) {
  return [groups = std::move(groups)](const std::string& answer, const OrderedJson&) {
    return first_phrase(answer, groups);
  };
}

constexpr const char* kDeduction =
    "A logical deduction task which requires deducing the order of a sequence of objects.";
constexpr const char* kShuffled =
    "A task requiring determining the final positions of a set of objects given their initial "
    "positions and a description of a sequence of swaps.";
constexpr const char* kSarcasm =
    "Determine which of two sentences is sarcastic.\n\nAccording to Cambridge University "
    "Dictionary, sarcasm is \"the use of remarks that clearly mean the opposite of what they say, "
    "made in order to hurt someone's feelings or to criticize something in a humorous way.\" "
    "Sarcastic sentences often contain satirical or ironic utterances, hyperboles, ambivalent or "
    "witty remarks.";

// The answer is one of the letters up to `last`.
struct Lettered {
  const char* name;
  const char* description;
  int64_t items;
  char last;
};
constexpr std::array<Lettered, 17> kLettered = {{
    {"date_understanding", "Infer the date from context.", 250, 'F'},
    {"disambiguation_qa", "Clarify the meaning of sentences with ambiguous pronouns.", 250, 'C'},
    {"geometric_shapes", "Name geometric shapes from their SVG paths.", 250, 'K'},
    {"hyperbaton", "Order adjectives correctly in English sentences.", 250, 'B'},
    {"logical_deduction_five_objects", kDeduction, 250, 'E'},
    {"logical_deduction_seven_objects", kDeduction, 250, 'G'},
    {"logical_deduction_three_objects", kDeduction, 250, 'C'},
    {"movie_recommendation", "Recommend movies similar to the given list of movies.", 250, 'F'},
    {"penguins_in_a_table", "Answer questions about a table of penguins and their attributes.", 146,
     'E'},
    {"reasoning_about_colored_objects",
     "Answer extremely simple questions about the colors of objects on a surface.", 250, 'R'},
    {"ruin_names", "Select the humorous edit that 'ruins' the input movie or musical artist name.",
     250, 'F'},
    {"salient_translation_error_detection",
     "Detect the type of error in an English translation of a German source sentence.", 250, 'F'},
    {"snarks", kSarcasm, 178, 'B'},
    {"temporal_sequences",
     "Task description: Answer questions about which times certain events could have occurred.",
     250, 'D'},
    {"tracking_shuffled_objects_five_objects", kShuffled, 250, 'E'},
    {"tracking_shuffled_objects_seven_objects", kShuffled, 250, 'G'},
    {"tracking_shuffled_objects_three_objects", kShuffled, 250, 'C'},
}};

std::vector<Subtask> subtasks_in_words() {
  const Extract yes_no = words({"Yes", "No", "yes", "no"});
  return {
      {"boolean_expressions",
       "Evaluate the result of a random Boolean expression.",
       250,
       words({"True", "False"}),
       {"False", "True"}},
      {"causal_judgement",
       "Answer questions about causal attribution.",
       187,
       yes_no,
       {"Yes", "No"}},
      {"formal_fallacies",
       "Distinguish deductively valid arguments from formal fallacies.",
       250,
       words({"valid", "invalid"}),
       {"valid", "invalid"}},
      {"navigate",
       "Given a series of navigation instructions, determine whether one would end up back at the "
       "starting point.",
       250,
       yes_no,
       {"Yes", "No"}},
      {"sports_understanding",
       "Determine whether an artificially constructed sentence relating to sports is plausible or "
       "not.",
       250,
       phrases({{"no", {"no", "not plausible"}}, {"yes", {"yes", "plausible"}}}),
       {"yes", "no"}},
      {"web_of_lies",
       "Evaluate a random boolean function expressed as a word problem.",
       250,
       phrases({{"no", {"no", "does not tell the truth", "is not telling the truth"}},
                {"yes", {"yes", "tells the truth", "is telling the truth"}}}),
       {"Yes", "No"}},
  };
}

std::vector<Subtask> subtasks() {
  std::vector<Subtask> all = subtasks_in_words();
  for (const auto& [name, description, items, last] : kLettered) {
    all.push_back({name, description, items, first_option, letters(last)});
  }
  all.push_back({"dyck_languages", "Correctly close a Dyck-n word.", 250, first_brackets, {}});
  all.push_back(
      {"multistep_arithmetic_two", "Solve multi-step arithmetic problems.", 250, first_number, {}});
  all.push_back({"object_counting",
                 "Questions that involve enumerating objects and asking the model to count them.",
                 250, first_number, numbers(18)});
  all.push_back({"word_sorting", "Sort a list of words.", 250, sorted_words, {}});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

DataSet data_of(const std::string& name) {
  return {.hub = "SaylorTwift/bbh " + name,
          .origin = "github.com/suzgunmirac/BIG-Bench-Hard",
          .schema = {{"input"}, {"target"}},
          .scored = {"test", {{{"bbh/" + name + ".json"}, read_bbh}}},
          .shots = {"cot-prompts", {{{"bbh/cot-prompts/" + name + ".txt"}, read_bbh_prompts}}}};
}

std::string as_it_is(const std::string& answer, const OrderedJson&) { return answer; }

// 0.4.1: two line feeds end the answer, which must match to the letter.
void to_first_version(Task& task) {
  task.version = 1.0;
  task.metrics = {{.name = "exact_match"}};
  task.generation.until = {"</s>", "Q:", "\n\n"};
  task.filters = {{"none", as_it_is}};
  task.ignores_case_and_marks = false;
}

Task written(const Subtask& subtask) {
  return {.name = "bbh_zeroshot_" + subtask.name,
          .version = 3.0,
          .output = OutputType::kGenerateUntil,
          .data = data_of(subtask.name),
          .harness_items = subtask.items,
          .description = subtask.description + "\n\n",
          .prompt = PromptTemplate("Q: {{input}}\nA:"),
          .target = [](const OrderedJson& document) -> Target {
            return {std::nullopt, document.at("target").get<std::string>()};
          },
          .metrics = {{.name = "exact_match", .filter = "strict-match"},
                      {.name = "exact_match", .filter = "flexible-extract"}},
          .shots = {ShotRule::Sampler::kRandom, false, 0, true},
          .generation = {.until = {"</s>", "Q:", "<|im_end|>"}},
          .filters = {{"strict-match", as_it_is}, {"flexible-extract", subtask.extract}},
          .ignores_case_and_marks = true,
          .to_0_4_1 = to_first_version};
}

// The description runs into the first question: the harness puts nothing between them.
Task chosen(const Subtask& subtask) {
  return {.name = "leaderboard_bbh_" + subtask.name,
          .version = 1.0,
          .data = data_of(subtask.name),
          .harness_items = subtask.items,
          .description = subtask.description,
          .prompt = PromptTemplate("Q: {{input}}\nA:"),
          .choices = fixed(subtask.choices),
          .target = target("{{target}}"),
          .metrics = {choice_metric("acc_norm")},
          .shots = {ShotRule::Sampler::kFirst, false, 3, false},
          .gold_may_be_absent = true,
          .to_0_4_1 = [](Task& task) {
            throw UserError(
                "task {}: version 0.4.1 of lm-evaluation-harness had no such task; "
                "leave out --compat 0.4.1",
                task.name);
          }};
}

}  // namespace

std::vector<Task> bbh_tasks() {
  std::vector<Task> tasks;
  for (const auto& subtask : subtasks()) {
    tasks.push_back(written(subtask));
  }
  for (const auto& subtask : subtasks()) {
    if (!subtask.choices.empty()) {
      tasks.push_back(chosen(subtask));
    }
  }
  return tasks;
}

}  // namespace moe::eval
