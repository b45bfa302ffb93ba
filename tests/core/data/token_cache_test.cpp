#include "core/data/token_cache.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/io/file.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;
namespace fs = std::filesystem;

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
  int tokenised = 0;  // number of tokenizations
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
      ++tokenised;
      return byte_codec();
    };
    request.location = {dir / "cache", false};
  }

  Examples open() {
    notes.clear();
    return open_or_tokenise(request, notes);
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
  bool equal = a.size() == b.size() && a.files == b.files && a.forms == b.forms &&
               a.weights == b.weights && a.all_rows == b.all_rows;
  for (int64_t index = 0; equal && index < a.size(); ++index) {
    const Example one = a.at(index), other = b.at(index);
    equal = one.ids == other.ids && one.labels == other.labels && one.line == other.line &&
            one.file == other.file;
  }
  return equal;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A second run maps the tokens of the first; both equal uncached examples", "[data]") {
  World world;
  const Examples first = world.open();
  CHECK(world.tokenised == 1);
  REQUIRE(world.cached().size() == 1);
  const std::string file = world.cached().front().string();
  CHECK(world.note() == fmt::format("tokens cached in {} ({})", file,
                                    io::size_text(fs::file_size(world.cached().front()))));
  const Examples second = world.open();
  CHECK(world.tokenised == 1);
  CHECK(contains(world.note(), "tokens from the cache " + file));
  const Examples plain =
      read_examples(world.request.sources, world.request.settings, kVocab, byte_codec);
  CHECK(same(first, plain));
  CHECK(same(second, plain));
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
        is_right += same(open_or_tokenise(request, notes), plain) ? 1 : 0;
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

TEST_CASE("The next run removes the partial cache of a killed run, not of a running one",
          "[data]") {
  World world;
  fs::create_directories(world.dir / "cache");
  const pid_t child = ::fork();
  if (child == 0) {  // ends in the middle of its tokens
    CacheRequest request = world.request;
    request.on_progress = [](int64_t examples, int64_t) {
      if (examples == 30) {
        ::_exit(9);
      }
    };
    std::vector<std::string> notes;
    open_or_tokenise(request, notes);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WEXITSTATUS(status) == 9);
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
  CHECK(contains(user_error_of([&] { world.open(); }),
                 "a.jsonl: no such file; give a data file to --data"));
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
  CHECK(second.tokenised == 0);
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
  CHECK(world.tokenised == 1);
  CHECK(same(examples,
             read_examples(world.request.sources, world.request.settings, kVocab, byte_codec)));
}
