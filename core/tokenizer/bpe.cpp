#include "core/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

constexpr char32_t kTabulated = 0x800;
constexpr size_t kShortWordSymbols = 48;  // longest word for merge_short(); measured
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

// A pair that could merge when it was added to the heap.
struct Candidate {
  uint32_t rank, position, merged;

  bool operator<(const Candidate& other) const {  // the greatest is at the top of the heap
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

// A symbol of a word, an entry of a linked list in an array. Removed symbols stay in the array.
struct Symbol {
  uint32_t id;
  int32_t previous, next;
  bool is_removed = false;
};

}  // namespace

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens,
                       const std::string& where) {
  int64_t end = 0;
  for (const auto& [text, id] : tokens) {
    USER_ERROR_IF(id < 0 || id >= kMaxIds, "{}: the token '{}' has the id {}, ids are 0 to {}",
                  where, printable(text), id, kMaxIds - 1);
    end = std::max(end, id + 1);
  }
  texts_.resize(static_cast<size_t>(end));
  is_token_.resize(texts_.size());
  slots_.resize(std::bit_ceil(std::max<size_t>(2, tokens.size() * 2)));
  for (const auto& [text, id] : tokens) {
    const auto index = static_cast<size_t>(id);
    USER_ERROR_IF(is_token_[index], "{}: the id {} has two tokens, '{}' and '{}'", where, id,
                  printable(texts_[index]), printable(text));
    texts_[index] = text;
    is_token_[index] = true;
    const size_t hash = std::hash<std::string_view>{}(text);
    size_t slot = hash & (slots_.size() - 1);
    while (slots_[slot].id >= 0) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    slots_[slot] = {static_cast<int32_t>(id), hash_tag(hash)};
  }
  tokens_ = std::ssize(tokens);
}

int64_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) {
    return kNone;
  }
  const size_t hash = std::hash<std::string_view>{}(text);
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].id >= 0) {
    if (slots_[slot].tag == hash_tag(hash) &&
        texts_[static_cast<size_t>(slots_[slot].id)] == text) {
      return slots_[slot].id;
    }
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return kNone;
}

Bpe::MergeTable::MergeTable(const std::vector<BpeMerge>& merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(2, merges.size() * 2));
  shift_ = 64 - std::countr_zero(size);
  pairs_.assign(size, kFree);
  merges_.resize(size);
  for (const auto& merge : merges) {
    const uint64_t pair =
        static_cast<uint64_t>(merge.left) << 32 | static_cast<uint64_t>(merge.right);
    const size_t slot = find_slot(pair);
    pairs_[slot] = pair;
    merges_[slot] = {static_cast<uint32_t>(merge.rank), static_cast<uint32_t>(merge.merged)};
  }
}

// Returns the slot of `pair`, or the free slot for it.
size_t Bpe::MergeTable::find_slot(uint64_t pair) const {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio: spreads the high bits
  size_t slot = (pair ^ pair >> 29) * kGolden >> shift_;
  while (pairs_[slot] != kFree && pairs_[slot] != pair) {
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  return slot;
}

const Bpe::MergeTable::Merge* Bpe::MergeTable::find(uint32_t left, uint32_t right) const {
  const size_t slot = find_slot(uint64_t{left} << 32 | right);
  return pairs_[slot] == kFree ? nullptr : &merges_[slot];
}

Bpe::Bpe(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)),
      merges_(merges),
      options_(options),
      cache_(std::make_unique<WordCache>()) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(vocabulary_.find(fmt::format("<0x{:02X}>", byte)));
  }
  for (char32_t c = 0; c < kTabulated; ++c) {
    std::string text;
    append_code_point(text, c);
    character_ids_.push_back(vocabulary_.find(text));
  }
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids) const {
  cache_->append(word, ids, [this](std::string_view text, std::vector<int64_t>& word_ids) {
    const int64_t id = options_.ignore_merges ? vocabulary_.find(text) : Vocabulary::kNone;
    if (id != Vocabulary::kNone) {
      word_ids.push_back(id);
      return;
    }
    std::vector<uint32_t> symbols = split_symbols(text);
    if (symbols.size() <= kShortWordSymbols) {
      merge_short(symbols);
    } else {
      merge_long(symbols);
    }
    word_ids.insert(word_ids.end(), symbols.begin(), symbols.end());
  });
}

