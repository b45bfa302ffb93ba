#include "core/eval/tasks/known_tasks.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/eval/formats/text.h"
#include "core/eval/tasks/task_file.h"

namespace moe::eval {
namespace {

using Texts = std::vector<std::string>;

struct Declarations {
  std::vector<Json> tasks;  // settings of make_known_task
  std::vector<Group> groups;
};

// The list `key`, or one empty entry.
Json entries_of(const Json& file, const char* key) {
  return file.contains(key) ? file.at(key) : Json::array({Json::object()});
}

// Every "<name>" and "<name in words>" in the texts of `settings` becomes `value`.
void fill_in(Json& settings, const std::string& name, const std::string& value) {
  if (settings.is_string()) {
    const std::string text = replace_all(settings.get<std::string>(), "<" + name + ">", value);
    settings = replace_all(text, "<" + name + " in words>", replace_all(value, "_", " "));
  } else if (settings.is_structured()) {
    for (auto& entry : settings) {
      fill_in(entry, name, value);
    }
  }
}

// `settings` with its variables filled in: once, or once for each value of the one that is a list.
std::vector<Json> with_variables(Json settings, const Texts& variables) {
  std::vector<Json> tasks = {std::move(settings)};
  for (const auto& name : variables) {
    std::vector<Json> filled;
    for (auto& task : tasks) {
      const Json value = task.value(name, Json(""));
      task.erase(name);
      for (const auto& text : value.is_array() ? value : Json::array({value})) {
        filled.push_back(task);
        fill_in(filled.back(), name, text);
      }
    }
    tasks = std::move(filled);
  }
  return tasks;
}

// Takes the keys that make_known_task does not know out of a task's settings.
void add_task(Json settings, std::map<std::string, Texts>& members, Declarations& all) {
  if (settings.contains("group")) {
    members[settings.at("group").get<std::string>()].push_back(settings.at("task"));
    settings.erase("group");
  }
  settings.erase("needs");
  all.tasks.push_back(std::move(settings));
}

void add_file(const Json& file, Declarations& all) {
  Json shared = file;
  for (const char* key : {"variables", "forms", "tasks", "groups"}) {
    shared.erase(key);
  }
  std::map<std::string, Texts> members;
  for (const auto& form : entries_of(file, "forms")) {
    for (const auto& entry : entries_of(file, "tasks")) {
      Json settings = shared;
      settings.update(form);
      settings.update(entry);
      if (!settings.contains(settings.value("needs", "task"))) {
        continue;
      }
      for (auto& task : with_variables(std::move(settings), file.value("variables", Texts()))) {
        add_task(std::move(task), members, all);
      }
    }
  }
  for (const auto& group : file.value("groups", Json::array())) {
    const std::string name = group.at("group");
    all.groups.push_back({name, group.value("tasks", members[name]), group.at("about"),
                          group.value("metric", ""), group.value("version", "N/A"),
                          group.value("alias", "")});
  }
}

const Declarations& declarations() {
  static const Declarations all = [] {
    Declarations files;
    for (const auto& [name, text] : known_files()) {
      add_file(parse_toml(text, std::string(name)), files);
    }
    return files;
  }();
  return all;
}

std::vector<Task> make_tasks(Compat compat) {
  std::vector<Task> tasks;
  for (const auto& settings : declarations().tasks) {
    tasks.push_back(make_known_task(settings, compat));
  }
  return tasks;
}

void add_tasks(const Group& group, std::vector<std::string>& tasks) {
  for (const auto& member : group.members) {
    if (const Group* inner = find_group(member)) {
      add_tasks(*inner, tasks);
    } else if (std::find(tasks.begin(), tasks.end(), member) == tasks.end()) {
      tasks.push_back(member);
    }
  }
}

}  // namespace

const std::vector<Task>& known_tasks(Compat compat) {
  static const std::vector<Task> current = make_tasks(Compat::kCurrent);
  if (compat == Compat::kCurrent) {
    return current;
  }
  static const std::vector<Task> first_version = make_tasks(Compat::k041);
  return first_version;
}

const std::vector<Group>& known_groups() { return declarations().groups; }

const Group* find_group(const std::string& name) {
  for (const auto& group : known_groups()) {
    if (group.name == name) {
      return &group;
    }
  }
  return nullptr;
}

std::vector<std::string> tasks_of(const Group& group) {
  std::vector<std::string> tasks;
  add_tasks(group, tasks);
  return tasks;
}

}  // namespace moe::eval
