#include "core/io/safetensors.h"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <csignal>
#include <random>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe::test;
using namespace moe::io;

namespace {

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  }
  return bytes;
}

std::string file_bytes(const std::string& header, size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, 'd');
}

// Returns the error of opening a file of `bytes`, without its path; "" if it is accepted.
std::string open_error(const std::string& bytes) {
  const TempDir dir;
  moe::test::write_file(dir / "m", bytes);
  const std::string error = user_error_of([&] { SafetensorsFile file(dir / "m"); });
  const std::string path = (dir / "m").string() + ": ";
  CHECK((error.empty() || error.starts_with(path)));
  return error.substr(std::min(error.size(), path.size()));
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

// Returns a file of these header entries.
std::string file_of(const std::vector<std::string>& entries, size_t data_bytes) {
  return file_bytes(fmt::format("{{{}}}", fmt::join(entries, ",")), data_bytes);
}

const std::vector<TensorInfo> kTensors = {{"a", DType::kF32, {3, 5}},
                                          {"empty", DType::kF32, {0, 4}},
                                          {"b", DType::kBF16, {7}},
                                          {"scalar", DType::kF64, {}},
                                          {"c", DType::kU8, {1000}}};

// Returns random bytes that depend on the name.
std::string bytes_of(const TensorInfo& tensor) {
  std::mt19937_64 random(std::hash<std::string>{}(tensor.name));
  std::string bytes(static_cast<size_t>(tensor.bytes()), '\0');
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

// Writes one file with the bytes of bytes_of().
fs::path write_tensors(const fs::path& path, const std::vector<TensorInfo>& tensors) {
  SafetensorsWriter writer(path, tensors);
  for (const auto& tensor : tensors) {
    writer.write(as_bytes(bytes_of(tensor)));
  }
  writer.finish();
  return path;
}

// Writes part number `part` of `parts` of every tensor of kTensors.
void write_part(const fs::path& path, size_t part, size_t parts) {
  SafetensorsPatch patch(path);
  for (const auto& tensor : kTensors) {
    const std::string bytes = bytes_of(tensor);
    const size_t begin = bytes.size() * part / parts, end = bytes.size() * (part + 1) / parts;
    patch.write(tensor.name, begin, as_bytes(bytes).subspan(begin, end - begin));
  }
  patch.finish();
}

// Limits the file size of this process, to imitate a full disk.
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

TEST_CASE("Tensors are read as the header describes them, in file order", "[io]") {
  const TempDir dir;
  const std::string header = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},)"
                             R"("__metadata__":{"format":"pt","who":"us"},)"
                             R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                             R"("empty":{"dtype":"F16","shape":[0,5],"data_offsets":[10,10]}}   )";
  moe::test::write_file(dir / "m", length_bytes(header.size()) + header + "0123456789");
  const SafetensorsFile file(dir / "m");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[0].shape.empty());
  CHECK(file.tensors()[0].elements() == 1);
  CHECK(file.tensors()[1].name == "b");
  CHECK(file.tensors()[1].bytes() == 8);
  CHECK(file.tensors()[2].dtype == DType::kF16);
  CHECK(file.tensors()[2].bytes() == 0);
  CHECK(text_of(file.bytes("a")) == "01");
  CHECK(text_of(file.bytes("b")) == "23456789");
  CHECK(file.bytes("empty").empty());
  CHECK_THAT(user_error_of([&] { file.bytes("c"); }), contains_text("m: holds no tensor 'c'"));
}

TEST_CASE("A file without tensors, and empty tensors anywhere, are accepted", "[io]") {
  CHECK(open_error(file_bytes("{}", 0)).empty());
  CHECK(open_error(file_bytes(R"({"__metadata__":{}})", 0)).empty());
  CHECK(open_error(file_of({tensor("a", "F32", "0,7", "0,0"), tensor("b", "U8", "3", "0,3"),
                            tensor("c", "F32", "7,0", "3,3"), tensor("d", "U8", "1", "3,4")},
                           4))
            .empty());
}

