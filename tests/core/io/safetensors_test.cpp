#include "core/io/safetensors.h"

#include <fmt/ranges.h>

#include <array>

#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::DType;
using moe::io::SafetensorsFile;
using moe::test::TempDir;
using moe::test::user_error_of;

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

// The message of opening these bytes, without the file's name in front; "" when they are accepted.
std::string open_error(const std::string& bytes) {
  const TempDir dir;
  moe::test::write_file(dir / "m", bytes);
  const std::string message = user_error_of([&] { SafetensorsFile file(dir / "m"); });
  const std::string front = (dir / "m").string() + ": ";
  return message.starts_with(front) ? message.substr(front.size()) : message;
}

std::string tensor(const std::string& name, const std::string& rest) {
  return fmt::format("\"{}\":{{{}}}", name, rest);
}

// A header of these entries. (Formatted, not added up: GCC 12 warns of overlaps in "{" + text that
// are none.)
std::string header_of(const std::vector<std::string>& entries) {
  return fmt::format("{{{}}}", fmt::join(entries, ","));
}

}  // namespace

TEST_CASE("a file is read as its header says, in file order", "[io]") {
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
  const auto text = [&](const char* name) {
    const auto bytes = file.bytes(name);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text("a") == "01");
  CHECK(text("b") == "23456789");
  CHECK(text("empty").empty());
  CHECK(user_error_of([&] { file.bytes("c"); }) == (dir / "m").string() + ": holds no tensor 'c'");
}

TEST_CASE("a file without tensors is a file", "[io]") {
  CHECK(open_error(file_bytes("{}", 0)).empty());
  CHECK(open_error(file_bytes(R"({"__metadata__":{}})", 0)).empty());
}

TEST_CASE("empty tensors may stand first, last and between", "[io]") {
  const std::string header =
      "{" + tensor("a", R"("dtype":"F32","shape":[0,7],"data_offsets":[0,0])") + "," +
      tensor("b", R"("dtype":"U8","shape":[3],"data_offsets":[0,3])") + "," +
      tensor("c", R"("dtype":"F32","shape":[7,0],"data_offsets":[3,3])") + "," +
      tensor("d", R"("dtype":"U8","shape":[1],"data_offsets":[3,4])") + "}";
  CHECK(open_error(file_bytes(header, 4)).empty());
}

TEST_CASE("a file that ends early or lies about its header is refused", "[io]") {
  CHECK(open_error("") == "0 bytes are too few for a safetensors file; fetch it again");
  CHECK(open_error("1234567") == "7 bytes are too few for a safetensors file; fetch it again");
  CHECK(open_error(length_bytes(100) + "{}") ==
        "truncated: claims a header of 100 bytes, the file has 2 after the length; fetch it again");
  CHECK(open_error(length_bytes(100'000'001) + "{}") ==
        "claims a header of 100000001 bytes, more than the 100000000 that safetensors allows: not "
        "a safetensors file");
  CHECK(open_error(std::string(16, '\xFF')) ==
        "claims a header of 18446744073709551615 bytes, more than the 100000000 that safetensors "
        "allows: not a "
        "safetensors file");
  CHECK(open_error(file_bytes("", 0)) == "the header is not a JSON object: not a safetensors file");
  CHECK(open_error(file_bytes("[]", 0)) ==
        "the header is not a JSON object: not a safetensors file");
  CHECK(open_error(file_bytes("{\"a\"", 0)).starts_with("header: broken JSON: line 1"));
  CHECK(open_error(file_bytes("{\"a\xFF\":1}", 0)) ==
        "header: not UTF-8 at byte 3 (0xFF): save it as UTF-8");
}

