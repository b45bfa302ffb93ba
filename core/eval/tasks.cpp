// Prompts follow lm-evaluation-harness to the letter (versions in the table; read from 0.4.13). A
// new multiple-choice benchmark is a reader (formats.h) and one line here.
#include "core/eval/tasks.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/lines.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

using Strings = std::vector<std::string>;

std::string text(const OrderedJson& fields, const char* key) {
  return fields.at(key).get<std::string>();
}

// Prompts.

std::string ask(const std::string& question) { return "Question: " + question + "\nAnswer:"; }

std::string ask_question(const OrderedJson& fields) { return ask(text(fields, "question")); }

std::string ask_goal(const OrderedJson& fields) { return ask(text(fields, "goal")); }

std::string query(const OrderedJson& fields) { return text(fields, "query"); }

std::string passage_and_options(const OrderedJson& fields) {
  std::string prompt = "Passage: " + text(fields, "context") +
                       "\nQuestion: " + text(fields, "question") + "\nChoices:\n";
  char letter = 'A';
  for (const auto& option : fields.at("options")) {
    prompt += fmt::format("{}. {}\n", letter++, option.get<std::string>());
  }
  return prompt + "Answer:";
}

std::string ask_quiz(const OrderedJson& fields) {
  return fields.contains("context") ? text(fields, "context") : ask_question(fields);
}

// Choices.

Strings options(const OrderedJson& fields) { return fields.at("options").get<Strings>(); }

Strings choice_texts(const OrderedJson& fields) {
  return fields.at("choices").at("text").get<Strings>();
}

Strings choices(const OrderedJson& fields) { return fields.at("choices").get<Strings>(); }

Strings solutions(const OrderedJson& fields) {
  return {text(fields, "sol1"), text(fields, "sol2")};
}

// Gold.

int64_t letter(const OrderedJson& fields) { return text(fields, "label")[0] - 'a'; }

int64_t answer_key(const OrderedJson& fields) {
  const auto labels = fields.at("choices").at("label").get<Strings>();
  return std::find(labels.begin(), labels.end(), text(fields, "answerKey")) - labels.begin();
}

int64_t label(const OrderedJson& fields) { return fields.at("label").get<int64_t>(); }

int64_t gold(const OrderedJson& fields) { return fields.at("gold").get<int64_t>(); }

const Strings kBoth = {"acc", "acc_norm"};

Task quiz_task(const fs::path& file) {
  return {file.stem().string(), {}, 0, read_quiz, ask_quiz, choices, gold, kBoth, std::nullopt};
}

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
    throw UserError(
        "{}: {} files match {} under {}; keep one", task, matches.size(), pattern, folder.string());
  }
  return matches.empty() ? fs::path() : matches.front();
}

Files find_files(const Task& task, const fs::path& data) {
  if (data.empty()) {
    throw UserError("task {} needs --data DIR, the folder that holds {}",
                    task.name,
                    fmt::join(task.files, " and "));
  }
  if (!fs::is_directory(data)) {
    throw UserError("--data {}: not a folder", data.string());
  }
  Files files;
  for (const auto& pattern : task.files) {
    files.push_back(find_file(data, pattern, task.name));
    if (files.back().empty()) {
      throw UserError(
          "task {}: {} is not there; it is the benchmark's own file, put it there or change --data",
          task.name,
          (data / pattern).string());
    }
  }
  return files;
}

Task task_named(const std::string& name) {
  if (name.ends_with(".jsonl")) {
    return quiz_task(name);
  }
  Strings known;
  for (const auto& task : known_tasks()) {
    if (task.name == name) {
      return task;
    }
    known.push_back(task.name);
  }
  const std::string near = nearest_name(name, known);
  throw UserError("unknown task '{}'{}; known: {}, or a quiz of your own: FILE.jsonl",
                  printable(name),
                  near.empty() ? "" : ", did you mean '" + near + "'?",
                  fmt::join(known, ", "));
}

// What statistics call a file: as the user gave it, or where it lies under --data.
std::string file_source(const fs::path& file, const fs::path& data) {
  const fs::path under = data.empty() ? file : file.lexically_relative(data);
  return under.empty() || *under.begin() == ".." ? file.string() : under.string();
}

Question make_question(const Task& task, Document& document, const std::string& file) {
  Question question{{},
                    task.prompt(document.fields),
                    task.choices(document.fields),
                    task.gold(document.fields),
                    document.where,
                    source_of(document.fields, file)};
  const auto count = static_cast<int64_t>(question.choices.size());
  if (count < 2) {
    throw UserError("{}: {} in this question, at least 2 choices are needed",
                    document.where,
                    count == 0 ? "no choices" : "one choice");
  }
  MOE_CHECK(question.gold >= 0 && question.gold < count, "{} of {}", question.gold, count);
  question.fields = std::move(document.fields);
  return question;
}

}  // namespace

const std::vector<Task>& known_tasks() {
  static const std::vector<Task> tasks = {
      {"logiqa",
       {"logiqa/Test.txt"},
       651,
       read_logiqa,
       passage_and_options,
       options,
       letter,
       kBoth,
       1.0},
      {"arc_easy",
       {"arc/ARC-Easy-Test.jsonl"},
       2376,
       read_arc,
       ask_question,
       choice_texts,
       answer_key,
       kBoth,
       1.0},
      {"arc_challenge",
       {"arc/ARC-Challenge-Test.jsonl"},
       1172,
       read_arc,
       ask_question,
       choice_texts,
       answer_key,
       kBoth,
       1.0},
      {"piqa",
       {"piqa/valid.jsonl", "piqa/valid-labels.lst"},
       1838,
       read_piqa,
       ask_goal,
       solutions,
       label,
       kBoth,
       1.0},
      {"hellaswag",
       {"hellaswag/hellaswag_val*.jsonl"},
       10042,
       read_hellaswag,
       query,
       choices,
       gold,
       kBoth,
       1.0},
  };
  return tasks;
}

std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names,
                                   const fs::path& data,
                                   std::optional<int64_t> limit) {
  std::vector<LoadedTask> loaded;
  std::set<std::string> seen;
  for (const auto& name : names) {
    const Task task = task_named(name);
    if (!seen.insert(task.name).second) {
      throw UserError("--tasks names '{}' twice; name it once", printable(task.name));
    }
    const Files files = task.files.empty() ? Files{name} : find_files(task, data);
    std::vector<Document> documents = task.read(files);
    if (documents.empty()) {
      throw UserError("{}: no questions in it", files.front().string());
    }
    const auto total = static_cast<int64_t>(documents.size());
    documents.resize(static_cast<size_t>(std::min(total, limit.value_or(total))));
    loaded.push_back({task, {}, total});
    for (auto& document : documents) {
      loaded.back().questions.push_back(
          make_question(task, document, file_source(files.front(), data)));
    }
  }
  return loaded;
}

}  // namespace moe::eval
