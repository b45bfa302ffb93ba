#include "core/io/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/base/utf8.h"

namespace moe::io {

namespace {

// Hides sentencepiece from all other files: its headers, and the protobuf inside it, meet no other
// code of ours.
class Sentencepiece : public TokenizerModel {
 public:
  Sentencepiece(std::string_view bytes, const std::string& where) : where_(where) {
    if (has_piece_with_nul(bytes) || !processor_.LoadFromSerializedProto(bytes).ok() ||
        processor_.GetPieceSize() == 0) {
      throw UserError("{}: is no sentencepiece model, or a broken one; fetch it again", where);
    }
    word_rule_ = word_rule_of(bytes);
  }

  std::vector<int64_t> encode(std::string_view text) const override;
  std::vector<int64_t> encode_plain(std::string_view text, bool /*begins_text*/) const override {
    return encode(text);  // a space stands before any text, and no text becomes a control piece
  }
  std::vector<int64_t> encode_template(std::string_view text,
                                       const std::vector<TextRange>& /*plain*/) const override {
    return encode(text);
  }
  std::string decode(const std::vector<int64_t>& ids) const override;

  bool has(int64_t id) const override { return id >= 0 && id < processor_.GetPieceSize(); }
  std::string piece(int64_t id) const override {
    return processor_.IdToPiece(static_cast<int>(id));
  }
  std::string bytes(int64_t id) const override { return bytes_of_piece(piece(id)); }
  // The library says "unknown" of what is no token; that is its answer for that token alone.
  int64_t find(const std::string& token) const override {
    const int id = processor_.PieceToId(token);
    return has(id) && processor_.IdToPiece(id) == token ? id : -1;
  }
  int64_t special_id(const std::string& token) const override {
    const int64_t id = find(token);
    return id >= 0 && processor_.IsControl(static_cast<int>(id)) ? id : -1;
  }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int64_t bos_id() const override { return processor_.bos_id(); }
  int64_t eos_id() const override { return processor_.eos_id(); }
  WordRule word_rule() const override { return word_rule_; }

 private:
  // The library loads some broken models, and says so when it is asked.
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) {
      throw UserError("{}: a broken sentencepiece model ({}); fetch it again", where_,
                      printable(status.ToString(), 200));
    }
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::string where_;  // the file, for errors
  WordRule word_rule_ = WordRule::kNone;
};

std::vector<int64_t> Sentencepiece::encode(std::string_view text) const {
  std::vector<int> ids;
  check(processor_.Encode(text, &ids));
  return {ids.begin(), ids.end()};
}

std::string Sentencepiece::decode(const std::vector<int64_t>& ids) const {
  std::vector<std::string> pieces;
  std::string bytes;  // of the byte pieces that end `pieces`
  const auto end_bytes = [&] {
    if (find_invalid_utf8(bytes) != kValidUtf8) {
      std::fill_n(pieces.rbegin(), bytes.size(), "\uFFFD");
    }
    bytes.clear();
  };
  for (const int64_t id : ids) {
    const int index = static_cast<int>(id);
    if (!has(id) || processor_.IsControl(index) || processor_.IsUnknown(index)) {
      continue;  // no text; the library ends the program when it is asked about an id it has not
    }
    const std::string& piece = processor_.IdToPiece(index);
    if (processor_.IsByte(index)) {
      bytes += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));  // <0xE2>
    } else {
      end_bytes();
    }
    pieces.push_back(piece);
  }
  end_bytes();
  std::string text;
  check(processor_.Decode(pieces, &text));
  return text;
}

}  // namespace

std::unique_ptr<TokenizerModel> read_sentencepiece(std::string_view bytes,
                                                   const std::string& where) {
  return std::make_unique<Sentencepiece>(bytes, where);
}

}  // namespace moe::io
