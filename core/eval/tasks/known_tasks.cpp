#include <algorithm>
#include <map>

#include "core/base/text.h"
#include "core/eval/formats/text.h"
#include "core/eval/tasks/task.h"

namespace moe::eval {
namespace {

using Texts = std::vector<std::string>;

// The contents of known/*.toml.
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
  const auto found = std::ranges::find(known_groups(), name, &Group::name);
  return found == known_groups().end() ? nullptr : &*found;
}

Texts group_tasks(const Group& group) {
  Texts tasks;
  for (const auto& member : group.members) {
    const Group* inner = find_group(member);
    for (const auto& task : inner != nullptr ? group_tasks(*inner) : Texts{member}) {
      if (std::ranges::find(tasks, task) == tasks.end()) {
        tasks.push_back(task);
      }
    }
  }
  return tasks;
}

Texts groups_among(const Texts& names) {
  Texts groups;
  for (const auto& name : names) {
    if (const Group* group = find_group(name)) {
      Texts found = groups_among(group->members);
      found.insert(found.begin(), name);
      std::ranges::copy_if(found, std::back_inserter(groups), [&](const auto& entry) {
        return std::ranges::find(groups, entry) == groups.end();
      });
    }
  }
  return groups;
}

}  // namespace moe::eval
