#pragma once
// The bytes of a token file as structs, little endian as every machine that we run on; the words to
// them are in core/io/formats.md. Used by what writes the file and what reads it, by nothing else.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moe::data::layout {

inline constexpr std::array<char, 8> kMagic = {'m', 'o', 'e', ' ', 't', 'o', 'k', '\n'};
inline constexpr std::array<char, 8> kUnfinishedMagic = {'m', 'o', 'e', ' ', 'p', 'a', 'r', 't'};
inline constexpr uint32_t kLabelsFollow = 0xFFFFFFFF;  // in Block::runs
inline constexpr uint64_t kAlign_bytes = 8;            // of blocks

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = 0;
  uint32_t id_bytes = 0;               // 2 or 4
  uint64_t key_high = 0, key_low = 0;  // what the tokens were made from
  uint64_t vocab_size = 0;
  uint64_t files = 0, examples = 0, tokens = 0;
  uint64_t blocks_end = 0;                   // where the index begins
  uint64_t blocks_high = 0, blocks_low = 0;  // digest of [sizeof(Header), blocks_end)
  uint64_t tables_high = 0, tables_low = 0;  // of index and files
  uint64_t header_high = 0, header_low = 0;  // of the bytes above
};
static_assert(sizeof(Header) == 120);
inline constexpr size_t kHeaderSummed_bytes = offsetof(Header, header_high);

// Before the ids of an example; behind them, to the next multiple of 4, u32 runs[runs] or
// i32 labels[tokens].
struct Block {
  uint32_t tokens = 0;
  uint32_t runs = 0;  // lengths by turns: without loss, with loss, ...; they sum to `tokens`
  int64_t line = 0;
};
static_assert(sizeof(Block) == 16);

struct File {
  uint32_t format = 0, packing = 0;
  uint64_t examples = 0, tokens = 0;
};
static_assert(sizeof(File) == 24);

inline uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Of the ids, up to what follows them.
inline uint64_t ids_bytes(uint64_t tokens, uint32_t id_bytes) {
  return round_up(tokens * id_bytes, sizeof(uint32_t));
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace moe::data::layout
