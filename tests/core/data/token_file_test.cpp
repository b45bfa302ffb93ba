
#include "core/base/random.h"
#include "core/data/token_cache.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

using namespace moe;
using namespace moe::data;
using moe::test::TempDir;

namespace {

const io::Digest kKey = {7, 11};
const std::vector<FileForm> kForms = {{Format::kAlpaca, Packing::kGzip},
                                      {Format::kRows, Packing::kNone}};

// Returns examples of two files: texts with and without loss, and rows with other labels. All ids
// are less than `vocab_size`.
std::vector<Example> some_examples(int count, int64_t vocab_size) {
  SplitMix64 random(3);
  std::vector<Example> items;
  for (int index = 0; index < count; ++index) {
    Example example;
    example.file = index < count / 2 ? 0 : 1;
    example.line = 2 * index + 1;
    const uint64_t length = 1 + random.below(9);
    for (uint64_t t = 0; t < length; ++t) {
      const auto id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size)));
      const bool learned = random.below(3) > 0;
      const auto label = example.file == 1 && index % 2 == 0
                             ? static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size)))
                             : id;
      example.ids.push_back(id);
      example.labels.push_back(learned ? label : kNoLoss);
    }
    items.push_back(example);
  }
  return items;
}

void write_tokens(const std::filesystem::path& path, const std::vector<Example>& items,
                  int64_t vocab_size) {
  const Descriptor file = io::create_file(path);
  TokenFileWriter writer(file, path, kKey, vocab_size);
  for (const auto& example : items) {
    writer.add(example);
  }
  writer.finish(kForms);
}

Examples open_tokens(const std::filesystem::path& path, int64_t vocab_size) {
  const auto tokens = std::make_shared<TokenFile>(io::MappedFile(path), kKey, vocab_size);
  Examples examples;
  describe_sources({{"a.jsonl"}, {"b.jsonl"}}, tokens->forms(), examples);
  examples.ranges = tokens->ranges();
  examples.store = tokens;
  return examples;
}

// Returns the reason why the file is refused; "" if it is accepted.
std::string fault_of(const std::filesystem::path& path, int64_t vocab_size,
                     const io::Digest& key = kKey) {
  try {
    const TokenFile tokens(io::MappedFile(path), key, vocab_size);
  } catch (const BadTokenFile& bad) {
    return bad.what();
  }
  return "";
}

// Recomputes the checksums of a changed file, as an attacker would.
std::string forge(std::string bytes) {
  const auto span_of = [&](size_t begin, size_t end) {
    return std::as_bytes(std::span(bytes)).subspan(begin, end - begin);
  };
  auto header = layout::load<layout::Header>(span_of(0, bytes.size()).data());
  const auto end = std::min<size_t>(header.blocks_end, bytes.size());
  const auto begin = std::min(sizeof(header), end);
  header.blocks = io::compute_digest(span_of(begin, end));
  header.tables = io::compute_digest(span_of(end, bytes.size()));
  header.fields =
      io::compute_digest(std::as_bytes(std::span(&header, 1)).first(layout::kHeaderSummedBytes));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

}  // namespace

TEST_CASE("A token file returns the written examples, with narrow and wide ids", "[data]") {
  const TempDir dir;
  for (const int64_t vocab_size : {300L, 65536L, 65537L, 1000000L}) {
    const auto items = some_examples(60, vocab_size);
    const Examples plain = Examples::in_memory(items, {"a.jsonl", "b.jsonl"});
    write_tokens(dir / "t", items, vocab_size);
    const Examples mapped = open_tokens(dir / "t", vocab_size);
    REQUIRE(mapped.size() == plain.size());
    CHECK(mapped.tokens() == plain.tokens());
    CHECK(mapped.forms == std::vector<std::string>{"Alpaca records, gzip", "pre-tokenised rows"});
    for (int64_t index = 0; index < plain.size(); ++index) {
      const Example one = plain.at(index), other = mapped.at(index);
      CHECK(one.ids == other.ids);
      CHECK(one.labels == other.labels);
      CHECK(one.file == other.file);
      CHECK(mapped.where(index) == plain.where(index));
      const int64_t length = plain.length(index);
      for (int64_t begin = 0; begin <= length; ++begin) {
        for (int64_t end = begin; end <= length; ++end) {
          std::vector<int64_t> ids, mapped_ids;
          std::vector<int32_t> labels, mapped_labels;
          plain.store->add_ids(index, begin, end, ids);
          plain.store->add_labels(index, begin, end, labels);
          mapped.store->add_ids(index, begin, end, mapped_ids);
          mapped.store->add_labels(index, begin, end, mapped_labels);
          REQUIRE((ids == mapped_ids && labels == mapped_labels));
        }
      }
    }
  }
}

TEST_CASE("A token file with any byte changed, missing or added is refused", "[data]") {
  const TempDir dir;
  write_tokens(dir / "t", some_examples(12, 300), 300);
  const std::string whole = test::read_file(dir / "t");
  REQUIRE(fault_of(dir / "t", 300).empty());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    test::write_file(dir / "bad", changed);
    INFO(at);
    CHECK_FALSE(fault_of(dir / "bad", 300).empty());
    test::write_file(dir / "bad", whole.substr(0, at));
    CHECK_FALSE(fault_of(dir / "bad", 300).empty());
  }
  test::write_file(dir / "bad", whole + std::string(8, '\0'));
  CHECK(fault_of(dir / "bad", 300) == "is cut short or has bytes behind its end");
  test::write_file(dir / "bad", "{\"prompt\": \"no tokens\"}\n" + std::string(200, ' '));
  CHECK(fault_of(dir / "bad", 300) == "is no file of tokens, or was not finished");
  CHECK(fault_of(dir / "t", 301) == "was made from other data");
  CHECK(fault_of(dir / "t", 300, {7, 12}) == "was made from other data");
}

TEST_CASE("A token file with forged checksums gives no id outside the vocabulary", "[data]") {
  const TempDir dir;
  write_tokens(dir / "t", some_examples(12, 300), 300);
  const std::string whole = test::read_file(dir / "t");
  REQUIRE(forge(whole) == whole);
  int taken = 0, refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0, 1, 0x7F, 0x80, 0xFF}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      test::write_file(dir / "bad", forge(changed));
      if (!fault_of(dir / "bad", 300).empty()) {
        ++refused;
        continue;
      }
      ++taken;
      const Examples examples = open_tokens(dir / "bad", 300);
      for (int64_t index = 0; index < examples.size(); ++index) {
        const Example example = examples.at(index);
        REQUIRE((!example.ids.empty() && example.ids.size() == example.labels.size()));
        for (size_t t = 0; t < example.ids.size(); ++t) {
          REQUIRE((example.ids[t] >= 0 && example.ids[t] < 300));
          REQUIRE((example.labels[t] == kNoLoss ||
                   (example.labels[t] >= 0 && example.labels[t] < 300)));
        }
      }
    }
  }
  CHECK(taken > 0);
  CHECK(refused > 0);
}
