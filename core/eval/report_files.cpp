// Writing the report: beside its name first, then one rename a file.
#include <unistd.h>

#include "core/base/error.h"
#include "core/eval/report.h"
#include "core/io/file.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

// Whether `folder`, or the nearest parent that is there, lets us write: better known before hours
// of work than after.
bool is_writable(fs::path folder) {
  while (!folder.empty() && !fs::exists(folder)) {
    folder = folder.parent_path();
  }
  return ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0;
}

fs::path samples_file(const fs::path& out, const Task& task) {
  return out / fmt::format("samples_{}.jsonl", task.name);
}

}  // namespace

void write_whole(const fs::path& file, const std::string& text) {
  const fs::path partial = file.string() + ".partial";
  try {
    io::write_file(partial, text);
    fs::rename(partial, file);
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
}

std::vector<fs::path> report_files(const fs::path& out, const std::vector<LoadedTask>& tasks) {
  std::vector<fs::path> files = {out / "results.json"};
  for (const auto& loaded : tasks) {
    files.push_back(samples_file(out, loaded.task));
  }
  return files;
}

void check_output(const std::vector<fs::path>& files, bool force, const std::string& flag) {
  for (const auto& file : files) {
    if (fs::exists(file) && !force) {
      throw UserError("{}: is there already; give another {}, or --force to replace it",
                      file.string(), flag);
    }
    const fs::path folder = file.parent_path();
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw UserError("{} {}: a file, a folder is needed", flag, folder.string());
    }
    if (!is_writable(folder)) {
      throw UserError("{} {}: you may not write there; give another folder", flag, folder.string());
    }
  }
}

void write_report(const RunReport& report, const fs::path& out) {
  std::error_code failure;
  fs::create_directories(out, failure);
  if (failure) {
    throw UserError("-o {}: cannot be made: {}", out.string(), failure.message());
  }
  for (const auto& task : report.tasks) {
    write_whole(samples_file(out, task.loaded.task), samples_jsonl(task));
  }
  write_whole(out / "results.json", results_json(report).dump(2) + "\n");
}

}  // namespace moe::eval
