#pragma once
// How many experts each token got: sums by source of the text, over the right answers of a task,
// and by entry of the vocabulary (Dynamic MoE, Tables 2 to 4). Filled from forwards that count
// tokens (model::RoutingOptions::count_tokens).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/eval/scoring/score.h"

namespace moe::eval {

// Of some tokens in one MoE layer.
struct TokenCounts {
  int64_t tokens = 0;
  int64_t accepted = 0, filled = 0, rectified = 0;  // rows: of the first k choices, FR, IR
  int64_t dropped_tokens = 0, unserved_tokens = 0;  // as in route::CounterValues
  std::vector<int64_t> tokens_per_expert;           // [E]; empty before the first token

  void add_token(const int64_t* rows, int64_t experts);  // [3 + E], of route::rows_of_tokens
  void add(const TokenCounts& other);
  int64_t rows() const { return accepted + filled + rectified; }
};

struct VocabularyEntry {
  int64_t id = 0;
  std::string piece;     // as the tokenizer stores it
  int64_t count = 0;     // occurrences among the tokens run
  int64_t rows = 0;      // over all MoE layers
  int64_t complete = 0;  // occurrences as a complete word
};

struct TokenStats {
  struct Source {
    std::string name;
    std::vector<TokenCounts> layers;  // one a MoE layer
  };
  std::vector<Source> sources;              // in order of appearance
  std::vector<VocabularyEntry> vocabulary;  // those that occur, by id
};

struct RequestLabel {
  std::string source;
  bool is_gold = false;  // context + right answer of a question
};

// How a piece joins its neighbours. A token is a complete word where it begins one and the next
// token begins another, or something that is no letter.
struct PieceShape {
  bool starts_word = false;    // begins with U+2581 or a space
  bool starts_letter = false;  // begins with a letter
};
// Letters are those of Unicode, and the marks that follow one. Byte pieces "<0x..>" are none, nor
// is the beginning of a character that goes on in the next token.
PieceShape shape_of(const std::string& piece);

class TokenTally {
 public:
  // `tokenizer` must outlive the tally.
  TokenTally(const io::Tokenizer& tokenizer, int64_t vocab_size, size_t layers);

  // The requests of the forwards that follow, with a label each. Both must outlive them.
  void begin(const std::vector<Request>& requests, const std::vector<RequestLabel>& labels);
  void add(const Forward& forward);
  // The sums over gold requests since begin(), one a layer; empty when there were none.
  const std::vector<TokenCounts>& gold() const { return gold_; }
  TokenStats finish() const;

 private:
  void add_request(size_t index, const int64_t* rows, int64_t all_tokens, int64_t columns);
  bool is_complete_word(int64_t id, int64_t next) const;

  const io::Tokenizer& tokenizer_;
  size_t layers_;
  std::vector<PieceShape> shapes_;           // [V]
  std::vector<VocabularyEntry> vocabulary_;  // [V], without pieces
  std::vector<TokenStats::Source> sources_;
  const std::vector<Request>* requests_ = nullptr;
  const std::vector<RequestLabel>* labels_ = nullptr;
  std::vector<size_t> source_of_;  // [requests] index into sources_
  std::vector<TokenCounts> gold_;
};

inline constexpr int64_t kTextWindow = 2048;  // tokens; Dynamic MoE cuts there

// Raw text as requests for routing statistics (Dynamic MoE, Tables 2 and 4); no token is scored.
struct TextWindows {
  std::vector<Request> requests;     // in file order
  std::vector<RequestLabel> labels;  // the source of each
};

// Reads the first `limit` texts of each file (core/data/records.h: plain text, or JSON records with
// a "text" and an optional "source"), adds the encoder's BOS, and cuts every kTextWindow tokens or
// at the model's window. `end_id` stands for the token after a text. Throws UserError: a missing
// file, a folder, broken records, no text.
TextWindows read_text_windows(const std::vector<std::filesystem::path>& files,
                              const TextEncoder& encoder, int64_t end_id,
                              std::optional<int64_t> limit);

}  // namespace moe::eval
