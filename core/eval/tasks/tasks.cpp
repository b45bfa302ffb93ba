#include "core/eval/tasks/tasks.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

// Returns the file in `folder` that matches `pattern`, or an empty path if none does. A file in
// which '*' matches nothing takes precedence. Without such a file, throws UserError if several
// files match.
fs::path find_plain_file(const fs::path& folder, const std::string& pattern,
                         const std::string& task) {
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
  USER_ERROR_IF(matches.size() > 1, "{}: {} files match {} under {}; keep one", task,
                matches.size(), pattern, folder.string());
  return matches.empty() ? fs::path() : matches.front();
}

// Returns the file of find_plain_file(), or a packed one if there is none.
fs::path find_file(const fs::path& folder, const std::string& pattern, const std::string& task) {
  fs::path file;
  for (const char* packing : {"", ".gz", ".zst"}) {
    file = file.empty() ? find_plain_file(folder, pattern + packing, task) : file;
  }
  return file;
}

// Returns the possible paths of a split exported from the Hub, as patterns of find_file():
// TASK/SPLIT.jsonl, .csv and .parquet; the Parquet files of a copy of the Hub's data set,
// DATASET/CONFIG/SPLIT-*; and those of the Hub's conversion, DATASET/CONFIG/SPLIT/0000.parquet.
// DATASET is the name of the data set or of the task.
std::vector<std::string> exported_paths(const Task& task, const Split& split) {
  if (task.data.schema.empty()) {
    return {};
  }
  std::vector<std::string> paths;
  for (const char* extension : {".jsonl", ".csv", ".parquet"}) {
    paths.push_back(task.name + "/" + split.name + extension);
  }
  const size_t slash = task.data.hub.find('/'), space = task.data.hub.find(' ');
  std::vector<std::string> configs = {"data/", "default/", ""};
  if (space != std::string::npos && !task.data.hub.ends_with(" default")) {
    configs = {task.data.hub.substr(space + 1) + "/"};
  }
  for (const auto& name : {task.data.hub.substr(slash + 1, space - slash - 1), task.name}) {
    for (const auto& config : configs) {
      for (const char* rest : {"-00000-of-00001*.parquet", "/0000.parquet"}) {
        paths.push_back(fmt::format("{}/{}{}{}", name, config, split.name, rest));
      }
    }
  }
  return paths;
}

// Returns the main paths as text: "logiqa/Test.txt, or logiqa/test.jsonl, .csv or .parquet, or
// logiqa/data/test-00000-of-00001*.parquet".
std::string expected_paths(const Task& task, const Split& split) {
  std::vector<std::string> paths;
  for (const auto& layout : split.layouts) {
    paths.push_back(fmt::format("{}", fmt::join(layout.files, " and ")));
  }
  if (const auto exported = exported_paths(task, split); !exported.empty()) {
    paths.push_back(exported[0] + ", .csv or .parquet");
    paths.push_back(exported[3]);
  }
  return fmt::format("{}", fmt::join(paths, ", or "));
}

// Returns the files of a layout; empty if none exists. Throws UserError if only some exist, unless
// the first of these is a path of an export: then returns an empty list, so that find_split() reads
// the export.
std::vector<std::string> find_layout(const FileLayout& layout, const Task& task, const Split& split,
                                     const fs::path& data) {
  std::vector<std::string> files;
  std::string missing;
  for (const auto& pattern : layout.files) {
    if (const fs::path file = find_file(data, pattern, task.name); !file.empty()) {
      files.push_back(file.string());
    } else {
      missing = (data / pattern).string();
    }
  }
  if (files.empty() || missing.empty()) {
    return files;
  }
  for (const auto& path : exported_paths(task, split)) {
    if (fs::path(files.front()) == find_file(data, path, task.name)) {
      return {};
    }
  }
  throw UserError("task {}: {} exists, but {} does not; add it or change --data", task.name,
                  files.front(), missing);
}

