#include <zlib.h>
#include <zstd.h>

#include <algorithm>

#include "core/data/records.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

// One gzip member.
std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// One zstd frame with a checksum.
std::string zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  }
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  size_t left = 1;
  // Streamed, so that the frame names its window and not its size.
  ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue);
  left = ZSTD_compressStream2(context, &out, &in, ZSTD_e_end);
  REQUIRE(left == 0);
  packed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return packed;
}

std::string records(int count) {
  std::string text;
  uint32_t noise = 1;
  for (int i = 0; i < count; ++i) {
    noise = noise * 1664525 + 1013904223;  // so that it packs like text and not like a bomb
    text += fmt::format(R"({{"prompt": "Q{} {:x}", "response": "A{}"}})", i, noise, i) + "\n";
  }
  return text;
}

bool same(const Examples& a, const Examples& b) {
  bool equal = a.size() == b.size();
  for (int64_t index = 0; equal && index < a.size(); ++index) {
    const Example one = a.at(index), other = b.at(index);
    equal = one.ids == other.ids && one.labels == other.labels && one.line == other.line;
  }
  return equal;
}

void check_contains(const std::string& message, const std::string& part) {
  INFO(message);
  CHECK(message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("gzip and zstd are told by their bytes and give the same examples", "[data]") {
  const std::string text = records(20000);  // several blocks of the reader
  REQUIRE(text.size() > (size_t{8} << 16));
  const Examples plain = read_bytes("a.jsonl", text);
  const Examples gz = read_bytes("a.jsonl", gzip(text));
  const Examples zst = read_bytes("a.dat", zstd(text));
  CHECK(same(gz, plain));
  CHECK(same(zst, plain));
  CHECK(plain.forms.at(0) == "prompt pairs");
  CHECK(gz.forms.at(0) == "prompt pairs, gzip");
  CHECK(zst.forms.at(0) == "prompt pairs, zstd");
}

TEST_CASE("members and frames in a row are one text, cut anywhere", "[data]") {
  const std::string text = records(300);
  const Examples plain = read_bytes("a.jsonl", text);
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  for (const size_t cut : {size_t{1}, size_t{100}, text.size() - 1}) {
    const std::string head = text.substr(0, cut), tail = text.substr(cut);
    CHECK(same(read_bytes("a.gz", gzip(head) + gzip("") + gzip(tail)), plain));
    CHECK(same(read_bytes("a.zst", skippable + zstd(head) + zstd("") + zstd(tail)), plain));
  }
}

TEST_CASE("packed text keeps its name's meaning and loses its byte order mark", "[data]") {
  ReadSettings lm;
  lm.objective = Objective::kLm;
  CHECK(show_ids(read_bytes("a.txt.gz", gzip("{x"), lm).at(0)) == "B{xE");
  CHECK(show_ids(read_bytes("a.zst", zstd("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(show_ids(read_bytes("a.gz", gzip("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(read_bytes("a.gz", gzip("\xEF\xBC\x81"), lm).at(0).ids.size() == 5);  // no mark
  CHECK(error_of_reading("a.gz", gzip("")) == "a.gz: the file is empty");
  CHECK(error_of_reading("a.gz", gzip("\xEF\xBB\xBF")) == "a.gz: the file is empty");
}

TEST_CASE("a file that is cut short at any byte is never read as whole", "[data]") {
  const std::string text = records(40);
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    for (size_t length = 4; length < packed.size(); ++length) {
      const std::string message = error_of_reading("a.jsonl", packed.substr(0, length));
      INFO(length << ": " << message);
      CHECK(message.find("data end in the middle: the file is cut short") != std::string::npos);
    }
  }
  const std::string long_text = records(20000);
  const std::string packed = gzip(long_text);
  const std::string message = error_of_reading("a.jsonl", packed.substr(0, packed.size() / 2));
  INFO(message);
  const int64_t line = std::atoll(message.c_str() + std::string("a.jsonl line ").size());
  CHECK((line > 9000 && line < 11000));  // half of the bytes are half of the lines
}

TEST_CASE("a damaged file is refused, or the damage changed nothing", "[data]") {
  const std::string text = records(40);
  const Examples plain = read_bytes("a.jsonl", text);
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    size_t refused = 0;
    for (size_t at = 10; at < whole.size(); ++at) {
      std::string packed = whole;
      packed[at] = static_cast<char>(packed[at] ^ 0x10);
      INFO(at);
      // Both forms have bits that mean nothing (padding); whatever means something is in a
      // checksum.
      if (error_of_reading("a.jsonl", packed).empty()) {
        CHECK(same(read_bytes("a.jsonl", packed), plain));
      } else {
        ++refused;
      }
    }
    CHECK(refused + 10 > whole.size() - 10);
  }
  check_contains(error_of_reading("a.gz", gzip(text) + "junk"),
                 "a.gz line 41: the gzip data are damaged (incorrect header check)");
  check_contains(error_of_reading("a.zst", zstd(text) + "junk"),
                 "a.zst line 41: the zstd data are damaged");
}

TEST_CASE("bombs end in a sentence, in bounded memory", "[data]") {
  const std::string start = "{\"prompt\": \"", zeros(size_t{70} << 20, 'x');
  check_contains(error_of_reading("a.gz", gzip(start + zeros)),
                 "a.gz line 1: the record that starts here is longer than 64 MiB");
  // Nothing but blank lines: no record grows, so only the ratio gives it away.
  const std::string blank = gzip(std::string(size_t{64} << 20, '\n'));
  std::string bomb = gzip(records(1));
  for (int i = 0; i < 5; ++i) {
    bomb += blank;
  }
  check_contains(error_of_reading("a.gz", bomb), "unpacks to more than 500 times its size");
}

TEST_CASE("a zstd window beyond 128 MiB is refused, one of 128 MiB is not", "[data]") {
  check_contains(error_of_reading("a.zst", zstd(records(9), 28)),
                 "a.zst line 1: the zstd data need a window of more than 128 MiB");
  CHECK(read_bytes("a.zst", zstd(records(9), 27)).size() == 9);
}

TEST_CASE("files of other kinds are named, with the way out", "[data]") {
  check_contains(error_of_reading("a.json", "PK\x03\x04zip"),
                 "a.json: is a zip archive; unpack it");
  check_contains(error_of_reading("a.bz2", "BZh91AY"), "packed with bzip2; unpack it (bunzip2)");
  check_contains(error_of_reading("a.xz",
                                  "\xFD"
                                  "7zXZ"),
                 "packed with xz; unpack it (unxz)");
  check_contains(error_of_reading("a.arrow", "ARROW1xx"), "is an Arrow file");
}
