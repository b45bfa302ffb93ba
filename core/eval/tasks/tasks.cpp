// Documents become questions here, by the words of their task's entry.

#include "core/eval/tasks/tasks.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/lines.h"
#include "core/eval/tasks/few_shot.h"
#include "core/eval/tasks/known_tasks.h"
#include "core/eval/tasks/task_file.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& task : known_tasks()) {
    known.push_back(task.name);
  }
  for (const auto& group : known_groups()) {
    known.push_back(group.name);
  }
  const std::string near = nearest_name(name, known);
  throw UserError(
      "unknown task '{}'{}; moe eval --list shows all; or a file of your own: TASK.json, TASK.toml "
      "or QUIZ.jsonl",
      printable(name), near.empty() ? "" : ", did you mean '" + near + "'?");
}

Task task_named(const std::string& name, Compat compat) {
  if (name.ends_with(".jsonl")) {
    return read_quiz_task(name);
  }
  if (name.ends_with(".json") || name.ends_with(".toml")) {
    return read_own_task(name);
  }
  for (const auto& task : known_tasks(compat)) {
    if (task.name == name) {
      if (compat == Compat::k041 && !task.not_in_0_4_1.empty()) {
        throw UserError("task {}: {}; leave out --compat 0.4.1", name, task.not_in_0_4_1);
      }
      return task;
    }
  }
  fail_unknown(name);
}

// The tasks that `names` stand for, each once.
std::vector<Task> tasks_named(const std::vector<std::string>& names, Compat compat) {
  std::vector<Task> tasks;
  std::set<std::string> seen, given;
  for (const auto& name : names) {
    const Group* group = find_group(name);
    for (const auto& member :
         group != nullptr ? tasks_of(*group) : std::vector<std::string>{name}) {
      Task task = task_named(member, compat);
      if (group == nullptr && !given.insert(task.name).second) {
        throw UserError("--tasks names '{}' twice; name it once", printable(task.name));
      }
      if (seen.insert(task.name).second) {
        tasks.push_back(std::move(task));
      }
    }
  }
  return tasks;
}

// What statistics call a file: as the user gave it, or where it lies under --data.
std::string file_source(const fs::path& file, const fs::path& data) {
  const fs::path under = data.empty() ? file : file.lexically_relative(data);
  return under.empty() || *under.begin() == ".." ? file.string() : under.string();
}

int64_t find_gold(const Task& task, const Target& target, const Question& question) {
  const auto count = static_cast<int64_t>(question.choices.size());
  if (target.index) {
    if (*target.index >= 0 && *target.index < count) {
      return *target.index;
    }
    if (!task.gold_may_be_absent) {
      throw UserError("the right choice is number {} (from 0), there are {}", *target.index, count);
    }
    return -1;
  }
  const auto found = std::find(question.choices.begin(), question.choices.end(), target.text);
  if (found == question.choices.end() && !task.gold_may_be_absent) {
    throw UserError("the right answer '{}' is none of the choices {}", printable(target.text),
                    printable(Json(question.choices).dump()));
  }
  return found == question.choices.end() ? -1 : found - question.choices.begin();
}

void add_choices(const Task& task, const OrderedJson& document, Question& question) {
  const Target target = task.target(document);
  question.target =
      target.index && target.text.empty() ? std::to_string(*target.index) : target.text;
  question.delimiter = task.delimiter;
  if (task.output == OutputType::kLogLikelihood) {
    question.delimiter = "";  // the target brings its own space; only examples are delimited
    question.choices = {question.target};
  } else if (task.output == OutputType::kMultipleChoice) {
    question.choices = task.choices(document);
    const size_t least = task.gold_may_be_absent ? 1 : 2;
    if (question.choices.size() < least) {
      throw UserError("{} in this question, at least {} are needed",
                      question.choices.empty() ? "no choices" : "one choice", least);
    }
    question.gold = find_gold(task, target, question);
  }
}

