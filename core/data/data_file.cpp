// Opening of data files: compression, Parquet, and files of other kinds.

#include <dlfcn.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/data/records.h"

namespace moe::data {

namespace fs = std::filesystem;

namespace {

using namespace std::string_view_literals;

constexpr size_t kBlockBytes = size_t{64} << 10;

// Returns the length of the byte order mark at the beginning of `text`, or 0.
size_t mark_bytes(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? kMark.size() : 0;
}

// Returns the kind of an unsupported file that begins with `head` and how to convert it; null for
// other files.
const char* unsupported_kind(std::string_view head) {
  constexpr std::array<std::pair<std::string_view, const char*>, 16> kKinds = {{
      {"ARROW1", "an Arrow file; convert it to Parquet or JSON lines (pandas: read_feather)"},
      {"\xFF\xFF\xFF\xFF", "an Arrow stream; convert it to Parquet (datasets: to_parquet)"},
      {"SQLite format 3", "an SQLite database; export its table as CSV or JSON lines"},
      {"PK\x03\x04", "a zip archive; unpack it and give its files"},
      {"BZh", "packed with bzip2; unpack it (bunzip2), or pack it with gzip or zstd"},
      {"\xFD\x37zXZ", "packed with xz; unpack it (unxz), or pack it with gzip or zstd"},
      {"\x89PNG", "a picture; give files of data"},
      {"\xFF\xFE\0\0"sv, "UTF-32; convert it: iconv -f UTF-32 -t UTF-8"},
      {"\0\0\xFE\xFF"sv, "UTF-32; convert it: iconv -f UTF-32 -t UTF-8"},
      {"\xFF\xFE", "UTF-16; convert it: iconv -f UTF-16 -t UTF-8"},
      {"\xFE\xFF", "UTF-16; convert it: iconv -f UTF-16 -t UTF-8"},
      {"version https://git-lfs", "a pointer of Git LFS; fetch the file itself (git lfs pull)"},
      {"<!doctype html", "an HTML page, as of a failed download; fetch the file itself"},
      {"<!DOCTYPE html", "an HTML page, as of a failed download; fetch the file itself"},
      {"<html", "an HTML page, as of a failed download; fetch the file itself"},
      {"PAR1", "a Parquet file; unpack it"},  // within another packing
  }};
  const auto found =
      std::ranges::find_if(kKinds, [&](const auto& kind) { return head.starts_with(kind.first); });
  return found == kKinds.end() ? nullptr : found->second;
}

// Base of the gzip and zstd readers. Reads the file and provides the text in blocks of 64 KiB.
class UnpackingBuffer : public std::streambuf {
 public:
  explicit UnpackingBuffer(std::unique_ptr<std::streambuf> file)
      : file_(std::move(file)), packed_(kBlockBytes), text_(kBlockBytes) {}

 protected:
  // Decompresses blocks of refill() into text(). Returns the number of bytes, 0 at the end of the
  // file.
  virtual size_t unpack() = 0;

  // Returns the next block of the file, empty at its end.
  std::string_view refill() {
    const auto count = file_->sgetn(packed_.data(), static_cast<std::streamsize>(packed_.size()));
    packed_bytes_ += static_cast<uint64_t>(count);
    return {packed_.data(), static_cast<size_t>(count)};
  }

  std::vector<char>& text() { return text_; }

  [[noreturn]] static void fail_short(const char* packing) {
    throw BrokenStream(fmt::format(
        "the {} data end in the middle: the file is cut short; fetch it again", packing));
  }
  [[noreturn]] static void fail_damaged(const char* packing, const char* words) {
    throw BrokenStream(
        fmt::format("the {} data are damaged ({}); fetch the file again", packing, words));
  }

