#include "core/eval/tasks/known_tasks.h"

#include <algorithm>
#include <map>

#include "core/base/text.h"
#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

using Texts = std::vector<std::string>;

struct Declarations {
  std::vector<Json> tasks;  // arguments of make_known_task()
  std::vector<Group> groups;
};

// Returns the list `key` of a file; if it is missing, a list with one empty entry.
Json get_entries(const Json& file, const char* key) {
  return file.contains(key) ? file.at(key) : Json::array({Json::object()});
}

// Replaces "<name>" and "<name in words>" in all texts of `settings`.
void substitute(Json& settings, const std::string& name, const std::string& value) {
  if (settings.is_string()) {
    const std::string text = replace_all(settings.get<std::string>(), "<" + name + ">", value);
    settings = replace_all(text, "<" + name + " in words>", replace_all(value, "_", " "));
  } else if (settings.is_structured()) {
    for (auto& entry : settings) {
      substitute(entry, name, value);
    }
  }
}

// Returns `settings` with its variables replaced by their values: one copy for each combination of
// values if variables are lists.
std::vector<Json> expand_variables(Json settings, const Texts& variables) {
  std::vector<Json> tasks = {std::move(settings)};
  for (const auto& name : variables) {
    std::vector<Json> expanded;
    for (auto& task : tasks) {
      const Json value = task.value(name, Json(""));
      task.erase(name);
      for (const auto& text : value.is_array() ? value : Json::array({value})) {
        expanded.push_back(task);
        substitute(expanded.back(), name, text);
      }
    }
    tasks = std::move(expanded);
  }
  return tasks;
}

void add_file(const Json& file, Declarations& all) {
  Json shared = file;
  for (const char* key : {"variables", "forms", "tasks", "groups"}) {
    shared.erase(key);
  }
  std::map<std::string, Texts> members;
  for (const auto& form : get_entries(file, "forms")) {
    for (const auto& entry : get_entries(file, "tasks")) {
      Json settings = shared;
      settings.update(form);
      settings.update(entry);
      if (!settings.contains(settings.value("needs", "task"))) {
        continue;
      }
      for (auto& task : expand_variables(std::move(settings), file.value("variables", Texts()))) {
        if (task.contains("group")) {
          members[task.at("group").get<std::string>()].push_back(task.at("task"));
        }
        task.erase("group");  // make_known_task() rejects "group" and "needs"
        task.erase("needs");
        all.tasks.push_back(std::move(task));
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

void add_tasks(const Group& group, Texts& tasks) {
  for (const auto& member : group.members) {
    if (const Group* inner = find_group(member)) {
      add_tasks(*inner, tasks);
    } else if (std::ranges::find(tasks, member) == tasks.end()) {
      tasks.push_back(member);
    }
  }
}

}  // namespace

const std::vector<Task>& known_tasks(Compat compat) {
  const auto make = [](Compat version) {
    std::vector<Task> tasks;
    for (const auto& settings : declarations().tasks) {
      tasks.push_back(make_known_task(settings, version));
    }
    return tasks;
  };
  if (compat == Compat::kCurrent) {
    static const std::vector<Task> current = make(Compat::kCurrent);
    return current;
  }
  static const std::vector<Task> version_041 = make(Compat::k041);
  return version_041;
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

Texts group_tasks(const Group& group) {
  Texts tasks;
  add_tasks(group, tasks);
  return tasks;
}

Texts groups_among(const Texts& names) {
  Texts groups;
  for (const auto& name : names) {
    if (const Group* group = find_group(name)) {
      Texts found = groups_among(group->members);
      found.insert(found.begin(), name);
      for (const auto& entry : found) {
        if (std::ranges::find(groups, entry) == groups.end()) {
          groups.push_back(entry);
        }
      }
    }
  }
  return groups;
}

}  // namespace moe::eval