// Returns the files of the first layout of `split` that exists, or its Hub export, with the reader.
// Throws UserError if there is none.
FileLayout find_split(const Task& task, const Split& split, const fs::path& data) {
  if (task.is_user_defined) {
    return split.layouts.at(0);
  }
  USER_ERROR_IF(data.empty(), "task {} needs --data DIR, the folder that contains {}", task.name,
                expected_paths(task, split));
  USER_ERROR_IF(!fs::is_directory(data), "--data {}: not a folder", data.string());
  for (const auto& layout : split.layouts) {
    if (auto files = find_layout(layout, task, split, data); !files.empty()) {
      return {std::move(files), layout.read};
    }
  }
  for (const auto& path : exported_paths(task, split)) {
    if (const fs::path file = find_file(data, path, task.name); !file.empty()) {
      return {{file.string()}, find_document_reader("fields", task.data.schema)};
    }
  }
  throw UserError(
      "task {}: {} not found ({}); download it from {}, or export {} from the Hub, or change "
      "--data",
      task.name,
      (data / (split.layouts.empty() ? exported_paths(task, split) : split.layouts[0].files)[0])
          .string(),
      "expected under --data: " + expected_paths(task, split), task.data.origin, task.data.hub);
}

FirstDocuments read_split(const Task& task, const FileLayout& layout, int64_t limit) {
  FirstDocuments first = layout.read({layout.files.begin(), layout.files.end()}, limit);
  USER_ERROR_IF(first.total == 0, "{}: the file has no questions", layout.files.front());
  if (task.data.process) {
    std::ranges::for_each(first.documents, task.data.process, &Document::fields);
  }
  return first;
}

// Returns make(). If it throws UserError, adds the document's file and line to the message.
template <typename Make>
auto with_location(const Document& document, const Make& make) {
  try {
    return make();
  } catch (const UserError& error) {
    throw UserError("{}: {}", document.where, error.what());
  }
}

int64_t find_gold(const Task& task, const Target& target, const Question& question) {
  const auto count = static_cast<int64_t>(question.choices.size());
  if (target.index) {
    if (*target.index >= 0 && *target.index < count) {
      return *target.index;
    }
    USER_ERROR_IF(!task.gold_may_be_absent,
                  "the right choice is number {} (from 0), but there are only {} choices",
                  *target.index, count);
    return -1;
  }
  const auto found = std::ranges::find(question.choices, target.text);
  USER_ERROR_IF(found == question.choices.end() && !task.gold_may_be_absent,
                "the right answer '{}' is not one of the choices {}", printable(target.text),
                printable(Json(question.choices).dump()));
  return found == question.choices.end() ? -1 : found - question.choices.begin();
}

// Returns true if a delimiter is inserted between `left` and `right`: neither is empty or has white
// space at the boundary.
bool is_delimited(const std::string& left, const std::string& right) {
  return !left.empty() && !right.empty() && right_strip(left).size() == left.size() &&
         left_strip(right).size() == right.size();
}

std::string join_texts(const std::string& left, const std::string& right,
                       const std::string& delimiter) {
  return left + (is_delimited(left, right) ? delimiter : "") + right;
}

// Returns the messages of a question and its answer. If `answer` is empty, the model must answer.
Messages make_turn(const Task& task, const OrderedJson& document, const std::string& question,
                   const std::string& delimiter, const std::string& answer) {
  const std::string begin = task.answer_begin ? task.answer_begin(document) : "";
  const bool delimits = begin.empty() ? !answer.empty() : is_delimited(question, begin);
  Messages turn = {{"user", question, delimits ? delimiter : ""}};
  if (!answer.empty() || !begin.empty()) {
    turn.push_back(
        {"assistant", join_texts(begin, answer, " "), answer.empty() ? "" : task.shot_delimiter});
  }
  return turn;
}

std::string render(Messages messages, const TaskOptions& options) {
  if (options.render_chat && !options.examples_as_turns) {
    const auto begin = messages.begin() + (messages.front().role == "system" ? 1 : 0);
    const auto end = messages.end() - (messages.back().role == "assistant" ? 1 : 0);
    std::prev(end)->delimiter = "";
    *begin = {"user", join(Messages(begin, end)), ""};
    messages.erase(begin + 1, end);
  }
  return options.render_chat ? options.render_chat(messages) : join(messages);
}

void add_choices(const Task& task, const OrderedJson& document, bool is_chat, Question& question) {
  const Target target = task.target(document);
  question.target =
      target.index && target.text.empty() ? std::to_string(*target.index) : target.text;
  question.delimiter =
      is_chat && !is_delimited(task.gen_prefix, "x") ? "" : task.delimiter;  // as in the harness
  if (task.output == OutputType::kLogLikelihood) {
    question.delimiter = "";  // the target contains its own space
    question.choices = {question.target};
  } else if (task.output == OutputType::kMultipleChoice) {
    question.choices = task.choices(document);
    const size_t min_choices = task.gold_may_be_absent ? 1 : 2;
    USER_ERROR_IF(question.choices.size() < min_choices,
                  "this question has {}; at least {} are needed",
                  question.choices.empty() ? "no choices" : "one choice", min_choices);
    question.gold = find_gold(task, target, question);
  }
}

