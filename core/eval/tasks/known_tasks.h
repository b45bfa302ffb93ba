#pragma once
// The known tasks and groups: known/*.toml, which CMake compiles into the binary. A file is a
// family of tasks: keys that all of them share, and an entry of "tasks" for each.
//
// With "forms", each form makes every task that has the key it "needs". "variables" are names of
// keys of an entry: "<name>" in any text is replaced by the value, "<name in words>" by the value
// with spaces in place of underscores; a list of values makes one task per value. "group" adds a
// task to a group of "groups", which may instead list its "tasks".

#include <string>
#include <string_view>
#include <vector>

#include "core/eval/tasks/task.h"

namespace moe::eval {

struct Group {
  std::string name;
  std::vector<std::string> members;  // tasks and groups
  std::string about;
  std::string metric = {};      // averaged, as Metric::key(); empty: no average
  std::string version = "N/A";  // of the harness's definition
  std::string alias = {};
};

const std::vector<Task>& known_tasks(Compat compat = Compat::kCurrent);
const std::vector<Group>& known_groups();
const Group* find_group(const std::string& name);  // null if unknown

// Returns the tasks of a group and of the groups in it, each once.
std::vector<std::string> group_tasks(const Group& group);

// Returns the groups among `names` and the groups in them, each once.
std::vector<std::string> groups_among(const std::vector<std::string>& names);

// A file of known/, in the source that CMake writes (cmake/known_tasks.cmake).
struct KnownFile {
  std::string_view name, text;
};
std::vector<KnownFile> known_files();

}  // namespace moe::eval
