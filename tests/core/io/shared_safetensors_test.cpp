// Files written in parts by several, against the same file written by one.

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/io/safetensors_writer.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using io::DType;
using io::TensorInfo;
using test::TempDir;
using test::user_error_of;

namespace {

const std::vector<TensorInfo> kTensors = {{"a", DType::kF32, {3, 5}},
                                          {"empty", DType::kF32, {0, 4}},
                                          {"b", DType::kBF16, {7}},
                                          {"scalar", DType::kF64, {}},
                                          {"c", DType::kU8, {1000}}};

// The bytes of a tensor, told apart by its name.
std::string bytes_of(const TensorInfo& tensor) {
  std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(1 + (i * 7 + static_cast<size_t>(tensor.name.front())) % 255);
  }
  return bytes;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void write_alone(const std::filesystem::path& path) {
  io::SafetensorsWriter writer(path, kTensors);
  for (const auto& tensor : kTensors) {
    writer.write(as_bytes(bytes_of(tensor)));
  }
  writer.finish();
}

// The `part`-th of `parts` pieces of every tensor.
void write_part(const std::filesystem::path& path, size_t part, size_t parts) {
  io::SafetensorsPatch patch(path);
  for (const auto& tensor : kTensors) {
    const std::string bytes = bytes_of(tensor);
    const size_t begin = bytes.size() * part / parts, end = bytes.size() * (part + 1) / parts;
    patch.write(tensor.name, begin, as_bytes(bytes).subspan(begin, end - begin));
  }
  patch.finish();
}

}  // namespace

TEST_CASE("a file written in parts by many is the file that one writes", "[io]") {
  const TempDir dir;
  write_alone(dir / "one");
  for (const size_t parts : {1, 2, 5}) {
    io::create_safetensors(dir / "many", kTensors);
    std::vector<std::thread> writers;
    for (size_t part = 0; part < parts; ++part) {
      writers.emplace_back([&, part] { write_part(dir / "many", part, parts); });
    }
    for (auto& writer : writers) {
      writer.join();
    }
    CHECK(test::read_file(dir / "many") == test::read_file(dir / "one"));
  }
}

TEST_CASE("processes write one file side by side", "[io]") {
  const TempDir dir;
  write_alone(dir / "one");
  io::create_safetensors(dir / "many", kTensors);
  std::vector<pid_t> children;
  for (size_t part = 0; part < 3; ++part) {
    children.push_back(::fork());
    if (children.back() == 0) {
      write_part(dir / "many", part, 3);
      ::_exit(0);
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(test::read_file(dir / "many") == test::read_file(dir / "one"));
}

TEST_CASE("what nobody writes is zero, and a new file forgets the old", "[io]") {
  const TempDir dir;
  write_alone(dir / "file");
  io::create_safetensors(dir / "file", {{"t", DType::kU8, {6}}});
  io::SafetensorsPatch patch(dir / "file");
  patch.write("t", 2, as_bytes("xy"));
  patch.finish();
  const io::SafetensorsFile file(dir / "file");
  const auto bytes = file.bytes("t");
  CHECK((std::vector(bytes.begin(), bytes.end()) ==
         std::vector<std::byte>{{}, {}, std::byte{'x'}, std::byte{'y'}, {}, {}}));
}

TEST_CASE("bytes outside their tensor are refused", "[io]") {
  const TempDir dir;
  io::create_safetensors(dir / "file", kTensors);
  io::SafetensorsPatch patch(dir / "file");
  patch.write("b", 14, {});  // nothing, at its end
  for (const uint64_t begin : {uint64_t{13}, uint64_t{14}, uint64_t{15}, ~uint64_t{0}}) {
    CHECK_THROWS(patch.write("b", begin, as_bytes("xy")));
  }
  CHECK(user_error_of([&] { patch.write("other", 0, {}); }) ==
        (dir / "file").string() + ": holds no tensor 'other'");
}

TEST_CASE("a file that is not there, or not whole, cannot be patched", "[io]") {
  const TempDir dir;
  const auto error = [&] { return user_error_of([&] { io::SafetensorsPatch(dir / "file"); }); };
  CHECK(error().find("file") != std::string::npos);
  io::create_safetensors(dir / "file", kTensors);
  std::filesystem::resize_file(dir / "file", 200);
  CHECK(error().find("truncated") != std::string::npos);
}

TEST_CASE("shards follow from the tensors alone", "[io]") {
  const auto shards = io::plan_shards(kTensors, 80);
  REQUIRE(shards.size() == 3);
  CHECK(shards[0].file == "model-00001-of-00003.safetensors");
  CHECK(shards[0].tensors.size() == 3);  // 60, 0 and 14 bytes
  CHECK(shards[1].tensors.size() == 1);  // 8; with 1000 it would be too much
  CHECK(shards[2].tensors.size() == 1);  // larger than a shard
  CHECK(io::plan_shards(kTensors, 1 << 20).front().file == "model.safetensors");
  CHECK(io::plan_shards({}, 80).size() == 1);
}