// `prefix`: ShotSampler::prefix(document).
Question make_question(const Task& task, const OrderedJson& document, const Messages& prefix,
                       const TaskOptions& options) {
  Question question;
  add_choices(task, document, options.render_chat != nullptr, question);
  const auto context = [&](const std::string& text, const std::string& delimiter) {
    Messages messages = prefix;
    std::ranges::move(make_turn(task, document, text, delimiter, ""), std::back_inserter(messages));
    return render(std::move(messages), options);
  };
  if (task.choices_are_contexts) {
    for (const auto& choice : question.choices) {
      question.contexts.push_back(context(choice, ""));
    }
    question.context = question.contexts.front();
  } else {
    question.context = context(task.prompt(document), task.delimiter);
  }
  return question;
}

// Returns the number of few-shot examples: --num-fewshot, unless the task's number is fixed.
int64_t num_shots(const Task& task, const TaskOptions& options, std::vector<std::string>& notes) {
  if (!options.shots || *options.shots == task.shots.count) {
    return task.shots.count;
  }
  if (task.shots.fixed) {
    notes.push_back(
        fmt::format("{}: --num-fewshot {} ignored: the task has a fixed number of examples",
                    task.name, *options.shots));
    return task.shots.count;
  }
  return *options.shots;
}

// Returns the name of a file in routing statistics: relative to --data if it is in that folder,
// else as given.
std::string source_name(const fs::path& file, const fs::path& data) {
  const fs::path relative = data.empty() ? file : file.lexically_relative(data);
  return relative.empty() || *relative.begin() == ".." ? file.string() : relative.string();
}

LoadedTask load_task(const Task& task, const fs::path& data, std::optional<int64_t> limit,
                     const TaskOptions& options) {
  const FileLayout files = find_split(task, task.data.scored, data);
  FirstDocuments scored = read_split(task, files, limit.value_or(kAllDocuments));
  LoadedTask loaded{task, {}, scored.total};
  loaded.shots = num_shots(task, options, loaded.notes);
  loaded.files = {files.files.begin(), files.files.end()};
  std::vector<Document> pool;
  if (loaded.shots > 0) {
    const FileLayout examples = find_split(task, task.data.shots, data);
    pool = read_split(task, examples, kAllDocuments).documents;
    loaded.files.insert(loaded.files.end(), examples.files.begin(), examples.files.end());
  }
  Task prompted = task;
  prompted.description =
      join_texts(options.system_instruction, task.description, task.shot_delimiter);
  ShotSampler sampler(prompted, pool, loaded.shots);
  const std::string source = source_name(files.files.front(), data);
  int64_t absent = 0;
  for (auto& document : scored.documents) {
    const Messages prefix = sampler.prefix(document.fields);
    Question question = with_location(
        document, [&] { return make_question(task, document.fields, prefix, options); });
    absent += question.gold < 0 ? 1 : 0;
    question.source = get_source(document.fields, source);
    question.where = document.where;
    question.fields = std::move(document.fields);
    loaded.questions.push_back(std::move(question));
  }
  if (absent > 0 && task.name != "record") {
    loaded.notes.push_back(fmt::format(
        "{}: in {} question{} the right answer is not one of the choices; counted as wrong",
        task.name, absent, absent == 1 ? "" : "s"));
  }
  return loaded;
}

Task find_task(const std::string& name, Compat compat) {
  if (const auto format = data::format_extension(name);
      format == ".jsonl" || format == ".parquet") {
    return read_quiz_task(name);
  }
  if (name.ends_with(".json") || name.ends_with(".toml")) {
    return read_user_task(name);
  }
  USER_ERROR_IF(name.ends_with(".yaml") || name.ends_with(".yml"),
                "{}: YAML is not supported; write the keys to a .toml or .json file",
                printable(name));
  std::vector<std::string> known;
  for (const auto& task : known_tasks(compat)) {
    if (task.name == name) {
      USER_ERROR_IF(compat == Compat::k041 && !task.not_in_0_4_1.empty(),
                    "task {}: {}; remove --compat 0.4.1", name, task.not_in_0_4_1);
      return task;
    }
    known.push_back(task.name);
  }
  for (const auto& group : known_groups()) {
    known.push_back(group.name);
  }
  throw UserError(
      "unknown task '{}'{}; use a task of moe eval --list or a file TASK.json, TASK.toml or "
      "QUIZ.jsonl",
      printable(name), did_you_mean(name, known));
}

}  // namespace

