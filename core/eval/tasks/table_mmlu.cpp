// MMLU: 57 subjects in four groups, one definition.
#include "core/eval/formats/text.h"
#include "core/eval/tasks/declare.h"
#include "core/eval/tasks/groups.h"

namespace moe::eval {

const std::vector<SubjectArea>& mmlu_areas() {
  static const std::vector<SubjectArea> areas = {
      {"stem",
       split_words(
           "abstract_algebra anatomy astronomy college_biology college_chemistry "
           "college_computer_science college_mathematics college_physics computer_security "
           "conceptual_physics electrical_engineering elementary_mathematics high_school_biology "
           "high_school_chemistry high_school_computer_science high_school_mathematics "
           "high_school_physics high_school_statistics machine_learning")},
      {"other",
       split_words("business_ethics clinical_knowledge college_medicine global_facts human_aging "
                   "management marketing medical_genetics miscellaneous nutrition "
                   "professional_accounting professional_medicine virology")},
      {"social_sciences",
       split_words(
           "econometrics high_school_geography high_school_government_and_politics "
           "high_school_macroeconomics high_school_microeconomics high_school_psychology "
           "human_sexuality professional_psychology public_relations security_studies sociology "
           "us_foreign_policy")},
      {"humanities",
       split_words("formal_logic high_school_european_history high_school_us_history "
                   "high_school_world_history international_law jurisprudence logical_fallacies "
                   "moral_disputes moral_scenarios philosophy prehistory professional_law "
                   "world_religions")},
  };
  return areas;
}

std::vector<Task> mmlu_tasks() {
  using Kind = Field::Kind;
  std::vector<Task> tasks;
  for (const auto& area : mmlu_areas()) {
    for (const auto& subject : area.subjects) {
      const auto read = [subject](const Files& files) { return read_mmlu(files, subject); };
      tasks.push_back(
          {.name = "mmlu_" + subject,
           .alias = subject,
           .version = 1.0,
           .data = {.hub = "cais/mmlu " + subject,
                    .origin = "the data archive of github.com/hendrycks/test",
                    .schema = {{"question"},
                               {"subject", Kind::kAny},
                               {"choices", Kind::kTexts},
                               {"answer", Kind::kLabel, {"A", "B", "C", "D"}}},
                    .scored = {"test", {{{"mmlu/test/" + subject + "_test.csv"}, read}}},
                    .shots = {"dev", {{{"mmlu/dev/" + subject + "_dev.csv"}, read}}}},
           .description = "The following are multiple choice questions (with answers) about " +
                          replace_all(subject, "_", " ") + ".\n\n",
           .prompt = PromptTemplate("{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\n"
                                    "C. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"),
           .choices = fixed({"A", "B", "C", "D"}),
           .target = target("{{answer}}"),
           .metrics = {choice_metric("acc")},
           .shots = {ShotRule::Sampler::kFirst, false, 0, false},
           .to_0_4_1 = [](Task& task) { task.version = 0.0; }});
    }
  }
  return tasks;
}

}  // namespace moe::eval