TEST_CASE("An invalid header is refused with its length or its fault", "[io]") {
  for (const auto& [bytes, fact] : std::vector<std::pair<std::string, std::string>>{
           {"", "0 bytes are too few"},
           {"1234567", "7 bytes are too few"},
           {length_bytes(100) + "{}", "a header of 100 bytes, the file has 2 after the length"},
           {length_bytes(100'000'001) + "{}",
            "a header of 100000001 bytes, more than the 100000000"},
           {std::string(16, '\xFF'), "a header of 18446744073709551615 bytes"},
           {file_bytes("", 0), "the header is not a JSON object"},
           {file_bytes("[]", 0), "the header is not a JSON object"},
           {file_bytes("{\"a\"", 0), "header: broken JSON: line 1"},
           {file_bytes("{\"a\xFF\":1}", 0), "header: not UTF-8 at byte 3 (0xFF)"},
           {file_bytes(R"({"a":7})", 0), "'a': must be an object"},
           {file_bytes(R"({"__metadata__":{"n":1}})", 0), "__metadata__: 'n' must be a string"},
           {file_bytes(R"({"__metadata__":[]})", 0), "__metadata__: must be an object of strings"},
           {file_of({tensor("a", "U8", "0", "0,0"), tensor("a", "U8", "0", "0,0")}, 0),
            "'a' occurs twice"}}) {
    CHECK_THAT(open_error(bytes), contains_text(fact));
  }
}

TEST_CASE("An invalid entry of a tensor is refused with the tensor's name", "[io]") {
  for (const auto& [entry, fact] : std::vector<std::pair<std::string, std::string>>{
           {R"("a":{"dtype":"F32","shape":[1]})", "'data_offsets' is missing"},
           {R"("a":{"dtype":"F32","data_offsets":[0,4]})", "'shape' is missing"},
           {R"("a":{"shape":[1],"data_offsets":[0,4]})", "'dtype' is missing"},
           {R"("a":{"dtype":4,"shape":[1],"data_offsets":[0,4]})", "'dtype' must be a string"},
           {tensor("a", "F8_E4M3", "4", "0,4"), "unknown dtype 'F8_E4M3' (known: F32, F16, BF16,"},
           {tensor("a", "F32", "-1", "0,4"), "shape [-1] has a negative size"},
           {tensor("a", "F32", "1.5", "0,4"), "'shape[0]' must be a whole number, is 1.5"},
           {tensor("a", "F32", "4294967296,4294967296", "0,4"), "larger than any memory"},
           {tensor("a", "F32", "4611686018427387904", "0,4"), "larger than any memory"},
           {tensor("a", "F32", "2", "0,4"), "takes 8 bytes, its data_offsets [0, 4] span 4"},
           {tensor("a", "F32", "1", "4,0"), "data_offsets [4, 0] must be a begin and an end"},
           {tensor("a", "F32", "1", "-4,0"), "data_offsets [-4, 0] must be a begin and an end"},
           {tensor("a", "F32", "1", "0,4,8"), "data_offsets [0, 4, 8] must be a begin and an end"},
       }) {
    CHECK_THAT(open_error(file_of({entry}, 4)), contains_text("'a': ") && contains_text(fact));
  }
}

TEST_CASE("Tensors that overlap, leave a gap or do not fill the file are refused", "[io]") {
  const std::string a = tensor("a", "U8", "4", "0,4");
  const auto with_b = [&](const char* size, const char* offsets, size_t data_bytes) {
    return file_of({a, tensor("b", "U8", size, offsets)}, data_bytes);
  };
  for (const auto& [bytes, fact] : std::vector<std::pair<std::string, std::string>>{
           {with_b("4", "2,6", 6),
            "'b' begins at byte 2 of the data, the tensor before it ends at "
            "4: they overlap"},
           {with_b("0", "2,2", 4), "ends at 4: they overlap"},
           {with_b("2", "6,8", 8),
            "'b' begins at byte 6 of the data, the tensor before it ends at "
            "4: a gap"},
           {file_of({a}, 3), "truncated: header says 4 bytes of data, the file has 3"},
           {file_of({a}, 9), "5 bytes follow the last tensor, which ends at byte 4"},
           {file_bytes("{}", 1), "1 bytes follow the last tensor, which ends at byte 0"}}) {
    CHECK_THAT(open_error(bytes), contains_text(fact));
  }
}

TEST_CASE("A missing file, a folder and a device are refused without blocking", "[io]") {
  const TempDir dir;
  for (const auto& [path, fact] :
       {std::pair<std::filesystem::path, const char*>{dir / "none", "none: no such file"},
        {dir.path(), ": is a folder"},
        {"/dev/zero", "/dev/zero: is not a regular file"}}) {
    CHECK_THAT(user_error_of([&file = path] { SafetensorsFile opened(file); }),
               contains_text(fact));
  }
}

