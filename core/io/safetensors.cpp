// Nothing in the header is trusted before it is checked against the file size, and no tensor is
// accessible before all of them are known to tile the data exactly.
#include "core/io/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe::io {

namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
  bool is_floating;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::kF32, "F32", 4, true},   DTypeRow{DType::kF16, "F16", 2, true},
    DTypeRow{DType::kBF16, "BF16", 2, true}, DTypeRow{DType::kF64, "F64", 8, false},
    DTypeRow{DType::kI64, "I64", 8, false},  DTypeRow{DType::kI32, "I32", 4, false},
    DTypeRow{DType::kI16, "I16", 2, false},  DTypeRow{DType::kI8, "I8", 1, false},
    DTypeRow{DType::kU8, "U8", 1, false},    DTypeRow{DType::kBool, "BOOL", 1, false},
};

const DTypeRow& dtype_row(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  MOE_CHECK(index < kDTypes.size() && kDTypes.at(index).dtype == dtype);
  return kDTypes.at(index);
}

DType parse_dtype(const std::string& name, const std::string& where) {
  std::string supported;
  for (const auto& row : kDTypes) {
    if (name == row.name) {
      return row.dtype;
    }
    supported += supported.empty() ? row.name : std::string(", ") + row.name;
  }
  throw UserError("{}: unknown dtype '{}' (known: {})", where, printable(name, 40), supported);
}

constexpr uint64_t kLengthBytes = 8;

struct TensorEntry {
  TensorInfo info;
  uint64_t begin = 0, end = 0;  // in the data, which starts after the header
};

// Returns the text of the header. Throws UserError if the file is truncated or no safetensors file.
std::string_view read_header_text(std::span<const std::byte> file, const std::string& where) {
  USER_ERROR_IF(file.size() < kLengthBytes,
                "{}: {} bytes are too few for a safetensors file; fetch it again", where,
                file.size());
  static_assert(std::endian::native == std::endian::little);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  USER_ERROR_IF(length > kMaxHeaderBytes,
                "{}: claims a header of {} bytes, more than the {} that safetensors allows: not a "
                "safetensors file",
                where, length, kMaxHeaderBytes);
  USER_ERROR_IF(length > file.size() - kLengthBytes,
                "{}: truncated: claims a header of {} bytes, the file has {} after the length; "
                "fetch it again",
                where, length, file.size() - kLengthBytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  USER_ERROR_IF(!text.starts_with('{'),
                "{}: the header is not a JSON object: not a safetensors file", where);
  return text;
}

// Returns the bytes of a tensor of this dtype and shape. Multiplies left to right, as
// TensorInfo::elements() does, so that a shape that passes here overflows nowhere.
int64_t checked_bytes(const TensorInfo& info, const std::string& where) {
  int64_t product = 1;
  bool overflows = false;
  for (const int64_t size : info.shape) {
    overflows = overflows || __builtin_mul_overflow(product, size, &product);
  }
  int64_t bytes = 0;
  overflows = overflows || __builtin_mul_overflow(product, dtype_bytes(info.dtype), &bytes);
  USER_ERROR_IF(overflows, "{}: shape {} is larger than any memory", where,
                printable(shape_text(info.shape)));
  return bytes;
}

TensorEntry parse_entry(const std::string& name, const Json& value, const std::string& file) {
  const std::string where = fmt::format("{}: '{}'", file, printable(name));
  TensorEntry entry;
  entry.info.name = name;
  entry.info.dtype = parse_dtype(get_string(value, "dtype", where), where);
  entry.info.shape = get_ints(value, "shape", where);
  const std::vector<int64_t>& shape = entry.info.shape;
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) {
    throw UserError("{}: shape {} has a negative size", where, printable(shape_text(shape)));
  }
  const std::vector<int64_t> offsets = get_ints(value, "data_offsets", where);
  USER_ERROR_IF(offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0],
                "{}: data_offsets {} must be a begin and an end", where,
                printable(shape_text(offsets)));
  const int64_t bytes = checked_bytes(entry.info, where);
  USER_ERROR_IF(
      offsets[1] - offsets[0] != bytes,
      "{}: {} of shape {} takes {} bytes, its data_offsets {} span {}; fetch the file again", where,
      dtype_name(entry.info.dtype), printable(shape_text(entry.info.shape)), bytes,
      shape_text(offsets), offsets[1] - offsets[0]);
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  return entry;
}

// Throws UserError if the metadata are not an object of strings.
void check_metadata(const Json& value, const std::string& file) {
  const std::string where = file + ": __metadata__";
  USER_ERROR_IF(!value.is_object(), "{}: must be an object of strings", where);
  for (const auto& [key, unused] : value.items()) {
    get_string(value, key, where);
  }
}

// Throws UserError if `entries`, sorted by offset, do not tile [0, data_bytes).
void check_tiling(const std::vector<TensorEntry>& entries, uint64_t data_bytes,
                  const std::string& where) {
  uint64_t claimed = 0;
  for (const auto& entry : entries) {
    claimed = std::max(claimed, entry.end);
  }
  USER_ERROR_IF(claimed > data_bytes,
                "{}: truncated: header says {} bytes of data, the file has {}; fetch it again",
                where, claimed, data_bytes);
  uint64_t at = 0;
  for (const auto& entry : entries) {
    USER_ERROR_IF(entry.begin != at,
                  "{}: '{}' begins at byte {} of the data, the tensor before it ends at {}: {}; "
                  "fetch the file again",
                  where, printable(entry.info.name), entry.begin, at,
                  entry.begin < at ? "they overlap" : "a gap");
    at = entry.end;
  }
  USER_ERROR_IF(at != data_bytes,
                "{}: {} bytes follow the last tensor, which ends at byte {} of the data; fetch the "
                "file again",
                where, data_bytes - at, at);
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return dtype_row(dtype).bytes; }

const char* dtype_name(DType dtype) { return dtype_row(dtype).name; }

bool is_floating(DType dtype) { return dtype_row(dtype).is_floating; }

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : SafetensorsFile(open_to_read(path), path) {}

SafetensorsFile::SafetensorsFile(Descriptor file, const std::filesystem::path& path)
    : path_(path), file_(std::move(file), path) {
  const std::string where = path.string();
  const std::string_view text = read_header_text(file_.bytes(), where);
  const Json header = parse_json(text, where + ": header", DuplicateKeys::kRefused);
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(value, where);
    } else {
      entries.push_back(parse_entry(name, value, where));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  const uint64_t data_begin = kLengthBytes + text.size();
  check_tiling(entries, file_.bytes().size() - data_begin, where);
  for (auto& entry : entries) {
    ranges_[entry.info.name] = {data_begin + entry.begin, data_begin + entry.end};
    tensors_.push_back(std::move(entry.info));
  }
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const auto found = ranges_.find(name);
  USER_ERROR_IF(found == ranges_.end(), "{}: holds no tensor '{}'", path_.string(),
                printable(name));
  const auto [begin, end] = found->second;
  return file_.bytes().subspan(begin, end - begin);
}

}  // namespace moe::io
