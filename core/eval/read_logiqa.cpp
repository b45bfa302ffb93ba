// LogiQA: plain text in blocks of eight lines. A block cut short, or out of step, is named with its
// line.
#include <array>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"
#include "core/eval/text.h"

namespace moe::eval {
namespace {

constexpr size_t kLinesPerProblem = 7;  // the blank line before each not counted
constexpr std::array<const char*, kLinesPerProblem> kParts = {
    "the right letter", "the context", "the question", "option A",
    "option B",         "option C",    "option D"};

std::string normalize(std::string_view text) { return strip(replace_all(text, ".", ". ")); }

// Two characters go, whatever they are: besides "A." the files hold "A ", "A?" and translated
// slips.
std::string option_text(std::string_view line) {
  size_t bytes = 0;
  for (int64_t characters = 0; bytes < line.size(); ++bytes) {
    const bool starts_character = (static_cast<unsigned char>(line[bytes]) & 0xC0U) != 0x80U;
    if (starts_character && ++characters == 3) {
      break;
    }
  }
  return normalize(line.substr(bytes));
}

std::string read_label(const Line& line) {
  const std::string label = strip(line.text);
  if (label.size() != 1 || label[0] < 'a' || label[0] > 'd') {
    throw UserError("{}: the right answer must be a letter from a to d, not '{}'", line.where,
                    printable(label));
  }
  return label;
}

// The problem whose letter stands in lines[first].
Document read_problem(const std::vector<Line>& lines, size_t first) {
  const std::string label = read_label(lines[first]);
  for (size_t i = 1; i < kLinesPerProblem; ++i) {
    if (first + i >= lines.size() || strip(lines[first + i].text).empty()) {
      throw UserError("{}: this problem ends before {}; the file is cut, fetch it again",
                      lines[first].where, kParts.at(i));
    }
  }
  OrderedJson fields = {{"label", label},
                        {"context", normalize(lines[first + 1].text)},
                        {"question", normalize(lines[first + 2].text)},
                        {"options", OrderedJson::array()}};
  for (size_t i = 0; i < 4; ++i) {
    fields["options"].push_back(option_text(lines[first + 3 + i].text));
  }
  return {std::move(fields), lines[first].where};
}

}  // namespace

std::vector<Document> read_logiqa(const Files& files) {
  const std::vector<Line> lines = read_lines(files.at(0));
  std::vector<Document> documents;
  for (size_t first = 0; first < lines.size();) {
    if (strip(lines[first].text).empty()) {
      ++first;
      continue;
    }
    documents.push_back(read_problem(lines, first));
    first += kLinesPerProblem;
  }
  return documents;
}

}  // namespace moe::eval