bool Bpe::append_bytes(std::string_view character, std::vector<uint32_t>& symbols) const {
  const auto byte_id = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(),
                  [&](char byte) { return byte_id(byte) == Vocabulary::kNone; })) {
    return false;
  }
  for (const char byte : character) {
    symbols.push_back(static_cast<uint32_t>(byte_id(byte)));
  }
  return true;
}

// Returns the initial symbols of `word`. A run of unknown characters becomes an unknown token at
// its end. Characters that become bytes do not end the run.
std::vector<uint32_t> Bpe::split_symbols(std::string_view word) const {
  std::vector<uint32_t> symbols;
  symbols.reserve(word.size());
  bool has_unknown = false;
  const auto end_unknown = [&] {
    if (has_unknown) {
      symbols.push_back(static_cast<uint32_t>(options_.unknown));
    }
    has_unknown = false;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    const char32_t code_point = next_code_point(word, at);
    const std::string_view character = word.substr(begin, at - begin);
    const int64_t id =
        code_point < kTabulated ? character_ids_[code_point] : vocabulary_.find(character);
    if (id != Vocabulary::kNone) {
      end_unknown();
      symbols.push_back(static_cast<uint32_t>(id));
    } else if (options_.byte_fallback && append_bytes(character, symbols)) {
      continue;
    } else if (options_.unknown != Vocabulary::kNone) {
      if (!options_.fuse_unknown) {
        end_unknown();
      }
      has_unknown = true;
    }
  }
  end_unknown();
  return symbols;
}

// Keeps the ranks of all adjacent pairs in an array and scans it for the lowest.
void Bpe::merge_short(std::vector<uint32_t>& symbols) const {
  if (symbols.size() < 2) {
    return;
  }
  std::vector<uint32_t> ranks(symbols.size() - 1), merged(symbols.size() - 1);
  const auto look_up = [&](size_t i) {
    const auto* merge = merges_.find(symbols[i], symbols[i + 1]);
    ranks[i] = merge == nullptr ? kNoRank : merge->rank;
    merged[i] = merge == nullptr ? 0 : merge->merged;
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    look_up(i);
  }
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoRank) {
      return;
    }
    const auto at = best - ranks.begin();
    const auto i = static_cast<size_t>(at);
    symbols[i] = merged[i];
    symbols.erase(symbols.begin() + at + 1);
    ranks.erase(best);
    merged.erase(merged.begin() + at);
    if (i > 0) {
      look_up(i - 1);
    }
    if (i < ranks.size()) {
      look_up(i);
    }
  }
}

// Keeps candidates in a heap. Skips a popped candidate if its symbols have merged with others.
void Bpe::merge_long(std::vector<uint32_t>& symbols) const {
  MOE_CHECK(symbols.size() < size_t{1} << 31, "{} symbols", symbols.size());
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Symbol> list;
  list.reserve(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    list.push_back({symbols[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  std::vector<Candidate> candidates;
  candidates.reserve(symbols.size());
  const auto symbol = [&](int32_t i) -> Symbol& { return list[static_cast<size_t>(i)]; };
  const auto merge_at = [&](int32_t i) {
    return i < 0 || symbol(i).next < 0 ? nullptr
                                       : merges_.find(symbol(i).id, symbol(symbol(i).next).id);
  };
  for (int32_t i = 0; i < count; ++i) {
    if (const auto* merge = merge_at(i)) {
      candidates.push_back({merge->rank, static_cast<uint32_t>(i), merge->merged});
    }
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(candidates));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const auto at = static_cast<int32_t>(best.position);
    const auto* current = symbol(at).is_removed ? nullptr : merge_at(at);
    if (current == nullptr || current->merged != best.merged) {
      continue;
    }
    Symbol& left = symbol(at);
    Symbol& right = symbol(left.next);
    left.id = best.merged;
    left.next = right.next;
    right.is_removed = true;
    if (left.next >= 0) {
      symbol(left.next).previous = at;
    }
    for (const int32_t i : {left.previous, at}) {
      if (const auto* merge = merge_at(i)) {
        queue.push({merge->rank, static_cast<uint32_t>(i), merge->merged});
      }
    }
  }
  symbols.clear();
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbol(i).next) {
    symbols.push_back(symbol(i).id);
  }
}

}  // namespace moe::io
