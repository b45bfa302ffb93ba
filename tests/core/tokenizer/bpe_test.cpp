#include "core/tokenizer/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "tests/support/catch.h"

using moe::io::Bpe;
using moe::io::BpeMerge;
using moe::io::BpeOptions;
using moe::io::Vocabulary;
using Ids = std::vector<int64_t>;

namespace {

using Tokens = std::vector<std::pair<std::string, int64_t>>;

Ids encode(const Bpe& bpe, std::string_view word) {
  Ids ids;
  bpe.encode(word, ids);
  return ids;
}

// Merges by the definition of BPE: repeatedly merges the leftmost pair of lowest rank.
Ids merge_slowly(Ids ids, const std::vector<BpeMerge>& merges) {
  std::map<std::pair<int64_t, int64_t>, BpeMerge> table;
  for (const auto& merge : merges) {
    table[{merge.left, merge.right}] = merge;
  }
  while (true) {
    const BpeMerge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = table.find({ids[i], ids[i + 1]});
      if (found != table.end() && (best == nullptr || found->second.rank < best->rank)) {
        best = &found->second;
        place = i;
      }
    }
    if (best == nullptr) {
      return ids;
    }
    ids[place] = best->merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

// A BPE model of single letters and random merges of the tokens before them.
struct RandomModel {
  Tokens tokens;
  std::vector<BpeMerge> merges;
  size_t letters;

  RandomModel(size_t letter_count, size_t count, std::mt19937& random) : letters(letter_count) {
    for (size_t i = 0; i < letters; ++i) {
      tokens.emplace_back(std::string(1, static_cast<char>('a' + i)), i);
    }
    while (merges.size() < count) {
      const auto& left = tokens[random() % tokens.size()];
      const auto& right = tokens[random() % tokens.size()];
      const std::string text = left.first + right.first;
      const auto same = std::find_if(tokens.begin(), tokens.end(),
                                     [&](const auto& token) { return token.first == text; });
      const auto id = same != tokens.end() ? same->second : static_cast<int64_t>(tokens.size());
      merges.push_back({left.second, right.second, id, static_cast<int64_t>(merges.size())});
      if (same == tokens.end()) {
        tokens.emplace_back(text, id);
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
    for (size_t i = 0; i < merges.size(); ++i) {
      merges[i].rank = static_cast<int64_t>(i);
    }
  }

  Bpe bpe() const { return {Vocabulary(tokens, "test"), merges, {}}; }
  std::string word(size_t length, std::mt19937& random) const {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      text += static_cast<char>('a' + random() % letters);
    }
    return text;
  }
  Ids letters_of(const std::string& word) const {
    Ids ids;
    for (const char c : word) {
      ids.push_back(c - 'a');
    }
    return ids;
  }
};

Bpe small(const BpeOptions& options, const Tokens& more = {}) {
  Tokens tokens = {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"abb", 4}};
  tokens.insert(tokens.end(), more.begin(), more.end());
  return {Vocabulary(tokens, "test"), {{1, 2, 3, 0}}, options};
}

}  // namespace

TEST_CASE("BPE merges words of any length as its definition does", "[io]") {
  std::mt19937 random(7);
  for (const size_t letters : {1, 2, 5}) {
    for (const size_t merges : {0, 1, 10, 60}) {
      const RandomModel model(letters, merges, random);
      const Bpe bpe = model.bpe();
      for (const size_t length : {0, 1, 2, 3, 7, 47, 48, 49, 50, 63, 64, 65, 300}) {
        for (int round = 0; round < 8; ++round) {
          const std::string word = model.word(length, random);
          const Ids expected = merge_slowly(model.letters_of(word), model.merges);
          REQUIRE(encode(bpe, word) == expected);
          REQUIRE(encode(bpe, word) == expected);  // a short word is cached now
        }
      }
    }
  }
}

TEST_CASE("BPE merges a word of one megabyte in linear time", "[io]") {
  std::mt19937 random(3);
  const RandomModel model(2, 40, random);
  const std::string word = model.word(size_t{1} << 20, random);
  const Ids ids = encode(model.bpe(), word);
  size_t size = 0;
  for (const int64_t id : ids) {
    size += model.tokens[static_cast<size_t>(id)].first.size();
  }
  CHECK(size == word.size());
}

TEST_CASE("A character without a token becomes bytes, the unknown token or nothing", "[io]") {
  const BpeOptions none, unknown{.unknown = 0}, fused{.fuse_unknown = true, .unknown = 0};
  CHECK(encode(small(none), "axyb") == Ids{3});  // dropped: a and b merge
  CHECK(encode(small(unknown), "axyb") == Ids{1, 0, 0, 2});
  CHECK(encode(small(fused), "axybx") == Ids{1, 0, 2, 0});
  const BpeOptions bytes{.byte_fallback = true, .fuse_unknown = true, .unknown = 0};
  const Tokens some = {{"<0xC3>", 5}, {"<0xA9>", 6}};
  CHECK(encode(small(bytes, some), "a\u00E9b") == Ids{1, 5, 6, 2});
  CHECK(encode(small(bytes, some), "a\u00EAb") == Ids{1, 0, 2});  // <0xAA> is not a token
  // As in the tokenizers library, bytes do not end a run of unknown characters.
  CHECK(encode(small(bytes, some), "a\u00EA\u00E9\u00EAb") == Ids{1, 5, 6, 0, 2});
}

TEST_CASE("With ignore_merges a word that is a token is not split", "[io]") {
  CHECK(encode(small({}), "abb") == Ids{3, 2});
  CHECK(encode(small({.ignore_merges = true}), "abb") == Ids{4});
  CHECK(encode(small({.ignore_merges = true}), "abba") == Ids{3, 2, 1});
}

TEST_CASE("The last of two merges of one pair is used", "[io]") {
  const Bpe bpe(Vocabulary({{"a", 0}, {"b", 1}, {"ab", 2}, {"c", 3}, {"bc", 4}}, "test"),
                {{0, 1, 2, 0}, {1, 3, 4, 1}, {0, 1, 2, 2}}, {});
  CHECK(encode(bpe, "abc") == Ids{0, 4});
}

TEST_CASE("Concurrent threads get the same ids as one thread", "[io]") {
  std::mt19937 random(11);
  const RandomModel model(3, 40, random);
  const Bpe bpe = model.bpe();
  std::vector<std::string> words;
  std::vector<Ids> expected;
  for (int i = 0; i < 3000; ++i) {
    words.push_back(model.word(1 + random() % 70, random));
    expected.push_back(merge_slowly(model.letters_of(words.back()), model.merges));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < words.size(); ++i) {
        wrong[t] += encode(bpe, words[i]) == expected[i] ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(wrong == std::vector<int>(4));
}