Question make_question(const Task& task, Document& document, const std::string& before,
                       const std::string& file) {
  Question question;
  question.where = document.where;
  question.source = source_of(document.fields, file);
  try {
    add_choices(task, document.fields, question);
    if (task.choices_are_contexts) {
      for (const auto& choice : question.choices) {
        question.contexts.push_back(before + choice);
      }
      question.context = question.contexts.front();
    } else {
      question.context = before + task.prompt(document.fields);
    }
  } catch (const UserError& error) {
    throw UserError("{}: {}", document.where, error.what());
  }
  question.fields = std::move(document.fields);
  return question;
}

int64_t shots_of(const Task& task, const TaskOptions& options, LoadedTask& loaded) {
  if (!options.shots || *options.shots == task.shots.count) {
    return task.shots.count;
  }
  if (task.shots.fixed) {
    loaded.notes.push_back(
        fmt::format("{}: its definition has no examples of this kind, --num-fewshot {} changes "
                    "nothing there",
                    task.name, *options.shots));
    return task.shots.count;
  }
  return *options.shots;
}

std::vector<Document> read_split(const Task& task, const Split& split, const fs::path& data) {
  FoundFiles found = find_documents(task, split, data);
  for (auto& document : found.documents) {
    if (task.data.process) {
      task.data.process(document.fields);
    }
  }
  return std::move(found.documents);
}

LoadedTask load_task(const Task& task, const fs::path& data, std::optional<int64_t> limit,
                     const TaskOptions& options) {
  FoundFiles found = find_documents(task, task.data.scored, data, limit.value_or(kAllDocuments));
  LoadedTask loaded{task, {}, found.total};
  loaded.shots = shots_of(task, options, loaded);
  const std::vector<Document> pool =
      loaded.shots > 0 ? read_split(task, task.data.shots, data) : std::vector<Document>();
  ShotSampler sampler(task, pool, loaded.shots);
  const std::string source = file_source(found.files.front(), data);
  int64_t absent = 0;
  for (auto& document : found.documents) {
    if (task.data.process) {
      task.data.process(document.fields);
    }
    const std::string before = sampler.before(document.fields);
    loaded.questions.push_back(make_question(task, document, before, source));
    absent += loaded.questions.back().gold < 0 ? 1 : 0;
  }
  if (absent > 0 && task.name != "record") {
    loaded.notes.push_back(fmt::format(
        "{}: in {} question{} the right answer is none of the choices, which counts as wrong",
        task.name, absent, absent == 1 ? "" : "s"));
  }
  return loaded;
}

}  // namespace

std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names, const fs::path& data,
                                   std::optional<int64_t> limit, const TaskOptions& options) {
  std::vector<LoadedTask> loaded;
  for (const auto& task : tasks_named(names, options.compat)) {
    loaded.push_back(load_task(task, data, limit, options));
  }
  return loaded;
}

std::vector<std::string> groups_among(const std::vector<std::string>& names) {
  std::vector<std::string> groups;
  for (const auto& name : names) {
    if (const Group* group = find_group(name)) {
      groups.push_back(name);
      for (const auto& inner : groups_among(group->members)) {
        groups.push_back(inner);
      }
    }
  }
  std::vector<std::string> once;
  for (const auto& group : groups) {
    if (std::find(once.begin(), once.end(), group) == once.end()) {
      once.push_back(group);
    }
  }
  return once;
}

std::string task_list() {
  std::string text =
      fmt::format("tasks (prompts follow lm-evaluation-harness {})\n", kHarnessVersion);
  for (const auto& task : known_tasks()) {
    text += fmt::format(
        "{}  {}  {}\n    files under --data: {}\n    from {}; or exported from {}\n", task.name,
        task.version ? fmt::format("version {:.1f}", *task.version) : "no version",
        to_string(task.output), expected_paths(task, task.data.scored), task.data.origin,
        task.data.hub);
    if (!task.shots.fixed) {
      text += fmt::format("    examples for --num-fewshot: {}\n",
                          expected_paths(task, task.data.shots));
    }
  }
  text += "groups\n";
  for (const auto& group : known_groups()) {
    text += fmt::format("{}  {} tasks: {}\n", group.name, tasks_of(group).size(), group.about);
  }
  return text;
}

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
