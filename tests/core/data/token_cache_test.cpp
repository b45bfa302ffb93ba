#include "core/data/token_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/base/random.h"
#include "core/io/file.h"
#include "tests/support/byte_codec.h"
#include "tests/support/child.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

std::string pairs(int count) {
  std::string text;
  for (int index = 0; index < count; ++index) {
    text += fmt::format(R"({{"prompt": "Question {}", "response": "Answer {}"}})", index, index);
    text += "\n";
  }
  return text;
}

const char* kChat = R"([{"messages": [{"role": "user", "content": "Hi"},
  {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "And?"},
  {"role": "assistant", "content": "So"}]},
  {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}])";
const char* kRows =
    "{\"input_ids\": [1, 5, 6, 7], \"labels\": [-100, 9, 6, 8]}\n"
    "{\"input_ids\": [1, 5], \"labels\": [-100, 5]}";

struct World {
  TempDir dir;
  CacheRequest request;
  int num_tokenizations = 0;
  std::vector<std::string> notes;

  World() {
    write_file(dir / "a.jsonl", pairs(40));
    write_file(dir / "b.json", kChat);
    write_file(dir / "c.jsonl", kRows);
    write_file(dir / "tokenizer.model", "one");
    request.sources = {{dir / "a.jsonl"}, {dir / "b.json"}, {dir / "c.jsonl"}};
    request.vocab_size = kVocab;
    request.tokenizer.file = dir / "tokenizer.model";
    request.codec = [this] {
      ++num_tokenizations;
      return byte_codec();
    };
    request.location = {dir / "cache", false};
  }

  Examples open() {
    notes.clear();
    return open_or_tokenize(request, notes);
  }
  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(dir / "cache")) {
      files.push_back(entry.path());
    }
    return files;
  }
  std::string note() const { return notes.empty() ? "" : notes.back(); }
};

bool same(const Examples& a, const Examples& b) {
  return a.files == b.files && a.forms == b.forms && a.weights == b.weights &&
         a.all_rows == b.all_rows && same_examples(a, b);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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

TEST_CASE("A second run maps the tokens of the first; both equal uncached examples", "[data]") {
  World world;
  const Examples first = world.open();
  CHECK(world.num_tokenizations == 1);
  REQUIRE(world.cached().size() == 1);
  const std::string file = world.cached().front().string();
  CHECK(world.note() == fmt::format("tokens cached in {} ({})", file,
                                    io::size_text(fs::file_size(world.cached().front()))));
  const Examples second = world.open();
  CHECK(world.num_tokenizations == 1);
  CHECK(contains(world.note(), "tokens from the cache " + file));
  const Examples plain =
      read_examples(world.request.sources, world.request.settings, kVocab, byte_codec);
  CHECK(same(first, plain));
  CHECK(same(second, plain));
}

TEST_CASE("Keys that are not read are named when the data are tokenized", "[data]") {
  World world;
  const fs::path file = world.request.sources.front().file;
  write_file(file, R"({"instruction": "a", "output": "b", "rank": 1})");
  std::vector<std::string> notes;
  open_or_tokenize(world.request, notes);
  CHECK(std::ranges::any_of(notes, [](const std::string& note) {
    return contains(note, "not used: 'rank' of 1 record");
  }));
}

TEST_CASE("Everything that changes the tokens changes the key of the cache", "[data]") {
  World world;
  auto& sources = world.request.sources;
  auto& tokenizer = world.request.tokenizer;
  std::vector<std::string> keys;
  const auto unchanged = [](ReadSettings&) {};
  const auto key = [&](const std::function<void(ReadSettings&)>& change,
                       int64_t vocab_size = kVocab) {
    ReadSettings settings;
    change(settings);
    return token_key(sources, settings, vocab_size, tokenizer, [] {}).hex();
  };
  keys.push_back(key(unchanged));
  keys.push_back(key(unchanged, kVocab + 1));
  keys.push_back(key([](ReadSettings& settings) { settings.objective = Objective::kLm; }));
  keys.push_back(key([](ReadSettings& settings) { settings.loss_on = LossOn::kLast; }));
  keys.push_back(key([](ReadSettings& settings) { settings.format = Format::kPairs; }));
  for (const char* word : {"alpaca", "llama2", "{instruction} {response}",
                           "{instruction}  {response}", "{instruction} {response} "}) {
    keys.push_back(
        key([&](ReadSettings& settings) { settings.text_template = Template::parse(word); }));
  }
  write_file(tokenizer.file, "two");
  for (const char* special_tokens : {"bos 1", "bos 2", ""}) {
    tokenizer.special_tokens = special_tokens;
    keys.push_back(key(unchanged));
  }
  fs::remove(tokenizer.file);
  keys.push_back(key(unchanged));
  write_file(world.dir / "a.jsonl", pairs(41));
  keys.push_back(key(unchanged));
  std::swap(sources[0], sources[1]);
  const std::string swapped = key(unchanged);
  keys.push_back(swapped);
  fs::copy(world.dir / "b.json", world.dir / "b.txt");
  sources[0].file = world.dir / "b.txt";  // a plain text
  keys.push_back(key(unchanged));
  std::sort(keys.begin(), keys.end());
  CHECK(std::unique(keys.begin(), keys.end()) == keys.end());
  // The path, the weight and the number of threads do not change the key.
  fs::copy(world.dir / "b.json", world.dir / "other.json");
  sources[0] = {world.dir / "other.json", 3};
  CHECK(key([](ReadSettings& settings) { settings.threads = 7; }) == swapped);
}

TEST_CASE("A damaged, truncated or foreign file in the cache is reported and replaced", "[data]") {
  World world;
  const Examples first = world.open();
  const fs::path file = world.cached().front();
  const std::string whole = read_file(file);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is cut short"},
      {whole.substr(0, whole.size() - 3), "is cut short or has bytes behind its end"},
      {whole.substr(0, 200) + 'x' + whole.substr(201), "has damaged tokens"},
      {std::string(5000, 'x'), "is no file of tokens, or was not finished"}};
  for (const auto& [bytes, words] : cases) {
    fs::remove(file);  // the mapping stays valid
    write_file(file, bytes);
    const Examples again = world.open();
    REQUIRE(world.notes.size() == 2);
    CHECK(contains(world.notes[0], file.string() + ": " + words));
    CHECK(contains(world.notes[1], "tokens cached in " + file.string()));
    CHECK(same(again, first));
    CHECK((read_file(file) == whole));
  }
  fs::remove(file);
  fs::create_directory(file);
  CHECK(contains(user_error_of([&] { world.open(); }), file.string() + ": cannot be replaced"));
}

