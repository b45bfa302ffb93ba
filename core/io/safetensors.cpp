// Writing takes one pass, without seeks or memory for tensor data. The kernel would let gigabytes
// of dirty pages pile up, and fsync() would wait for all of them, so writeback is started every 32
// MB.
#include "core/io/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe::io {

namespace fs = std::filesystem;

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
  std::vector<const char*> known;
  for (const auto& row : kDTypes) {
    if (name == row.name) {
      return row.dtype;
    }
    known.push_back(row.name);
  }
  throw UserError("{}: unknown dtype '{}' (known: {})", where, printable(name, 40),
                  fmt::join(known, ", "));
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

// Returns the bytes of a tensor of this dtype and shape. Multiplies from left to right like
// TensorInfo::elements(), which therefore does not overflow later.
int64_t checked_bytes(const TensorInfo& info, const std::string& where) {
  int64_t bytes = 1;
  bool overflows = false;
  for (const int64_t size : info.shape) {
    overflows = overflows || __builtin_mul_overflow(bytes, size, &bytes);
  }
  overflows = overflows || __builtin_mul_overflow(bytes, dtype_bytes(info.dtype), &bytes);
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
  USER_ERROR_IF(std::ranges::any_of(shape, [](int64_t size) { return size < 0; }),
                "{}: shape {} has a negative size", where, printable(shape_text(shape)));
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
  const auto last = std::ranges::max_element(entries, {}, &TensorEntry::end);
  const uint64_t claimed = last == entries.end() ? 0 : last->end;
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

constexpr size_t kCopyBlock = size_t{8} << 20;
constexpr uint64_t kFlushStep = uint64_t{32} << 20;

// Copies up to `length` bytes between two files inside the kernel. Returns the number copied, which
// is smaller if the file systems do not support it, for sources in /proc and on kernels before 4.5.
// Throws UserError if the disk is full.
uint64_t copy_in_kernel(int source, int64_t offset, uint64_t length, const Descriptor& target,
                        const fs::path& target_path) {
  uint64_t copied = 0;
  while (copied < length) {
    const ssize_t count =
        ::copy_file_range(source, &offset, target.get(), nullptr, length - copied, 0);
    if (count > 0) {
      copied += static_cast<uint64_t>(count);
    } else if (count == 0) {
      break;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      throw_write_error(errno, target_path);
    } else if (errno != EINTR) {
      break;
    }
  }
  return copied;
}

// Starts asynchronous writeback of a range; has no effect if the file system does not support it.
void start_writeback(const Descriptor& file, uint64_t offset, uint64_t bytes) {
  ::sync_file_range(file.get(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
}

// Throws UserError if the source was truncated; write() from its mapping would fail with EFAULT.
void check_not_truncated(const SafetensorsFile& source) {
  struct stat status {};
  USER_ERROR_IF(::fstat(source.file().descriptor(), &status) == 0 &&
                    static_cast<uint64_t>(status.st_size) < source.file().bytes().size(),
                "{}: was truncated while it was read; fetch it again", source.path().string());
}

// Returns the 8 bytes of the length and the JSON header, padded with spaces so that the data starts
// at a multiple of 8. transformers refuses files without "format". Built as text, because inserting
// into an ordered JSON object is linear in its keys.
std::string safetensors_start(const std::vector<TensorInfo>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    MOE_CHECK(names.insert(tensor.name).second, "{} is written twice", tensor.name);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        Json(tensor.name).dump(), dtype_name(tensor.dtype),
                        Json(tensor.shape).dump(), offset, offset + tensor.bytes());
    offset += tensor.bytes();
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  MOE_CHECK(text.size() <= kMaxHeaderBytes, "a header of {} bytes; write more shards", text.size());
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

uint64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  return std::transform_reduce(
      tensors.begin(), tensors.end(), uint64_t{0}, std::plus(),
      [](const auto& tensor) { return static_cast<uint64_t>(tensor.bytes()); });
}

// Reserves the blocks of the file, if the file system supports it. Throws UserError if the disk has
// too few. Contiguous blocks make a copy a quarter faster.
void reserve(const Descriptor& file, uint64_t bytes, const fs::path& path) {
  if (::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT)) {
    throw_write_error(errno, path);
  }
}

std::vector<TensorInfo> tensor_infos(std::span<const TensorSource> tensors) {
  std::vector<TensorInfo> infos;
  std::ranges::transform(tensors, std::back_inserter(infos), &TensorSource::info);
  return infos;
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return dtype_row(dtype).bytes; }

const char* dtype_name(DType dtype) { return dtype_row(dtype).name; }

bool is_floating(DType dtype) { return dtype_row(dtype).is_floating; }

int64_t TensorInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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
  std::ranges::sort(entries, {}, [](const TensorEntry& entry) {
    return std::tie(entry.begin, entry.end, entry.info.name);
  });
  const uint64_t data_begin = kLengthBytes + text.size();
  check_tiling(entries, file_.bytes().size() - data_begin, where);
  for (auto& entry : entries) {
    ranges_[entry.info.name] = {data_begin + entry.begin, data_begin + entry.end};
    tensors_.push_back(std::move(entry.info));
  }
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const auto range = ranges_.find(name);
  USER_ERROR_IF(range == ranges_.end(), "{}: holds no tensor '{}'", path_.string(),
                printable(name));
  const auto [begin, end] = range->second;
  return file_.bytes().subspan(begin, end - begin);
}

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<TensorInfo> tensors)
    : path_(path), file_(create_file(path)) {
  expected_bytes_ = total_bytes(tensors);
  const std::string start = safetensors_start(tensors);
  reserve(file_, start.size() + expected_bytes_, path_);
  write_all(file_, std::as_bytes(std::span(start)), path_);
  header_bytes_ = start.size();
}