TEST_CASE("a tensor entry that is not one is refused with the tensor's name", "[io]") {
  const std::array<std::array<std::string, 2>, 13> cases = {{
      {R"("dtype":"F32","shape":[1])", "'a': 'data_offsets' is missing"},
      {R"("dtype":"F32","data_offsets":[0,4])", "'a': 'shape' is missing"},
      {R"("shape":[1],"data_offsets":[0,4])", "'a': 'dtype' is missing"},
      {R"("dtype":4,"shape":[1],"data_offsets":[0,4])", "'a': 'dtype' must be a string, is 4"},
      {R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])",
       "'a': unknown dtype 'F8_E4M3' (known: F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL)"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", "'a': shape [-1] has a negative size"},
      {R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])",
       "'a': 'shape[0]' must be a whole number, is 1.5"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])",
       "'a': shape [4294967296, 4294967296] is larger than any memory"},
      {R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4])",
       "'a': shape [4611686018427387904] is larger than any memory"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4])",
       "'a': F32 of shape [2] takes 8 bytes, its data_offsets [0, 4] span 4; fetch the file again"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,0])",
       "'a': data_offsets [4, 0] must be a begin and an end"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])",
       "'a': data_offsets [-4, 0] must be a begin and an end"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])",
       "'a': data_offsets [0, 4, 8] must be a begin and an end"},
  }};
  for (const auto& [entry, message] : cases) {
    CHECK(open_error(file_bytes(header_of({tensor("a", entry)}), 4)) == message);
  }
  CHECK(open_error(file_bytes(R"({"a":7})", 0)) ==
        "'a': must be an object with a key 'dtype', is 7");
}

TEST_CASE("tensors must tile the data: no gap, no overlap, nothing beyond", "[io]") {
  const std::string a = tensor("a", R"("dtype":"U8","shape":[4],"data_offsets":[0,4])");
  const auto with_b = [&](const std::string& entry) { return header_of({a, tensor("b", entry)}); };
  const std::string overlap = with_b(R"("dtype":"U8","shape":[4],"data_offsets":[2,6])");
  const std::string gap = with_b(R"("dtype":"U8","shape":[2],"data_offsets":[6,8])");
  const std::string inside = with_b(R"("dtype":"U8","shape":[0],"data_offsets":[2,2])");
  CHECK(open_error(file_bytes(overlap, 6)) ==
        "'b' begins at byte 2 of the data, the tensor before it ends at 4: they overlap; fetch the "
        "file again");
  CHECK(open_error(file_bytes(gap, 8)) ==
        "'b' begins at byte 6 of the data, the tensor before it ends at 4: a gap; fetch the file "
        "again");
  CHECK(open_error(file_bytes(inside, 4)) ==
        "'b' begins at byte 2 of the data, the tensor before it ends at 4: they overlap; fetch the "
        "file again");
  CHECK(open_error(file_bytes(header_of({a}), 3)) ==
        "truncated: header says 4 bytes of data, the file has 3; fetch it again");
  CHECK(open_error(file_bytes(header_of({a}), 9)) ==
        "5 bytes follow the last tensor, which ends at byte 4 of the data; fetch the file again");
  CHECK(open_error(file_bytes("{}", 1)) ==
        "1 bytes follow the last tensor, which ends at byte 0 of the data; fetch the file again");
}

TEST_CASE("a tensor named twice and metadata that are not strings are refused", "[io]") {
  const std::string a = tensor("a", R"("dtype":"U8","shape":[0],"data_offsets":[0,0])");
  CHECK(open_error(file_bytes(header_of({a, a}), 0)) == "header: 'a' is there twice");
  CHECK(open_error(file_bytes(R"({"__metadata__":{"n":1}})", 0)) ==
        "__metadata__: 'n' must be a string, is 1");
  CHECK(open_error(file_bytes(R"({"__metadata__":[]})", 0)) ==
        "__metadata__: must be an object of strings");
}

TEST_CASE("what is not a file to read is refused without waiting", "[io]") {
  const TempDir dir;
  CHECK(user_error_of([&] { SafetensorsFile file(dir / "none"); }) ==
        (dir / "none").string() + ": no such file");
  CHECK(user_error_of([&] { SafetensorsFile file(dir.path()); }) ==
        dir.path().string() + ": is a folder, not a regular file");
  CHECK(user_error_of([] { SafetensorsFile file("/dev/zero"); }) ==
        "/dev/zero: is not a regular file (a pipe or a device)");
}

TEST_CASE("every truncation of a real file is refused", "[io]") {
  MOE_NEED_SHARED_DATA();
  const std::string whole =
      moe::test::read_file(moe::test::shared_data() / "stories260K-hf" / "model.safetensors");
  REQUIRE(whole.size() > 100'000);
  CHECK(open_error(whole).empty());
  for (size_t bytes = 0; bytes < whole.size(); bytes += bytes < 64 ? 1 : bytes / 3) {
    CHECK_FALSE(open_error(whole.substr(0, bytes)).empty());
  }
}
