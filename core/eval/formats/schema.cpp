#include "core/eval/formats/schema.h"

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {
namespace {

using Kind = Field::Kind;

// {"first": [strings], "second": [..]}: both there and equally long.
OrderedJson take_pairs(const Json& record, const std::string& key, const char* first,
                       const char* second, const std::string& where) {
  const auto found = record.find(key);
  if (found == record.end() || !found->is_object()) {
    throw UserError("{}: '{}' is missing or not an object with '{}' and '{}'", where, key, first,
                    second);
  }
  const std::vector<std::string> texts = get_strings(*found, first, where);
  const auto labels = found->find(second);
  if (labels == found->end() || !labels->is_array() || labels->size() != texts.size() ||
      texts.empty()) {
    throw UserError("{}: '{}' must hold as many entries in '{}' as in '{}', one at least", where,
                    key, second, first);
  }
  return {{first, texts}, {second, OrderedJson(*labels)}};
}

OrderedJson take_choices(const Json& record, const std::string& key, const std::string& where) {
  OrderedJson pairs = take_pairs(record, key, "text", "label", where);
  for (const auto& label : pairs["label"]) {
    if (!label.is_string()) {
      throw UserError("{}: '{}' has the label {}, a string is needed", where, key, label.dump());
    }
  }
  return pairs;
}

OrderedJson take_answers(const Json& record, const std::string& key, const std::string& where) {
  OrderedJson pairs = take_pairs(record, key, "choices", "labels", where);
  for (const auto& label : pairs["labels"]) {
    if (label != 0 && label != 1) {
      throw UserError("{}: '{}' has the label {}, it must be 0 or 1", where, key, label.dump());
    }
  }
  return pairs;
}

OrderedJson take_field(const Json& record, const Field& field, const std::string& where) {
  const auto found = record.find(field.name);
  switch (field.kind) {
    case Kind::kText:
      return get_string(record, field.name, where);
    case Kind::kInt:
      return get_int(record, field.name, where);
    case Kind::kTexts:
      return get_strings(record, field.name, where);
    case Kind::kChoices:
      return take_choices(record, field.name, where);
    case Kind::kAnswers:
      return take_answers(record, field.name, where);
    case Kind::kAny:
      return found == record.end() ? OrderedJson() : OrderedJson(*found);
    case Kind::kLabel:
      break;
  }
  if (found == record.end()) {
    throw UserError("{}: '{}' is missing; a split without answers cannot be scored", where,
                    field.name);
  }
  return label_of(*found, field, where);
}

// A CSV field as the JSON that the schema wants.
Json csv_value(const std::string& text, const Field& field, const std::string& where) {
  switch (field.kind) {
    case Kind::kText:
      return text;
    case Kind::kTexts:
    case Kind::kChoices:
    case Kind::kAnswers:
      return parse_literal(text, where);
    case Kind::kAny:
      return !text.empty() && (text[0] == '[' || text[0] == '{') ? parse_literal(text, where)
                                                                 : Json(text);
    case Kind::kInt:
    case Kind::kLabel:
      break;
  }
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure == std::errc() && end == text.data() + text.size() && !text.empty()) {
    return number;
  }
  return text == "True" || text == "False" ? Json(text == "True") : Json(text);
}

FirstDocuments read_exported_csv(const std::filesystem::path& file, const Schema& schema,
                                 int64_t limit) {
  CsvTable table(file);
  const std::vector<std::string> header = table.header();
  return first_documents(std::move(table), limit, [&](const CsvRow& row) {
    Json record = Json::object();
    for (const auto& field : schema) {
      const auto column = std::find(header.begin(), header.end(), field.name) - header.begin();
      if (column < static_cast<int64_t>(header.size())) {
        record[field.name] = csv_value(row.fields[static_cast<size_t>(column)], field, row.where);
      }
    }
    return Document{take_fields(record, schema, row.where), row.where};
  });
}

}  // namespace

int64_t label_of(const Json& value, const Field& field, const std::string& where) {
  const auto count = static_cast<int64_t>(field.names.size());
  int64_t number = -1;
  if (value.is_boolean()) {
    number = value.get<bool>() ? 1 : 0;
  } else if (value.is_number_integer() && value >= 0 && value < count) {
    number = value.get<int64_t>();
  } else if (value.is_string()) {
    const auto found = std::find(field.names.begin(), field.names.end(), value.get<std::string>());
    number = found == field.names.end() ? -1 : found - field.names.begin();
  }
  if (number < 0 || number >= count) {
    throw UserError("{}: '{}' is {}, it must be 0 to {} or one of {}{}", where, field.name,
                    printable(value.dump()), count - 1, fmt::join(field.names, ", "),
                    value == -1 ? "; this split has no answers" : "");
  }
  return number;
}

OrderedJson take_fields(const Json& record, const Schema& schema, const std::string& where) {
  OrderedJson fields = OrderedJson::object();
  for (const auto& field : schema) {
    fields[field.name] = take_field(record, field, where);
  }
  return fields;
}

FirstDocuments read_exported(const std::filesystem::path& file, const Schema& schema,
                             int64_t limit) {
  if (file.extension() == ".csv") {
    return read_exported_csv(file, schema, limit);
  }
  return first_documents(JsonLinesReader(file), limit, [&](const JsonLine& record) {
    return Document{take_fields(record.json, schema, record.where), record.where};
  });
}

}  // namespace moe::eval
