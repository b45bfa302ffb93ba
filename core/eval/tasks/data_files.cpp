#include "core/eval/tasks/data_files.h"

#include "core/base/error.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

// The file that `pattern` names in `folder`. Where '*' stands, the name without anything in its
// place wins, else the only match. Empty when there is none.
fs::path find_file(const fs::path& folder, const std::string& pattern, const std::string& task) {
  const size_t star = pattern.find('*');
  if (star == std::string::npos) {
    return fs::is_regular_file(folder / pattern) ? folder / pattern : fs::path();
  }
  const fs::path head = folder / pattern.substr(0, star);
  const std::string begin = head.filename().string();
  const std::string end = pattern.substr(star + 1);
  if (!fs::is_directory(head.parent_path())) {
    return {};
  }
  std::vector<fs::path> matches;
  for (const auto& entry : fs::directory_iterator(head.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name == begin + end) {
      return entry.path();
    }
    if (name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end)) {
      matches.push_back(entry.path());
    }
  }
  if (matches.size() > 1) {
    throw UserError("{}: {} files match {} under {}; keep one", task, matches.size(), pattern,
                    folder.string());
  }
  return matches.empty() ? fs::path() : matches.front();
}

std::vector<fs::path> exported_paths(const Task& task, const Split& split) {
  if (task.data.schema.empty()) {
    return {};
  }
  return {fs::path(task.name) / (split.name + ".jsonl"),
          fs::path(task.name) / (split.name + ".csv")};
}

// All files of a form, or none; one that is missing beside others is an error of its own, unless
// what is there is an export by the same name.
Files find_form(const SplitFiles& form, const Task& task, const Split& split,
                const fs::path& data) {
  Files files;
  std::string missing;
  for (const auto& pattern : form.files) {
    if (const fs::path file = find_file(data, pattern, task.name); !file.empty()) {
      files.push_back(file);
    } else {
      missing = (data / pattern).string();
    }
  }
  if (files.empty() || missing.empty()) {
    return files;
  }
  for (const auto& path : exported_paths(task, split)) {
    if (files.front() == data / path) {
      return {};
    }
  }
  throw UserError("task {}: {} is not there, beside {}; put it there or change --data", task.name,
                  missing, files.front().string());
}

FoundFiles found_in(const Files& files, FirstDocuments first) {
  return {files, std::move(first.documents), first.total};
}

FoundFiles read_any(const Task& task, const Split& split, const fs::path& data, int64_t limit) {
  for (const auto& form : split.forms) {
    if (const Files files = find_form(form, task, split, data); !files.empty()) {
      return found_in(files, form.read(files, limit));
    }
  }
  for (const auto& path : exported_paths(task, split)) {
    if (fs::is_regular_file(data / path)) {
      return found_in({data / path}, read_exported(data / path, task.data.schema, limit));
    }
  }
  throw UserError(
      "task {}: {} is not there ({}); it comes from {}, or exported from the Hub's {}; put it "
      "there or change --data",
      task.name,
      split.forms.empty() ? (data / exported_paths(task, split).front()).string()
                          : (data / split.forms.front().files.front()).string(),
      "expected under --data: " + expected_paths(task, split), task.data.origin, task.data.hub);
}

FoundFiles look_for_documents(const Task& task, const Split& split, const fs::path& data,
                              int64_t limit) {
  if (task.is_own) {
    const Files files(split.forms.at(0).files.begin(), split.forms.at(0).files.end());
    return found_in(files, split.forms[0].read(files, limit));
  }
  if (data.empty()) {
    throw UserError("task {} needs --data DIR, the folder that holds {}", task.name,
                    expected_paths(task, split));
  }
  if (!fs::is_directory(data)) {
    throw UserError("--data {}: not a folder", data.string());
  }
  return read_any(task, split, data, limit);
}

}  // namespace

FoundFiles find_documents(const Task& task, const Split& split, const fs::path& data,
                          int64_t limit) {
  FoundFiles found = look_for_documents(task, split, data, limit);
  if (found.total == 0) {
    throw UserError("{}: no questions in it", found.files.front().string());
  }
  return found;
}

std::string expected_paths(const Task& task, const Split& split) {
  std::string paths;
  for (const auto& form : split.forms) {
    paths += fmt::format("{}{}", paths.empty() ? "" : ", or ", fmt::join(form.files, " and "));
  }
  if (const auto exported = exported_paths(task, split); !exported.empty()) {
    paths += fmt::format("{}{} or .csv", paths.empty() ? "" : ", or ", exported.front().string());
  }
  return paths;
}

}  // namespace moe::eval
