#pragma once
// A benchmark of one's own, described in a JSON or TOML file in the words of the harness's task
// files:
//
//   task = "capitals"                       # its name; default: the file's
//   data = "capitals.jsonl"                 # JSON lines, or CSV with a header; beside this file
//   fewshot_data = "capitals_train.jsonl"   # what --num-fewshot draws from
//   output_type = "multiple_choice"         # or "loglikelihood", "generate_until"
//   description = ""                        # before everything
//   doc_to_text = "Question: {{question}}\nAnswer:"
//   doc_to_choice = ["{{a}}", "{{b}}"]      # a template a choice, or "{{choices}}" for a list
//   doc_to_target = "{{label}}"             # an index from 0, or the text of a choice
//   metric_list = ["acc", "acc_norm"]
//   target_delimiter = " "                  # between prompt and choice; a loglikelihood's target
//                                           # brings its own space
//   fewshot_delimiter = "\n\n"              # after an example; num_fewshot = 0,
//                                           # fewshot_sampler = "default" or "first_n"
//   until = ["\n"]                          # generate_until: where the answer ends;
//   max_gen_toks = 256                      # ignore_case = false (and marks, as BBH does)
//   version = 1.0

#include <filesystem>

#include "core/eval/tasks/task.h"

namespace moe::eval {

// UserError: an unknown or missing key, a template that is broken, an unknown metric.
Task read_user_task(const std::filesystem::path& file);

}  // namespace moe::eval
