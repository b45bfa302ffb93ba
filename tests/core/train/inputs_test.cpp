// Comparison of the inputs of a run: by size and time, and by content if those differ.

#include "core/train/checkpoint/inputs.h"

#include <chrono>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe::train;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

struct World {
  TempDir dir;
  TrainSettings settings;

  World() {
    write_file(dir / "model/config.json", "{}");
    write_file(dir / "model/model.safetensors", std::string(size_t{9} << 20, 'w'));
    write_file(dir / "model/README.md", "not of the model");
    write_file(dir / "a.jsonl", "one");
    write_file(dir / "b.txt.gz", "two");
    settings.model = dir / "model";
    settings.data = {dir / "a.jsonl", dir / "b.txt.gz"};
    settings.evaluation.tasks = {"piqa", (dir / "a.jsonl").string()};
  }

  // Writes the inputs as a run does and reads them as a resumed run does.
  Inputs record() const {
    Inputs inputs = find_inputs(settings);
    write_file(dir / "inputs.json", to_json(inputs));
    return *read_inputs(dir / "inputs.json");
  }
};

// Returns a line per key that differs.
std::string differences(const Inputs& before, const World& world) {
  Inputs now = find_inputs(world.settings);
  std::string text;
  for (auto& [key, files] : now) {
    if (const auto difference = find_difference(before.at(key), files)) {
      text += key + ": " + difference->substr(difference->rfind('/') + 1) + "\n";
    }
  }
  return text;
}

void set_time(const fs::path& file, int seconds) {
  fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::seconds(seconds));
}

}  // namespace

TEST_CASE("inputs are the files of the model, data files and tasks", "[train]") {
  const World world;
  Inputs inputs = world.record();
  std::string text;
  for (const auto& [key, files] : inputs) {
    text += key + ":";
    for (const auto& file : files) {
      text += " " + file.as + (file.digest.empty() ? "" : "*");
    }
    text += "\n";
  }
  CHECK(text ==
        "data: data* text*\neval-data:\neval-data-dir:\neval-tasks: piqa a.jsonl*\n"
        "model: config.json* model.safetensors*\n");
  CHECK(inputs.at("data")[0].bytes == 3);
}

TEST_CASE("a file with equal size and time is not read, other files are compared by content",
          "[train]") {
  const World world;
  const Inputs before = world.record();
  CHECK(differences(before, world).empty());
  const fs::path file = world.dir / "a.jsonl";
  const auto time = fs::last_write_time(file);
  write_file(file, "One");
  fs::last_write_time(file, time);
  CHECK(differences(before, world).empty());  // taken to be the same
  set_time(file, 5);
  CHECK(differences(before, world) ==
        "data: a.jsonl is not what the run began with\n"
        "eval-tasks: a.jsonl is not what the run began with\n");
  write_file(file, "one");
  set_time(file, 9);
  CHECK(differences(before, world).empty());
}

TEST_CASE("a changed byte of a sample, size or file of the model is a difference", "[train]") {
  const World world;
  const Inputs before = world.record();
  const fs::path weights = world.dir / "model/model.safetensors";
  std::string bytes(size_t{9} << 20, 'w');
  bytes[(size_t{8} << 20) + 4095] = 'v';  // the last byte of the last sample
  write_file(weights, bytes);
  set_time(weights, 5);
  CHECK(differences(before, world) == "model: model.safetensors is not what the run began with\n");
  write_file(weights, bytes + "v");
  CHECK(differences(before, world) == "model: model.safetensors is not what the run began with\n");
  write_file(world.dir / "model/tokenizer.json", "{}");
  CHECK(differences(before, world) == "model: there were 2 files, there are 3\n");
  fs::remove(world.dir / "model/config.json");
  CHECK(differences(before, world) ==
        "model: model.safetensors is read as model.safetensors, before it was config.json\n");
}

TEST_CASE("an invalid inputs.json is ignored", "[train]") {
  const TempDir dir;
  CHECK_FALSE(read_inputs(dir / "inputs.json"));
  for (const char* text : {"", "[]", "{\"data\": [{}]}", "{\"data\": 5", "{\"data\": [7]}"}) {
    write_file(dir / "inputs.json", text);
    CHECK_FALSE(read_inputs(dir / "inputs.json"));
  }
}
