#include "core/io/safetensors.h"

#include <fmt/ranges.h>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using moe::io::DType;
using moe::io::SafetensorsFile;
using namespace moe::test;

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
  write_file(dir / "m", bytes);
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

}  // namespace

TEST_CASE("Tensors are read as the header describes them, in file order", "[io]") {
  const TempDir dir;
  const std::string header = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},)"
                             R"("__metadata__":{"format":"pt","who":"us"},)"
                             R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                             R"("empty":{"dtype":"F16","shape":[0,5],"data_offsets":[10,10]}}   )";
  write_file(dir / "m", length_bytes(header.size()) + header + "0123456789");
  const SafetensorsFile file(dir / "m");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[0].shape.empty());
  CHECK(file.tensors()[0].elements() == 1);
  CHECK(file.tensors()[1].name == "b");
  CHECK(file.tensors()[1].bytes() == 8);
  CHECK(file.tensors()[2].dtype == DType::kF16);
  CHECK(file.tensors()[2].bytes() == 0);
  const auto text = [&](const char* name) {
    const auto bytes = file.bytes(name);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text("a") == "01");
  CHECK(text("b") == "23456789");
  CHECK(text("empty").empty());
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
