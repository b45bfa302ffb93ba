#include "core/io/tokenizer/tokenizer_model.h"

#include "core/io/tokenizer/word_rule.h"

namespace moe::io {

std::string bytes_of_piece(const std::string& piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>')) {
    const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
    if (high != std::string_view::npos && low != std::string_view::npos) {
      return std::string(1, static_cast<char>(high * 16 + low));
    }
  }
  std::string bytes = piece;
  for (size_t at = bytes.find(kSpaceMark); at != std::string::npos;
       at = bytes.find(kSpaceMark, at)) {
    bytes.replace(at, kSpaceMark.size(), " ");
  }
  return bytes;
}

}  // namespace moe::io
