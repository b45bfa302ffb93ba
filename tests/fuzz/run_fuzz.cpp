// libFuzzer target: files of a run and of a checkpoint. The first byte selects the file, the rest
// is its content, which is read or refused with UserError.

#include "core/base/error.h"
#include "core/io/checksums.h"
#include "core/io/line_log.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/observe/history.h"
#include "tests/fuzz/fuzz.h"

namespace {

using moe::fuzz::folder;
using moe::fuzz::require;
using moe::fuzz::write_file;

void read_metrics(std::string_view text) {
  write_file("metrics.jsonl", text);
  const auto history = moe::train::read_history(folder());
  for (const auto& [name, curve] : history.curves()) {
    require(!name.empty());
  }
}

// Checks a folder of two undamaged files with the input as checksums.json.
void read_checksums(std::string_view text) {
  const auto place = folder() / "checkpoint";
  std::filesystem::create_directories(place);
  write_file("checkpoint/state.json", "{}");
  write_file("checkpoint/checksums.json", text);
  moe::io::find_damage(place);
}

void read_settings(std::string_view text) {
  std::filesystem::create_directories(folder() / "run");
  write_file("run/settings.toml", text);
  const moe::train::RunFolder run(folder() / "run", folder() / "model", /*force=*/false);
  moe::train::Inputs inputs;
  std::vector<std::string> notes;
  run.state("[train]\nsteps = 10\n", inputs, notes);
}

// Checks that an opened log keeps its valid lines and the appended one.
void read_log(std::string_view text) {
  const auto file = write_file("log", text);
  const moe::io::LineLog before(file, "title");
  moe::io::LineLog(file, "title").append("one more");
  const moe::io::LineLog after(file, "title");
  require(after.lines().size() == before.lines().size() + 1 && after.lines().back() == "one more");
  require(after.damaged() == before.damaged());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        read_metrics(text);
        break;
      case 1:
        read_checksums(text);
        break;
      case 2:
        read_settings(text);
        break;
      default:
        read_log(text);
    }
  } catch (const moe::UserError&) {
  }
  return 0;
}