TEST_CASE("Without a usable cache a temporary file is used, or the run refused", "[data]") {
  World world;
  const Examples cached = world.open();
  ::setenv("TMPDIR", world.dir.path().c_str(), 1);
  world.request.location = cache_location("off");
  CHECK(same(world.open(), cached));
  CHECK(contains(world.note(), "tokens in a temporary file in " + world.dir.path().string()));
  const std::string blocked = (world.dir / "a.jsonl" / "cache").string();
  world.request.location = {blocked, true};
  CHECK(same(world.open(), cached));
  REQUIRE(world.notes.size() == 2);
  CHECK(contains(world.notes[0], "no cache of tokens: " + blocked + ": cannot be created"));
  world.request.location.may_fail = false;
  CHECK(
      contains(user_error_of([&] { world.open(); }),
               "--cache " + blocked + ": cannot be created: Not a directory; give another folder"));
  ::unsetenv("TMPDIR");
  for (const auto& entry : fs::directory_iterator(world.dir.path())) {
    CHECK_FALSE(entry.path().filename().string().starts_with("moe-"));
  }
}

TEST_CASE("The default cache follows the XDG specification", "[data]") {
  const std::string before = std::getenv("XDG_CACHE_HOME");
  CHECK(cache_location("").folder == before + "/moe/tokens");
  CHECK(cache_location("").may_fail);
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // "should be ignored"
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  ::setenv("HOME", "/somewhere", 1);
  CHECK(cache_location("").folder == "/somewhere/.cache/moe/tokens");
  ::unsetenv("HOME");
  CHECK(cache_location("").folder.empty());
  ::setenv("HOME", home.c_str(), 1);
  ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
  CHECK(cache_location("off").folder.empty());
  CHECK(cache_location("here").folder == "here");
  CHECK_FALSE(cache_location("here").may_fail);
}

TEST_CASE("Concurrent runs that write the same cache get the same examples", "[data]") {
  World world;
  const Examples plain =
      read_examples(world.request.sources, world.request.settings, kVocab, byte_codec);
  std::vector<std::thread> runs;
  std::vector<int> right(4, 0);
  for (int& is_right : right) {
    runs.emplace_back([&world, &plain, &is_right] {
      CacheRequest request = world.request;
      request.codec = byte_codec;
      for (int round = 0; round < 10; ++round) {
        std::vector<std::string> notes;
        is_right += same(open_or_tokenize(request, notes), plain) ? 1 : 0;
        std::error_code ignored;
        fs::remove(world.dir / "cache" /
                       (token_key(request.sources, {}, kVocab, request.tokenizer, [] {}).hex() +
                        ".tokens"),
                   ignored);
      }
    });
  }
  for (auto& run : runs) {
    run.join();
  }
  CHECK(right == std::vector<int>(4, 10));
  CHECK(world.cached().empty());  // no partial file
}

