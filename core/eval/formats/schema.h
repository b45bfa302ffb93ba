#pragma once
// The fields of a Hub data set, declared: records exported from it (JSONL, CSV) are checked against
// them, put into their order, and labels become numbers.

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/formats/documents.h"

namespace moe::eval {

struct Field {
  enum class Kind {
    kText,
    kInt,
    kLabel,    // 0 .. names.size() - 1; a name, or true and false, stand for their number
    kTexts,    // ["..", ..]
    kChoices,  // {"text": [..], "label": [..]}, equally many, one at least
    kAnswers,  // {"choices": [..], "labels": [0 or 1, ..]}, equally many, one at least
    kAny,      // kept as it is, null where it is missing
  };
  std::string name;
  Kind kind = Kind::kText;
  std::vector<std::string> names = {};  // of a label's values
};
using Schema = std::vector<Field>;

// The fields of `record` that the schema names. UserError: one is missing, of another type, or a
// label out of range.
OrderedJson take_fields(const Json& record, const Schema& schema, const std::string& where);

// The records of FILE.jsonl, or of FILE.csv with a header (lists as Python or numpy print them).
FirstDocuments read_exported(const std::filesystem::path& file, const Schema& schema,
                             int64_t limit = kAllDocuments);

// The number of a label given as a number, a boolean or a name. UserError.
int64_t label_of(const Json& value, const Field& field, const std::string& where);

}  // namespace moe::eval
