#include "core/eval/scoring/text_windows.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/data/records.h"
#include "core/eval/formats/lines.h"

namespace moe::eval {
namespace {

struct Text {
  std::string text, source;
};

Text read_one(const data::RecordReader& reader, data::Record& record,
              const std::filesystem::path& file) {
  if (reader.form() == data::RecordForm::kText) {
    return {std::move(record.text), file.string()};
  }
  const std::string where = fmt::format("{} line {}", file.string(), record.line);
  const Json json = parse_json(record.text, where);
  if (!json.is_object()) {
    throw UserError("{}: not a JSON object; a record is {{\"text\": .., \"source\": ..}}", where);
  }
  return {get_string(json, "text", where), source_of(json, file.string())};
}

void add_windows(const Text& text, const TextEncoder& encoder, int64_t end_id,
                 TextWindows& windows) {
  const std::vector<int64_t> ids = encode_text(encoder, text.text);
  const auto size = static_cast<int64_t>(ids.size());
  const int64_t window = std::min(kTextWindow, encoder.window);
  for (int64_t begin = 0; begin < size; begin += window) {
    const int64_t end = std::min(begin + window, size);
    Request request;
    request.tokens.assign(ids.begin() + begin, ids.begin() + end);
    request.tokens.push_back(end < size ? ids[static_cast<size_t>(end)] : end_id);
    windows.requests.push_back(std::move(request));
    windows.labels.push_back({text.source, false});
  }
}

}  // namespace

TextWindows read_text_windows(const std::vector<std::filesystem::path>& files,
                              const TextEncoder& encoder, int64_t end_id,
                              std::optional<int64_t> limit) {
  TextWindows windows;
  for (const auto& file : files) {
    if (!std::filesystem::is_regular_file(file)) {
      throw UserError("--stats-text {}: {}", file.string(),
                      std::filesystem::exists(file) ? "not a file" : "no such file");
    }
    data::RecordReader reader(file);
    const size_t before = windows.requests.size();
    for (int64_t texts = 0; texts < limit.value_or(texts + 1); ++texts) {
      auto record = reader.next();
      if (!record) {
        break;
      }
      add_windows(read_one(reader, *record, file), encoder, end_id, windows);
    }
    if (windows.requests.size() == before) {
      throw UserError("{}: no text in it", file.string());
    }
  }
  return windows;
}

}  // namespace moe::eval