  int_type underflow() override {
    const size_t count = unpack();
    if (count == 0) {
      return traits_type::eof();
    }
    const char* const kind = text_bytes_ == 0 ? unsupported_kind({text_.data(), count}) : nullptr;
    if (kind != nullptr) {
      throw BrokenStream(fmt::format("the unpacked data are {}", kind));
    }
    text_bytes_ += count;
    if (text_bytes_ > kFreeBytes && text_bytes_ / kMaxExpansion > packed_bytes_) {
      throw BrokenStream(
          fmt::format("the file unpacks to more than {} times its size, which no text does; unpack "
                      "it by hand if it is meant to be so",
                      kMaxExpansion));
    }
    const size_t mark = text_bytes_ == count ? mark_bytes({text_.data(), count}) : 0;
    setg(text_.data(), text_.data() + mark, text_.data() + count);
    return mark == count ? underflow() : traits_type::to_int_type(*gptr());
  }

 private:
  std::unique_ptr<std::streambuf> file_;
  std::vector<char> packed_, text_;
  uint64_t packed_bytes_ = 0, text_bytes_ = 0;
};

// Reader of gzip files of one or more members. zlib verifies the checksum of each.
class GzipBuffer : public UnpackingBuffer {
 public:
  explicit GzipBuffer(std::unique_ptr<std::streambuf> file) : UnpackingBuffer(std::move(file)) {
    constexpr int kGzipWindowBits = 15 + 16;
    if (inflateInit2(&stream_, kGzipWindowBits) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  GzipBuffer(const GzipBuffer&) = delete;
  GzipBuffer& operator=(const GzipBuffer&) = delete;
  ~GzipBuffer() override { inflateEnd(&stream_); }

 private:
  size_t unpack() override {
    stream_.next_out = reinterpret_cast<Bytef*>(text().data());
    stream_.avail_out = static_cast<uInt>(text().size());
    while (stream_.avail_out == text().size()) {
      if (stream_.avail_in == 0) {
        const std::string_view block = refill();
        // zlib only reads from next_in.
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
        stream_.avail_in = static_cast<uInt>(block.size());
      }
      const bool at_end = stream_.avail_in == 0;  // zlib may still have output
      if (member_ended_) {
        if (at_end) {
          return 0;
        }
        inflateReset(&stream_);
        member_ended_ = false;
      }
      const int code = inflate(&stream_, Z_NO_FLUSH);
      member_ended_ = code == Z_STREAM_END;
      if (code == Z_MEM_ERROR) {
        throw std::bad_alloc();
      }
      if (code == Z_BUF_ERROR && at_end) {
        fail_short("gzip");
      }
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        fail_damaged("gzip", stream_.msg != nullptr ? stream_.msg : "no gzip block");
      }
    }
    return text().size() - stream_.avail_out;
  }

  z_stream stream_{};
  bool member_ended_ = false;
};

// Reader of zstd files of one or more frames. Skippable frames hold no text.
class ZstdBuffer : public UnpackingBuffer {
 public:
  explicit ZstdBuffer(std::unique_ptr<std::streambuf> file)
      : UnpackingBuffer(std::move(file)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_ == nullptr) {
      throw std::bad_alloc();
    }
  }

 private:
  size_t unpack() override {
    ZSTD_outBuffer out{text().data(), text().size(), 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) {
        const std::string_view block = refill();
        in_ = {block.data(), block.size(), 0};
      }
      const bool at_end = in_.size == 0;  // zstd may still have output
      if (at_end && frame_ended_) {
        return 0;
      }
      const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(left) != 0) {
        fail(left, at_end);
      }
      frame_ended_ = left == 0;
      if (at_end && out.pos == 0 && !frame_ended_) {
        fail_short("zstd");
      }
    }
    return out.pos;
  }

  [[noreturn]] static void fail(size_t code, bool at_end) {
    if (at_end) {
      fail_short("zstd");
    }
    if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge) {
      throw BrokenStream(
          "the zstd data need a window of more than 128 MiB (packed with --long); unpack the file "
          "first");
    }
    if (ZSTD_getErrorCode(code) == ZSTD_error_memory_allocation) {
      throw std::bad_alloc();
    }
    fail_damaged("zstd", ZSTD_getErrorName(code));
  }

  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool frame_ended_ = false;
};

