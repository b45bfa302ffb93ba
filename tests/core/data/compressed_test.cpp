#include <zlib.h>
#include <zstd.h>

#include "core/data/records.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

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
  // Streamed: the frame contains its window and not its size.
  ZSTD_compressStream2(context, &out, &in, ZSTD_e_continue);
  REQUIRE(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end) == 0);
  packed.resize(out.pos);
  ZSTD_freeCCtx(context);
  return packed;
}

std::string records(int count) {
  std::string text;
  uint32_t noise = 1;
  for (int i = 0; i < count; ++i) {
    noise = noise * 1664525 + 1013904223;  // compresses like text
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

void check_error(const std::string& name, const std::string& bytes, const std::string& fact) {
  CHECK_THAT(error_of_reading(name, bytes), contains_text(fact));
}

}  // namespace

TEST_CASE("gzip and zstd are recognized by their bytes and give the same examples", "[data]") {
  const std::string text = records(20000);  // several blocks of the reader
  REQUIRE(text.size() > (size_t{8} << 16));
  const Examples plain = read_bytes("a.jsonl", text);
  const Examples gz = read_bytes("a.jsonl", gzip(text)), zst = read_bytes("a.dat", zstd(text));
  CHECK(same(gz, plain));
  CHECK(same(zst, plain));
  CHECK(plain.forms.at(0) == "prompt pairs");
  CHECK(gz.forms.at(0) == "prompt pairs, gzip");
  CHECK(zst.forms.at(0) == "prompt pairs, zstd");
}

TEST_CASE("Consecutive gzip members or zstd frames are one text", "[data]") {
  const std::string text = records(300);
  const Examples plain = read_bytes("a.jsonl", text);
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  for (const size_t cut : {size_t{1}, size_t{100}, text.size() - 1}) {
    const std::string head = text.substr(0, cut), tail = text.substr(cut);
    CHECK(same(read_bytes("a.gz", gzip(head) + gzip("") + gzip(tail)), plain));
    CHECK(same(read_bytes("a.zst", skippable + zstd(head) + zstd("") + zstd(tail)), plain));
  }
}

TEST_CASE("A compressed text keeps the form of its name and loses its byte order mark", "[data]") {
  ReadSettings lm;
  lm.objective = Objective::kLm;
  CHECK(show_ids(read_bytes("a.txt.gz", gzip("{x"), lm).at(0)) == "B{xE");
  CHECK(show_ids(read_bytes("a.zst", zstd("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(show_ids(read_bytes("a.gz", gzip("\xEF\xBB\xBFhey"), lm).at(0)) == "BheyE");
  CHECK(read_bytes("a.gz", gzip("\xEF\xBC\x81"), lm).at(0).ids.size() == 5);  // another character
  check_error("a.gz", gzip(""), "a.gz: the file is empty");
  check_error("a.gz", gzip("\xEF\xBB\xBF"), "a.gz: the file is empty");
}

TEST_CASE("A compressed file truncated at any byte is refused", "[data]") {
  const std::string text = records(20);
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    for (size_t length = 4; length < packed.size(); ++length) {
      CAPTURE(length);
      check_error("a.jsonl", packed.substr(0, length),
                  "data end in the middle: the file is cut short");
    }
  }
  const std::string packed = gzip(records(20000));
  const std::string message = error_of_reading("a.jsonl", packed.substr(0, packed.size() / 2));
  INFO(message);
  const int64_t line = std::atoll(message.c_str() + std::string("a.jsonl line ").size());
  CHECK((line > 9000 && line < 11000));  // half of the bytes are half of the lines
}

TEST_CASE("A damaged compressed file is refused unless the damaged bit has no meaning", "[data]") {
  const std::string text = records(20);
  const Examples plain = read_bytes("a.jsonl", text);
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    size_t refused = 0;
    for (size_t at = 10; at < whole.size(); ++at) {
      std::string packed = whole;
      packed[at] = static_cast<char>(packed[at] ^ 0x10);
      INFO(at);
      if (error_of_reading("a.jsonl", packed).empty()) {  // padding
        CHECK(same(read_bytes("a.jsonl", packed), plain));
      } else {
        ++refused;
      }
    }
    CHECK(refused + 10 > whole.size() - 10);
  }
  check_error("a.gz", gzip(text) + "junk", "a.gz line 21: the gzip data are damaged");
  check_error("a.zst", zstd(text) + "junk", "a.zst line 21: the zstd data are damaged");
}

TEST_CASE("A file that decompresses to gigabytes is refused in bounded memory", "[data]") {
  check_error("a.gz", gzip("{\"prompt\": \"" + std::string(size_t{66} << 20, 'x')),
              "a.gz line 1: the record that starts here is longer than 64 MiB");
  // Blank lines, of which no record grows: only the ratio reveals it.
  const std::string blank = gzip(std::string(size_t{32} << 20, '\n'));
  std::string bomb = gzip(records(1));
  for (int i = 0; i < 9; ++i) {
    bomb += blank;
  }
  check_error("a.gz", bomb, "unpacks to more than 500 times its size");
  // The window of zstd is limited to 128 MiB.
  check_error("a.zst", zstd(records(9), 28), "a.zst line 1: the zstd data need a window of more");
  CHECK(read_bytes("a.zst", zstd(records(9), 27)).size() == 9);
}

TEST_CASE("Other kinds of files are refused with the program that unpacks them", "[data]") {
  check_error("a.json", "PK\x03\x04zip", "a.json: is a zip archive; unpack it");
  check_error("a.bz2", "BZh91AY", "packed with bzip2; unpack it (bunzip2)");
  check_error("a.xz", std::string("\xFD") + "7zXZ", "packed with xz; unpack it (unxz)");
  check_error("a.arrow", "ARROW1xx", "is an Arrow file");
}
