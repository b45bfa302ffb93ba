#pragma once
// The tasks and groups that are known by name: known/*.toml, which CMake puts into the binary. A
// file is a family: keys that all of its tasks share, and an entry of "tasks" for each. Where there
// are "forms", each form makes every task that has the keys it "needs". "<name>" in any text stands
// for the value of one of the file's "variables" in that entry, "<name in words>" for it with
// spaces in place of underscores; an entry with a list of values makes a task of each. "group" puts
// a task into a group of "groups", which may also list its "tasks".

#include <string>
#include <string_view>
#include <vector>

#include "core/eval/tasks/task.h"

namespace moe::eval {

struct Group {
  std::string name;
  std::vector<std::string> members;  // tasks and groups
  std::string about;
  std::string metric = {};      // averaged, as Metric::key(); empty = only a name for its members
  std::string version = "N/A";  // of the harness's definition
  std::string alias = {};
};

const std::vector<Task>& known_tasks(Compat compat = Compat::kCurrent);
const std::vector<Group>& known_groups();
const Group* find_group(const std::string& name);

// The tasks of a group, members of members included, each once.
std::vector<std::string> tasks_of(const Group& group);

// A file of known/: in the source that CMake writes (cmake/known_tasks.cmake).
struct KnownFile {
  std::string_view name, text;
};
std::vector<KnownFile> known_files();

}  // namespace moe::eval
