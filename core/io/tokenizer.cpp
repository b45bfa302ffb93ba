#include "core/io/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/io/mapped_file.h"

namespace moe::io {

namespace fs = std::filesystem;

// Hides sentencepiece from all other files: its headers, and the protobuf inside it, meet no other
// code of ours.
struct Tokenizer::Model {
  sentencepiece::SentencePieceProcessor processor;

  bool knows(int64_t id) const { return id >= 0 && id < processor.GetPieceSize(); }
};

Tokenizer::Tokenizer() : model_(std::make_unique<Model>()) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const fs::path& folder, int64_t vocab_size) {
  const fs::path file = folder / "tokenizer.model";
  if (!fs::exists(file)) {
    throw UserError(
        "{}: has no tokenizer.model: text needs a sentencepiece model; without it upcycling, "
        "inspecting and training on "
        "pre-tokenised rows work",
        folder.string());
  }
  Tokenizer tokenizer;
  const MappedFile mapped(file);
  const std::string_view bytes(reinterpret_cast<const char*>(mapped.bytes().data()),
                               mapped.bytes().size());
  const auto status = tokenizer.model_->processor.LoadFromSerializedProto(bytes);
  if (!status.ok() || tokenizer.vocab_size() == 0) {
    throw UserError("{}: is no sentencepiece model, or a broken one; fetch it again",
                    file.string());
  }
  if (vocab_size > 0 && tokenizer.vocab_size() > vocab_size) {
    throw UserError(
        "{}: has {} tokens, config.json says vocab_size {}: tokenizer and model do not belong "
        "together",
        file.string(), tokenizer.vocab_size(), vocab_size);
  }
  tokenizer.word_rule_ = word_rule_of(bytes);
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) {
    tokenizer.adds_bos_ = get_bool(read_json(config), "add_bos_token", config.string(), false);
  }
  return tokenizer;
}

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  const auto status = model_->processor.Encode(text, &ids);
  MOE_CHECK(status.ok(), "sentencepiece: {}", status.ToString());
  return {ids.begin(), ids.end()};
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  const auto& processor = model_->processor;
  std::vector<std::string> pieces;
  std::string bytes;  // of the byte pieces that end `pieces`
  const auto end_bytes = [&] {
    if (find_invalid_utf8(bytes) != kValidUtf8) {
      std::fill_n(pieces.rbegin(), bytes.size(), "\uFFFD");
    }
    bytes.clear();
  };
  for (const int64_t id : ids) {
    const int known = model_->knows(id) ? static_cast<int>(id) : processor.unk_id();
    if (processor.IsControl(known) || processor.IsUnknown(known)) {
      continue;
    }
    const std::string& piece = processor.IdToPiece(known);
    if (processor.IsByte(known)) {
      bytes += static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));  // <0xE2>
    } else {
      end_bytes();
    }
    pieces.push_back(piece);
  }
  end_bytes();
  std::string text;
  const auto status = processor.Decode(pieces, &text);
  MOE_CHECK(status.ok(), "sentencepiece: {}", status.ToString());
  return text;
}

std::string Tokenizer::piece(int64_t id) const {
  return model_->knows(id) ? model_->processor.IdToPiece(static_cast<int>(id))
                           : fmt::format("<{}>", id);
}

int64_t Tokenizer::bos_id() const { return model_->processor.bos_id(); }

int64_t Tokenizer::eos_id() const { return model_->processor.eos_id(); }

int64_t Tokenizer::vocab_size() const { return model_->processor.GetPieceSize(); }

}  // namespace moe::io