std::vector<LoadedTask> load_tasks(const std::vector<std::string>& names, const fs::path& data,
                                   std::optional<int64_t> limit, const TaskOptions& options) {
  std::vector<Task> tasks;
  std::set<std::string> loaded_names, single_names;  // of all tasks; of those outside a group
  for (const auto& name : names) {
    const Group* group = find_group(name);
    for (const auto& member :
         group != nullptr ? group_tasks(*group) : std::vector<std::string>{name}) {
      Task task = find_task(member, options.compat);
      USER_ERROR_IF(group == nullptr && !single_names.insert(task.name).second,
                    "--tasks names '{}' twice; remove one of them", printable(task.name));
      if (loaded_names.insert(task.name).second) {
        tasks.push_back(std::move(task));
      }
    }
  }
  std::vector<LoadedTask> loaded;
  for (const auto& task : tasks) {
    loaded.push_back(load_task(task, data, limit, options));
  }
  return loaded;
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
    text += fmt::format("{}  {} tasks: {}\n", group.name, group_tasks(group).size(), group.about);
  }
  return text;
}

ShotSampler::ShotSampler(const Task& task, const std::vector<Document>& pool, int64_t count)
    : task_(task), pool_(pool), count_(count), random_(kShotSeed) {
  // As in the harness, draw() draws one more example than needed if the pool may have the question.
  const bool spare = task.shots.excludes_question;
  const auto available = static_cast<int64_t>(pool.size()) - (spare ? 1 : 0);
  USER_ERROR_IF(count > 0 && count > available,
                "task {}: {} examples needed{}, {} has {}; use a smaller --num-fewshot", task.name,
                count, spare ? " and one more to replace the question itself" : "",
                pool.empty() ? "its file" : pool.front().where, pool.size());
}

std::vector<size_t> ShotSampler::draw(const OrderedJson& document) {
  const auto count = static_cast<size_t>(count_);
  std::vector<size_t> drawn;
  if (task_.shots.sampler == ShotRule::Sampler::kFirst) {
    drawn.resize(count);
    std::iota(drawn.begin(), drawn.end(), size_t{0});
    return drawn;
  }
  const bool spare = task_.shots.excludes_question;
  for (const uint64_t index : random_.sample(pool_.size(), count + (spare ? 1 : 0))) {
    if (drawn.size() < count && !(spare && pool_[index].fields == document)) {
      drawn.push_back(index);
    }
  }
  if (drawn.size() == count) {
    return drawn;
  }
  // The pool contains the question more than once: draw again from the other documents.
  std::vector<size_t> others;
  for (size_t i = 0; i < pool_.size(); ++i) {
    if (pool_[i].fields != document) {
      others.push_back(i);
    }
  }
  USER_ERROR_IF(
      others.size() < count,
      "task {}: {} examples needed, but its file has only {} besides the question itself; use a "
      "smaller --num-fewshot",
      task_.name, count_, others.size());
  drawn.clear();
  for (const uint64_t index : random_.sample(others.size(), count)) {
    drawn.push_back(others[index]);
  }
  return drawn;
}

Messages ShotSampler::prefix(const OrderedJson& document) {
  Messages messages;
  if (!task_.description.empty()) {
    messages.push_back({"system", task_.description, ""});
  }
  if (count_ > 0) {
    for (const size_t index : draw(document)) {
      std::ranges::move(format_shot(task_, pool_[index]), std::back_inserter(messages));
    }
  }
  return messages;
}

std::string join(const Messages& messages) {
  std::string text;
  for (const auto& message : messages) {
    text += message.content + message.delimiter;
  }
  return text;
}

Messages format_shot(const Task& task, const Document& document) {
  return with_location(document, [&] {
    const Target target = task.target(document.fields);
    const auto choice = [&]() -> std::string {
      const std::vector<std::string> choices = task.choices(document.fields);
      const int64_t index = target.index.value_or(-1);
      USER_ERROR_IF(index < 0 || index >= static_cast<int64_t>(choices.size()),
                    "the right choice is number {} (from 0), but there are only {} choices", index,
                    choices.size());
      return choices[static_cast<size_t>(index)];
    };
    const bool is_context = task.choices_are_contexts;
    return make_turn(task, document.fields, is_context ? choice() : task.prompt(document.fields),
                     task.delimiter,
                     !is_context && target.index && target.text.empty() ? choice() : target.text);
  });
}

}  // namespace moe::eval
