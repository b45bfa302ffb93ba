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
};

// The documents of `split`, from the first form that is there: the authors' files, then the Hub's
// export TASK/SPLIT.jsonl or .csv. UserError: none is there (all places are named); no documents.
FoundFiles find_documents(const Task& task, const Split& split, const std::filesystem::path& data);

// "logiqa/Test.txt, or logiqa/test.jsonl or .csv".
std::string expected_paths(const Task& task, const Split& split);

}  // namespace moe::eval