TEST_CASE("Every truncation of a model file is refused", "[io]") {
  const TempDir dir;
  write_tiny_checkpoint(dir.path());
  const std::string whole = read_file(dir / "model.safetensors");
  CHECK(open_error(whole).empty());
  for (size_t bytes = 0; bytes < whole.size(); bytes += bytes < 64 ? 1 : bytes / 3) {
    CHECK_FALSE(open_error(whole.substr(0, bytes)).empty());
  }
}

TEST_CASE("Tensors of every dtype, scalars and empty tensors are read back as written", "[io]") {
  const TempDir dir;
  std::vector<TensorInfo> tensors;
  for (const auto dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI64,
                           DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    tensors.push_back({std::string("t.") + dtype_name(dtype), dtype, {3, 5}});
    tensors.push_back({std::string("empty.") + dtype_name(dtype), dtype, {0, 5}});
  }
  tensors.push_back({"scalar \"\\\n\xC3\xBC", DType::kF32, {}});
  SafetensorsWriter writer(dir / "m", tensors);
  uint64_t total = 0;
  for (const auto& tensor : tensors) {
    const std::string bytes = bytes_of(tensor);
    const size_t cut = bytes.size() / 3;
    writer.write(as_bytes(bytes).first(cut));
    writer.write(as_bytes(bytes).subspan(cut));
    total += bytes.size();
  }
  writer.finish();
  CHECK(writer.written_bytes() == total);
  CHECK(read_file(dir / "m").find(R"("__metadata__":{"format":"pt"})") == 9);
  const SafetensorsFile file(dir / "m");
  REQUIRE(file.tensors().size() == tensors.size());
  for (const auto& tensor : tensors) {
    CHECK(text_of(file.bytes(tensor.name)) == bytes_of(tensor));
  }
}

TEST_CASE("The data begin at a multiple of 8 for every length of the header", "[io]") {
  const TempDir dir;
  for (size_t length = 1; length <= 9; ++length) {
    const TensorInfo tensor = {std::string(length, 'n'), DType::kU8, {1}};
    write_tensors(dir / "m", {tensor});
    const std::string bytes = read_file(dir / "m");
    CHECK((bytes.size() - 1) % 8 == 0);
    CHECK(bytes.substr(bytes.size() - 1) == bytes_of(tensor));
    CHECK(SafetensorsFile(dir / "m").tensors().size() == 1);
  }
}

TEST_CASE("A copied tensor equals its source, also repeated, large and on another disk", "[io]") {
  const fs::path memory = "/dev/shm";
  const bool has_memory = fs::is_directory(memory) && ::access(memory.c_str(), W_OK) == 0;
  const bool is_other_disk = GENERATE(false, true);
  if (is_other_disk && !has_memory) {
    MOE_SKIP("no /dev/shm to write to");
  }
  const TempDir dir;
  // More than a copy block (8 MiB) and a flush step (32 MiB).
  const int64_t large = (int64_t{40} << 20) + 12345;
  const fs::path source = is_other_disk ? memory / dir.path().filename() : dir / "source";
  write_tensors(
      source,
      {{"small", DType::kU8, {7}}, {"large", DType::kU8, {large}}, {"empty", DType::kF32, {0, 4}}});
  {
    const SafetensorsFile file(source);
    SafetensorsWriter writer(dir / "copy", {{"l0", DType::kU8, {large}},
                                            {"e", DType::kF32, {0, 4}},
                                            {"s0", DType::kU8, {7}},
                                            {"l1", DType::kU8, {large}},
                                            {"s1", DType::kU8, {7}}});
    for (const char* name : {"large", "empty", "small", "large", "small"}) {
      writer.copy(file, name);
    }
    writer.finish();
  }
  fs::remove(source);
  const SafetensorsFile copy(dir / "copy");
  for (const auto& [name, from, size] :
       {std::tuple<const char*, const char*, int64_t>{"l0", "large", large},
        {"l1", "large", large},
        {"s0", "small", 7},
        {"s1", "small", 7}}) {
    CHECK((text_of(copy.bytes(name)) == bytes_of({from, DType::kU8, {size}})));
  }
}