void SafetensorsWriter::count(uint64_t bytes) {
  written_bytes_ += bytes;
  if (written_bytes_ - flushed_bytes_ >= kFlushStep) {
    start_writeback(file_, header_bytes_ + flushed_bytes_, written_bytes_ - flushed_bytes_);
    flushed_bytes_ = written_bytes_;
  }
}

void SafetensorsWriter::write(std::span<const std::byte> piece) {
  MOE_CHECK(written_bytes_ + piece.size() <= expected_bytes_, "{}: {} bytes after {} of {}",
            path_.string(), piece.size(), written_bytes_, expected_bytes_);
  while (!piece.empty()) {
    const auto block = piece.first(std::min<size_t>(piece.size(), kFlushStep));
    write_all(file_, block, path_);
    count(block.size());
    piece = piece.subspan(block.size());
  }
}

void SafetensorsWriter::copy(const SafetensorsFile& source, const std::string& name) {
  std::span<const std::byte> rest = source.bytes(name);
  MOE_CHECK(written_bytes_ + rest.size() <= expected_bytes_, "{}: '{}' is one too many",
            path_.string(), name);
  bool in_kernel = true;
  while (!rest.empty()) {
    const auto block = rest.first(std::min(rest.size(), kCopyBlock));
    const auto offset = block.data() - source.file().bytes().data();
    const uint64_t copied =
        in_kernel ? copy_in_kernel(source.file().descriptor(), offset, block.size(), file_, path_)
                  : 0;
    in_kernel = copied == block.size();
    if (!in_kernel) {
      check_not_truncated(source);
      write_all(file_, block.subspan(copied), path_);
      source.file().drop(block);
    }
    count(block.size());
    rest = rest.subspan(block.size());
  }
}

void SafetensorsWriter::finish() {
  MOE_CHECK(written_bytes_ == expected_bytes_, "{}: {} of {} bytes written", path_.string(),
            written_bytes_, expected_bytes_);
  sync(file_, path_);
}

void create_safetensors(const fs::path& path, const std::vector<TensorInfo>& tensors) {
  const std::string start = safetensors_start(tensors);
  const uint64_t length = start.size() + total_bytes(tensors);
  const Descriptor file = create_file(path);
  reserve(file, length, path);
  if (::ftruncate(file.get(), static_cast<off_t>(length)) != 0) {
    throw_write_error(errno, path);
  }
  write_all(file, std::as_bytes(std::span(start)), path, 0);
  sync(file, path);
}

SafetensorsPatch::SafetensorsPatch(const fs::path& path)
    : path_(path), contents_(path), file_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (!file_.is_open()) {
    fail_file(path.string(), "cannot be written");
  }
}

void SafetensorsPatch::write(const std::string& name, uint64_t begin,
                             std::span<const std::byte> bytes) {
  const auto tensor = contents_.bytes(name);
  MOE_CHECK(begin <= tensor.size() && bytes.size() <= tensor.size() - begin,
            "{}: bytes {} to {} of '{}', which has {}", path_.string(), begin, begin + bytes.size(),
            name, tensor.size());
  auto offset = static_cast<uint64_t>(tensor.data() - contents_.file().bytes().data()) + begin;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), kFlushStep));
    write_all(file_, block, path_, offset);
    if (block.size() == kFlushStep) {
      start_writeback(file_, offset, block.size());
    }
    offset += block.size();
    bytes = bytes.subspan(block.size());
  }
}

std::vector<Shard> plan_shards(const std::vector<TensorInfo>& tensors, uint64_t shard_bytes) {
  MOE_CHECK(shard_bytes > 0);
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    if (!shards.back().tensors.empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(tensor);
    filled += bytes;
  }
  for (size_t number = 0; number < shards.size(); ++number) {
    shards[number].file = shards.size() == 1 ? "model.safetensors"
                                             : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                           number + 1, shards.size());
  }
  return shards;
}

void write_index(const fs::path& folder, const std::vector<Shard>& shards) {
  Json weight_map = Json::object();
  uint64_t total = 0;
  for (const auto& shard : shards) {
    total += total_bytes(shard.tensors);
    for (const auto& tensor : shard.tensors) {
      MOE_CHECK(!weight_map.contains(tensor.name), "{} is written twice", tensor.name);
      weight_map[tensor.name] = shard.file;
    }
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}},
                        {"weight_map", std::move(weight_map)}};
    write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
}

uint64_t write_safetensors(const fs::path& path, std::span<const TensorSource> tensors,
                           const std::function<void(uint64_t)>& on_bytes, uint64_t bytes_before) {
  SafetensorsWriter writer(path, tensor_infos(tensors));
  for (const auto& tensor : tensors) {
    const uint64_t expected = writer.written_bytes() + static_cast<uint64_t>(tensor.info.bytes());
    tensor.write(writer);
    MOE_CHECK(writer.written_bytes() == expected, "{}: '{}' sent the wrong number of bytes",
              path.string(), tensor.info.name);
    if (on_bytes) {
      on_bytes(bytes_before + writer.written_bytes());
    }
  }
  writer.finish();
  return writer.written_bytes();
}

uint64_t write_tensors(const fs::path& folder, const std::vector<TensorSource>& tensors,
                       uint64_t shard_bytes, const std::function<void(uint64_t)>& on_bytes) {
  const std::vector<Shard> shards = plan_shards(tensor_infos(tensors), shard_bytes);
  std::span<const TensorSource> rest = tensors;
  uint64_t total = 0;
  for (const auto& shard : shards) {
    const auto part = rest.first(shard.tensors.size());
    rest = rest.subspan(part.size());
    total += write_safetensors(folder / shard.file, part, on_bytes, total);
  }
  write_index(folder, shards);
  return total;
}

}  // namespace moe::io