Packing find_packing(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) {
    return Packing::kGzip;
  }
  // A skippable frame (0x184D2A50 to 5F) may come first.
  const bool skippable = head.size() >= 4 && (static_cast<uint8_t>(head[0]) & 0xF0) == 0x50 &&
                         head.substr(1, 3) == "\x2A\x4D\x18"sv;
  return skippable || head.starts_with("\x28\xB5\x2F\xFD") ? Packing::kZstd : Packing::kNone;
}

// Opens a Parquet file with libmoe_parquet.so, which is in the folder of the binary if CMake found
// pyarrow.
std::unique_ptr<std::streambuf> open_parquet(const fs::path& file) {
  const fs::path binary = fs::read_symlink("/proc/self/exe");
  const std::string library = (binary.parent_path() / "libmoe_parquet.so").string();
  // Never closed, because the returned buffer runs its code.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle == nullptr ? nullptr : ::dlsym(handle, "moe_open_parquet");
  USER_ERROR_IF(
      symbol == nullptr,
      "{0}: a Parquet file, and this moe has no reader for it ({1}); run recipes/setup.sh, which "
      "builds it with pyarrow (MOE_PARQUET), or convert the file: python3 -c \"import json, "
      "pyarrow.parquet as p; [print(json.dumps(r)) "
      "for b in p.ParquetFile('{0}').iter_batches() for r in b.to_pylist()]\" > data.jsonl",
      file.string(), ::dlerror());
  const auto open = reinterpret_cast<decltype(&moe_open_parquet)>(symbol);
  return std::unique_ptr<std::streambuf>(open(file.c_str()));
}

}  // namespace

std::string format_extension(const fs::path& file) {
  const std::string last = file.extension().string();
  const bool is_packed = last == ".gz" || last == ".zst" || last == ".zstd";
  return is_packed ? file.stem().extension().string() : last;
}

void check_utf8(std::string_view text, const std::string& where) {
  const size_t at = find_invalid_utf8(text);
  USER_ERROR_IF(at != kValidUtf8,
                "{}: not UTF-8 at byte {} (0x{:02X}): save it as UTF-8, from Latin-1 by: iconv -f "
                "LATIN1 -t UTF-8",
                where, at, static_cast<uint8_t>(text[at]));
}

std::string data_file_name(const fs::path& file, Pipes pipes) {
  return pipes == Pipes::kAllowed && file == "-" ? "standard input" : file.string();
}

OpenFile open_data_file(const fs::path& file, Pipes pipes) {
  const std::string name = data_file_name(file, pipes);
  const bool is_input = name != file.string();
  auto bytes = is_input ? std::make_unique<FileReader>(open_standard_input(), name)
                        : std::make_unique<FileReader>(file, pipes);
  std::string start(bytes->peek(1));
  if (start != "{") {  // a pipe may hold only the first record so far
    start = bytes->peek(32);
  }
  if (start.starts_with("PAR1")) {
    USER_ERROR_IF(is_input || !fs::is_regular_file(file),
                  "{}: Parquet data in a pipe; write them to a file", name);
    return {open_parquet(file), Packing::kParquet};
  }
  const char* const kind = unsupported_kind(start);
  USER_ERROR_IF(kind != nullptr && !file.extension().string().starts_with(".htm"), "{}: is {}",
                name, kind);
  const Packing packing = find_packing(start);
  if (packing == Packing::kGzip) {
    return {std::make_unique<GzipBuffer>(std::move(bytes)), packing};
  }
  if (packing == Packing::kZstd) {
    return {std::make_unique<ZstdBuffer>(std::move(bytes)), packing};
  }
  for (size_t mark = mark_bytes(start); mark > 0; --mark) {
    bytes->sbumpc();
  }
  return {std::move(bytes), packing};
}

const char* packing_name(Packing packing) {
  constexpr std::array kNames = {"", "gzip", "zstd", "Parquet"};
  return kNames.at(static_cast<size_t>(packing));
}

}  // namespace moe::data
