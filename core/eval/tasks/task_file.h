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
//
// The tasks that we know are such files too (known/*.toml, known_tasks.h), with a few keys more:
//
//   dataset_path, origin      # the Hub's data set, and where the authors' own files come from
//   fields                    # of the Hub's data set: "question", "idx: any", "label: no | yes"
//   reader, process_docs      # names of functions.h; {function = "copa"} in place of a template
//   too data = {split, files}     # under --data: each entry of files is one way to have them, "a +
//   b"
//                             # a way that has two files
//   documents                 # that the harness scores
//   extract                   # what exact_match,flexible-extract looks for in a generated answer
//   in_0_4_1 = {..}           # what version 0.4.1 of the harness had otherwise
//   not_in_0_4_1 = "why"      # it had no such task
//   alias, fewshot_excludes_question, fewshot_fixed, gold_may_be_absent, choices_are_contexts:
//   task.h

#include <filesystem>

#include "core/base/json.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

// A user's file. UserError: an unknown or missing key, a template that is broken, an unknown
// metric.
Task read_own_task(const std::filesystem::path& file);

// The task of a quiz (read_quiz), named by its file.
Task read_quiz_task(const std::filesystem::path& file);

// One task of known/, with its variables filled in, as that version of the harness had it.
Task make_known_task(Json settings, Compat compat);

}  // namespace moe::eval
