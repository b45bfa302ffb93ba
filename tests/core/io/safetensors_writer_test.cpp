#include "core/io/safetensors_writer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::DType;
using moe::io::SafetensorsFile;
using moe::io::SafetensorsWriter;
using moe::io::TensorInfo;
using moe::test::TempDir;
using moe::test::user_error_of;

namespace {

std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Files of this process may grow to `bytes` and no further, as on a disk that fills up.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace

TEST_CASE("what is written is read back: every dtype, scalars, empty tensors, in pieces", "[io]") {
  const TempDir dir;
  std::vector<TensorInfo> tensors;
  for (const auto dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI64,
                           DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    tensors.push_back({std::string("t.") + moe::io::dtype_name(dtype), dtype, {3, 5}});
    tensors.push_back({std::string("empty.") + moe::io::dtype_name(dtype), dtype, {0, 5}});
  }
  tensors.push_back({"scalar \"\\\n\xC3\xBC", DType::kF32, {}});
  std::string data;
  SafetensorsWriter writer(dir / "m", tensors);
  for (const auto& tensor : tensors) {
    const std::string bytes = random_bytes(static_cast<size_t>(tensor.bytes()), data.size());
    const size_t cut = bytes.size() / 3;
    writer.write(as_bytes(bytes).first(cut));
    writer.write(as_bytes(bytes).subspan(cut));
    data += bytes;
  }
  writer.finish();
  CHECK(writer.written_bytes() == data.size());

  const SafetensorsFile file(dir / "m");
  CHECK(moe::test::read_file(dir / "m").find(R"("__metadata__":{"format":"pt"})") == 9);
  size_t at = 0;
  for (const auto& tensor : tensors) {
    CHECK(text_of(file.bytes(tensor.name)) == data.substr(at, static_cast<size_t>(tensor.bytes())));
    at += static_cast<size_t>(tensor.bytes());
  }
  REQUIRE(file.tensors().size() == tensors.size());
}

TEST_CASE("the data starts at a multiple of 8, whatever the header's length", "[io]") {
  const TempDir dir;
  for (size_t length = 1; length <= 9; ++length) {
    SafetensorsWriter writer(dir / "m", {{std::string(length, 'n'), DType::kU8, {1}}});
    writer.write(as_bytes("x"));
    writer.finish();
    const std::string bytes = moe::test::read_file(dir / "m");
    CHECK((bytes.size() - 1) % 8 == 0);
    CHECK(bytes.back() == 'x');
    CHECK(SafetensorsFile(dir / "m").tensors().size() == 1);
  }
}

TEST_CASE("a copied tensor equals its source, however often it is copied and however large it is",
          "[io]") {
  const TempDir dir;
  const int64_t large =
      (int64_t{40} << 20) + 12345;  // beyond a copy block (8 MiB) and a flush step (32 MiB)
  const std::vector<TensorInfo> source_tensors = {
      {"small", DType::kU8, {7}}, {"large", DType::kU8, {large}}, {"empty", DType::kF32, {0, 4}}};
  const std::string small = random_bytes(7, 1);
  const std::string big = random_bytes(static_cast<size_t>(large), 2);
  SafetensorsWriter first(dir / "source", source_tensors);
  first.write(as_bytes(small));
  first.write(as_bytes(big));
  first.finish();

  const SafetensorsFile source(dir / "source");
  SafetensorsWriter second(dir / "copy", {{"l0", DType::kU8, {large}},
                                          {"e", DType::kF32, {0, 4}},
                                          {"s0", DType::kU8, {7}},
                                          {"l1", DType::kU8, {large}},
                                          {"s1", DType::kU8, {7}}});
  for (const char* name : {"large", "empty", "small", "large", "small"}) {
    second.copy(source, name);
  }
  second.finish();
  const SafetensorsFile copy(dir / "copy");
  CHECK(text_of(copy.bytes("l0")) == big);
  CHECK(text_of(copy.bytes("l1")) == big);
  CHECK(text_of(copy.bytes("s0")) == small);
  CHECK(text_of(copy.bytes("s1")) == small);
}

TEST_CASE("a tensor is copied between file systems too", "[io]") {
  const std::filesystem::path memory = "/dev/shm";
  if (!std::filesystem::is_directory(memory) || ::access(memory.c_str(), W_OK) != 0) {
    MOE_SKIP("no /dev/shm to write to");
  }
  const TempDir dir;
  const std::filesystem::path other = memory / dir.path().filename();
  const std::string data = random_bytes(size_t{9} << 20, 3);
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {static_cast<int64_t>(data.size())}}};
  SafetensorsWriter first(other, tensors);
  first.write(as_bytes(data));
  first.finish();
  SafetensorsWriter second(dir / "copy", tensors);
  second.copy(SafetensorsFile(other), "t");
  second.finish();
  std::filesystem::remove(other);
  CHECK(text_of(SafetensorsFile(dir / "copy").bytes("t")) == data);
}

TEST_CASE("a full disk is a sentence: in the header, in a write, in a copy", "[io]") {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {1'000'000}}};
  const std::string data = random_bytes(1'000'000, 4);
  const auto full = [&](const std::string& name, const char* reason) {
    return "disk full: " + name + " cannot grow (" + reason +
           "); free some space or write to another disk";
  };
  CHECK(user_error_of([&] { SafetensorsWriter writer("/dev/full", tensors); }) ==
        full("/dev/full", "No space left on device"));

  SafetensorsWriter source(dir / "source", tensors);
  source.write(as_bytes(data));
  source.finish();
  const SafetensorsFile file(dir / "source");
  std::string write_error, copy_error;
  {
    const FileSizeLimit limit(500'000);
    write_error =
        user_error_of([&] { SafetensorsWriter(dir / "a", tensors).write(as_bytes(data)); });
    copy_error = user_error_of([&] { SafetensorsWriter(dir / "b", tensors).copy(file, "t"); });
  }
  CHECK(write_error == full((dir / "a").string(), "File too large"));
  CHECK(copy_error == full((dir / "b").string(), "File too large"));
  CHECK(std::filesystem::file_size(dir / "a") ==
        500'000);  // the short write before the failing one was used
}

TEST_CASE("a file that cannot be made is refused with the reason", "[io]") {
  const TempDir dir;
  CHECK(user_error_of([&] { SafetensorsWriter writer(dir / "no", {}); }).empty());
  CHECK(user_error_of([&] { SafetensorsWriter writer(dir / "none/m", {}); }) ==
        (dir / "none/m").string() + ": cannot be written: No such file or directory");
}

TEST_CASE("bytes too many, bytes too few and a name given twice are our own mistakes", "[io]") {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {4}}};
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", tensors).write(as_bytes("12345")), std::logic_error);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", tensors).finish(), std::logic_error);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", {tensors[0], tensors[0]}), std::logic_error);
}

TEST_CASE("a source cut short while it is copied is an error, not a crash", "[io]") {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {1'000'000}}};
  SafetensorsWriter source(dir / "source", tensors);
  source.write(as_bytes(random_bytes(1'000'000, 5)));
  source.finish();
  const SafetensorsFile file(dir / "source");
  std::filesystem::resize_file(dir / "source", 500'000);
  SafetensorsWriter writer(dir / "copy", tensors);
  CHECK(user_error_of([&] { writer.copy(file, "t"); }) ==
        (dir / "source").string() + ": became shorter while it was read; fetch it again");
}
