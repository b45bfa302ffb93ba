#pragma once
// What task files (task_file.h) call by name: readers, metrics, and the few prompts, choices and
// right answers that a template cannot say. A name that a table lacks is a mistake in one of our
// own files.

#include <string>

#include "core/base/json.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {

// "arc", "piqa", ..: documents.h; "fields": the authors' files have the fields of `schema`.
DocumentReader reader_named(const std::string& name, const Schema& schema);
std::function<std::string(const OrderedJson&)> prompt_named(const std::string& name);
std::function<std::vector<std::string>(const OrderedJson&)> choices_named(const std::string& name);
std::function<Target(const OrderedJson&)> target_named(const std::string& name);
std::function<void(OrderedJson&)> process_named(const std::string& name);

// "option", "number", "brackets", "sorted_words" (filters.h), or {"words": [..]}, or {"phrases":
// [["value", "phrase", ..], ..]}: what is looked for in a generated answer.
std::function<std::string(const std::string&, const OrderedJson&)> extraction(const Json& setting);

// Metrics of the harness' own tasks: those of choice_metric, and "macro_f1", "mc2", "record_f1",
// "record_em".
Metric metric_named(const std::string& name);

}  // namespace moe::eval
