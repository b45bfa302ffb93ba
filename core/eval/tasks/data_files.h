#pragma once
// Where the documents of a task lie under --data.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/tasks/task.h"

namespace moe::eval {

struct FoundFiles {
  Files files;
  std::vector<Document> documents;
  int64_t total = 0;  // in the files; those beyond the limit were only counted
};

// The first `limit` documents of `split`, from the first form that is there: the authors' files,
// then the Hub's export TASK/SPLIT.jsonl or .csv. UserError: none is there (all places are named);
// no documents.
FoundFiles find_documents(const Task& task, const Split& split, const std::filesystem::path& data,
                          int64_t limit = kAllDocuments);

// "logiqa/Test.txt, or logiqa/test.jsonl or .csv".
std::string expected_paths(const Task& task, const Split& split);

}  // namespace moe::eval