TEST_CASE("A full disk is reported by header, write and copy with the file", "[io]") {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {1'000'000}}};
  const SafetensorsFile file(write_tensors(dir / "source", tensors));
  std::string write_error, copy_error;
  {
    const FileSizeLimit limit(500'000);
    write_error = user_error_of([&] { write_tensors(dir / "a", tensors); });
    copy_error = user_error_of([&] { SafetensorsWriter(dir / "b", tensors).copy(file, "t"); });
  }
  const std::string header_error =
      user_error_of([&] { SafetensorsWriter writer("/dev/full", tensors); });
  CHECK_THAT(header_error, contains_text("disk full: /dev/full "));
  CHECK_THAT(write_error, contains_text("disk full: " + (dir / "a").string()));
  CHECK_THAT(copy_error, contains_text("disk full: " + (dir / "b").string()));
  CHECK(fs::file_size(dir / "a") == 500'000);  // the short write before the failing one was used
}

TEST_CASE("A path that cannot be created and a source that shrinks are refused by name", "[io]") {
  const TempDir dir;
  CHECK_THAT(user_error_of([&] { SafetensorsWriter writer(dir / "none/m", {}); }),
             contains_text((dir / "none/m").string() + ": cannot be written: No such file"));
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {1'000'000}}};
  const SafetensorsFile file(write_tensors(dir / "source", tensors));
  fs::resize_file(dir / "source", 500'000);
  SafetensorsWriter writer(dir / "copy", tensors);
  CHECK_THAT(user_error_of([&] { writer.copy(file, "t"); }),
             contains_text((dir / "source").string() + ": was truncated"));
}

TEST_CASE("A wrong number of bytes and a repeated name are logic errors", "[io]") {
  const TempDir dir;
  const std::vector<TensorInfo> tensors = {{"t", DType::kU8, {4}}};
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", tensors).write(as_bytes("12345")), std::logic_error);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", tensors).finish(), std::logic_error);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "m", {tensors[0], tensors[0]}), std::logic_error);
  const auto too_few = [](SafetensorsWriter&) {};
  CHECK_THROWS_AS(moe::io::write_tensors(dir.path(), {{tensors[0], too_few}}, 100),
                  std::logic_error);
}

TEST_CASE("A file that threads or processes write in parts equals the file of one writer", "[io]") {
  const TempDir dir;
  write_tensors(dir / "one", kTensors);
  for (const size_t parts : {1, 2, 5}) {
    create_safetensors(dir / "many", kTensors);
    std::vector<std::thread> writers;
    for (size_t part = 0; part < parts; ++part) {
      writers.emplace_back([&, part] { write_part(dir / "many", part, parts); });
    }
    for (auto& writer : writers) {
      writer.join();
    }
    CHECK(read_file(dir / "many") == read_file(dir / "one"));
  }
  create_safetensors(dir / "many", kTensors);
  std::vector<pid_t> children;
  for (size_t part = 0; part < 3; ++part) {
    children.push_back(moe::test::start_child([&, part] { write_part(dir / "many", part, 3); }));
  }
  for (const pid_t child : children) {
    CHECK(moe::test::wait_for_child(child) == 0);
  }
  CHECK(read_file(dir / "many") == read_file(dir / "one"));
}

TEST_CASE("Bytes that no part writes are zero, also in place of an older file", "[io]") {
  const TempDir dir;
  write_tensors(dir / "file", kTensors);
  create_safetensors(dir / "file", {{"t", DType::kU8, {6}}});
  SafetensorsPatch patch(dir / "file");
  patch.write("t", 2, as_bytes("xy"));
  patch.finish();
  CHECK(text_of(SafetensorsFile(dir / "file").bytes("t")) == std::string("\0\0xy\0\0", 6));
}

TEST_CASE("A part outside its tensor, and of a missing or truncated file, is refused", "[io]") {
  const TempDir dir;
  const auto open_error = [&] { return user_error_of([&] { SafetensorsPatch(dir / "file"); }); };
  CHECK_THAT(open_error(), contains_text("file"));
  create_safetensors(dir / "file", kTensors);
  SafetensorsPatch patch(dir / "file");
  patch.write("b", 14, {});  // no bytes at the end of the tensor
  for (const uint64_t begin : {uint64_t{13}, uint64_t{14}, uint64_t{15}, ~uint64_t{0}}) {
    CHECK_THROWS(patch.write("b", begin, as_bytes("xy")));
  }
  CHECK_THAT(user_error_of([&] { patch.write("other", 0, {}); }),
             contains_text("file: holds no tensor 'other'"));
  fs::resize_file(dir / "file", 200);
  CHECK_THAT(open_error(), contains_text("truncated"));
}
