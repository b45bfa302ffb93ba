#pragma once
// Token ids and the texts that they stand for, both ways.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe::io {

class Vocabulary {
 public:
  static constexpr int64_t kNone = -1;
  static constexpr int64_t kMostIds = int64_t{1} << 22;

  Vocabulary() = default;
  // UserError naming `where`: an id below 0 or not below kMostIds, or with two texts. Two ids may
  // not have one text (a caller reads them from an object's keys).
  Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens, const std::string& where);

  int64_t find(std::string_view text) const;  // kNone where it is no token
  bool has(int64_t id) const {
    return id >= 0 && id < std::ssize(texts_) && is_token_[static_cast<size_t>(id)];
  }
  const std::string& text(int64_t id) const { return texts_[static_cast<size_t>(id)]; }
  int64_t tokens() const { return tokens_; }
  int64_t ids_end() const { return std::ssize(texts_); }  // one more than the greatest id

 private:
  std::vector<std::string> texts_;  // by id; empty where no token has it
  std::vector<bool> is_token_;
  int64_t tokens_ = 0;
  struct Slot {
    int32_t id = -1;   // -1: free
    uint32_t tag = 0;  // of the text's hash, so that few texts are looked at in vain
  };

  static uint32_t tag_of(size_t hash) { return static_cast<uint32_t>(hash >> 32); }

  std::vector<Slot> slots_;  // a power of two of them, at most half in use
};

}  // namespace moe::io
