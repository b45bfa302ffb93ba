#include "core/data/compressed.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <array>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/data/parquet.h"

namespace moe::data {

namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr size_t kBlock_bytes = size_t{64} << 10;

// The length of the byte order mark that `text` begins with, or 0.
size_t mark_bytes(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? kMark.size() : 0;
}

// What gzip and zstd have in common: blocks of the file in, blocks of text out.
class UnpackingBuffer : public std::streambuf {
 public:
  explicit UnpackingBuffer(std::unique_ptr<std::streambuf> file)
      : file_(std::move(file)), packed_(kBlock_bytes), text_(kBlock_bytes) {}

 protected:
  // Fills text() from what refill() brings; returns the bytes it gave, 0 only at the file's end.
  virtual size_t unpack() = 0;

  // The next block of the file, empty at its end.
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

// One gzip file is one member or several in a row; each ends with a checksum that zlib verifies.
class GzipBuffer : public UnpackingBuffer {
 public:
  explicit GzipBuffer(std::unique_ptr<std::streambuf> file) : UnpackingBuffer(std::move(file)) {
    constexpr int kWindowOfGzip = 15 + 16;
    if (inflateInit2(&stream_, kWindowOfGzip) != Z_OK) {
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
        // zlib only reads from next_in; its type is older than const.
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
        stream_.avail_in = static_cast<uInt>(block.size());
      }
      const bool at_end = stream_.avail_in == 0;  // zlib may still hold bytes to give out
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

// One zstd file is one frame or several in a row; skippable frames give nothing.
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
      const bool at_end = in_.size == 0;  // zstd may still hold bytes to give out
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

// Forms that are no text and are told by their first bytes.
void refuse_foreign(std::string_view head, const std::string& name) {
  struct Foreign {
    std::string_view magic;
    const char* mend;
  };
  constexpr std::array<Foreign, 5> kForeign = {{
      {"ARROW1", "an Arrow file; convert it to JSON lines (pandas: read_feather, to_json)"},
      {"PK\x03\x04", "a zip archive; unpack it and give its files to --data"},
      {"BZh", "packed with bzip2; unpack it (bunzip2), or pack it with gzip or zstd"},
      {"\xFD"
       "7zXZ",
       "packed with xz; unpack it (unxz), or pack it with gzip or zstd"},
      {"\x89PNG", "a picture; give data files to --data"},
  }};
  for (const auto& foreign : kForeign) {
    if (head.starts_with(foreign.magic)) {
      throw UserError("{}: is {}", name, foreign.mend);
    }
  }
}

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) {
    return Packing::kGzip;
  }
  // A skippable frame (0x184D2A50 to 5F) may stand first.
  const bool skippable = head.size() >= 4 && (static_cast<uint8_t>(head[0]) & 0xF0) == 0x50 &&
                         head.substr(1, 3) == "\x2A\x4D\x18"sv;
  return skippable || head.starts_with("\x28\xB5\x2F\xFD") ? Packing::kZstd : Packing::kNone;
}

}  // namespace

OpenFile open_data_file(const fs::path& file) {
  if (!fs::exists(file)) {
    throw UserError("{}: no such file; give a data file to --data", file.string());
  }
  if (fs::is_directory(file)) {
    throw UserError("{} is a folder; give its files to --data", file.string());
  }
  if (!fs::is_regular_file(file)) {  // its contents are compared with the cache, then read again
    throw UserError("{}: is not a regular file (a pipe or a device); write it to a disk first",
                    file.string());
  }
  auto bytes = std::make_unique<FileReader>(file);
  std::array<char, 8> head{};
  const auto count = static_cast<size_t>(bytes->sgetn(head.data(), head.size()));
  const std::string_view start(head.data(), count);
  if (start.starts_with("PAR1")) {
    return {open_parquet(file), Packing::kParquet};
  }
  refuse_foreign(start, file.string());
  const Packing packing = packing_of(start);
  bytes->seek(mark_bytes(start));
  switch (packing) {
    case Packing::kGzip:
      return {std::make_unique<GzipBuffer>(std::move(bytes)), packing};
    case Packing::kZstd:
      return {std::make_unique<ZstdBuffer>(std::move(bytes)), packing};
    default:
      return {std::move(bytes), packing};
  }
}

const char* packing_name(Packing packing) {
  switch (packing) {
    case Packing::kGzip:
      return "gzip";
    case Packing::kZstd:
      return "zstd";
    case Packing::kParquet:
      return "Parquet";
    default:
      return "";
  }
}

}  // namespace moe::data