TEST_CASE("The next run removes partial caches of killed runs, not of running ones", "[data]") {
  World world;
  fs::create_directories(world.dir / "cache");
  const int code = run_in_child([&] {  // ends in the middle of its tokens
    CacheRequest request = world.request;
    request.on_progress = [](int64_t examples, int64_t) {
      if (examples == 30) {
        ::_exit(9);
      }
    };
    std::vector<std::string> notes;
    open_or_tokenize(request, notes);
  });
  REQUIRE(code == 9);
  REQUIRE(world.cached().size() == 1);
  CHECK(contains(world.cached().front().string(), ".partial-"));
  world.request.on_progress = [&](int64_t examples, int64_t) {
    if (examples == 30) {
      World other;  // another run in the same folder
      other.request.location.folder = world.dir / "cache";
      write_file(other.dir / "a.jsonl", pairs(7));
      other.open();
    }
  };
  world.open();
  REQUIRE(world.cached().size() == 2);
  for (const auto& file : world.cached()) {
    CHECK(file.extension() == ".tokens");
  }
}

TEST_CASE("An error in the data leaves nothing in the cache", "[data]") {
  World world;
  write_file(world.dir / "a.jsonl", pairs(40) + "{\"prompt\": 3, \"response\": \"x\"}\n");
  CHECK(
      contains(user_error_of([&] { world.open(); }), "a.jsonl line 41: 'prompt' must be a string"));
  CHECK(world.cached().empty());
  fs::remove(world.dir / "a.jsonl");
  CHECK(contains(user_error_of([&] { world.open(); }), "a.jsonl: no such file"));
}

TEST_CASE("A data file that changes while it is read is refused", "[data]") {
  World world;
  world.request.on_progress = [&](int64_t examples, int64_t) {
    if (examples == 20) {
      write_file(world.dir / "c.jsonl", std::string(kRows) + "\n" + kRows);
    }
  };
  CHECK(contains(user_error_of([&] { world.open(); }), "c.jsonl: changed while it was read"));
  CHECK(world.cached().empty());
}

TEST_CASE("Processes of a host map the tokens of the first one, cached or not", "[data]") {
  World first, second;
  const bool is_cached = GENERATE(true, false);
  for (auto* world : {&first, &second}) {
    if (!is_cached) {
      world->request.location = {};
    }
  }
  HostTokens made, taken;
  first.request.shared = &made;
  second.request.shared = &taken;
  const Examples truth = first.open();
  write_file(first.dir / "a.jsonl", pairs(3));
  first.open();  // a second data set
  taken.take(made.text());
  Examples mapped = second.open();
  mapped.files = truth.files;  // its own names of the same files
  CHECK(same(mapped, truth));
  CHECK(second.open().size() < truth.size());
  CHECK(second.num_tokenizations == 0);
}

TEST_CASE("A process with an invalid offer of tokens tokenizes the data itself", "[data]") {
  World world;
  HostTokens taken;
  world.request.shared = &taken;
  const std::string file = (world.dir / "a.jsonl").string();
  const int foreign = ::open(file.c_str(), O_RDONLY);
  const auto text = GENERATE(std::string("no offer\n"), std::string("1 2 3 999999\n"),
                             std::string("1 2 999999999 0\n"), std::string("1 2 -1 -1\n"),
                             std::string("1 2 SELF FOREIGN\n"));
  std::string offer = text;
  if (const size_t location = offer.find("SELF FOREIGN"); location != std::string::npos) {
    offer.replace(location, 12, fmt::format("{} {}", ::getpid(), foreign));
  }
  taken.take(offer);
  const Examples examples = world.open();
  ::close(foreign);
  CHECK(world.num_tokenizations == 1);
  CHECK(same(examples,
             read_examples(world.request.sources, world.request.settings, kVocab, byte_codec)));
}

TEST_CASE("A token file returns the written examples, with narrow and wide ids", "[data]") {
  const TempDir dir;
  for (const int64_t vocab_size : {300L, 65536L, 65537L, 1000000L}) {
    const auto items = some_examples(60, vocab_size);
    const Examples plain = in_memory(items, {"a.jsonl", "b.jsonl"});
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
          plain.store->append(index, begin, end, ids, labels);
          mapped.store->append(index, begin, end, mapped_ids, mapped_labels);
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
