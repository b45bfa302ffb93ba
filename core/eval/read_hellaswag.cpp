// HellaSwag: the start of a scene and four endings. The harness cleans both of WikiHow's marks.
#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/eval/formats.h"
#include "core/eval/lines.h"
#include "core/eval/text.h"

namespace moe::eval {
namespace {

// re.sub(r"\[.*?\]", "", text): from a bracket to the nearest closing one; a dot does not match a
// line feed.
std::string remove_brackets(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t end = text[i] == '[' ? text.find_first_of("]\n", i) : std::string::npos;
    if (end != std::string::npos && text[end] == ']') {
      i = end + 1;
    } else {
      result += text[i++];
    }
  }
  return result;
}

int64_t read_label(const Json& json, const std::string& where) {
  const auto label = json.find("label");
  const std::string text = label == json.end()  ? ""
                           : label->is_string() ? label->get<std::string>()
                                                : label->dump();
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') {
    throw UserError(
        "{}: 'label' must be 0 to 3, not '{}'; the test split has no answers, use the validation "
        "split",
        where, printable(text));
  }
  return text[0] - '0';
}

Document read_scene(const Json& json, const std::string& where) {
  const std::vector<std::string> endings = get_strings(json, "endings", where);
  if (endings.size() != 4) {
    throw UserError("{}: {} endings, HellaSwag has 4 a scene", where, endings.size());
  }
  OrderedJson fields;
  fields["ind"] = get_int(json, "ind", where, 0);
  for (const char* key : {"activity_label", "ctx_a", "ctx_b"}) {
    fields[key] = get_string(json, key, where);
  }
  fields["ctx"] = get_string(json, "ctx", where, "");
  fields["endings"] = endings;
  for (const char* key : {"source_id", "split", "split_type"}) {
    fields[key] = get_string(json, key, where, "");
  }
  fields["label"] = std::to_string(read_label(json, where));
  return {std::move(fields), where};
}

}  // namespace

std::string preprocess_hellaswag(std::string_view text) {
  const std::string titled = replace_all(strip(text), " [title]", ". ");
  return replace_all(remove_brackets(titled), "  ", " ");
}

void process_hellaswag(OrderedJson& fields) {
  const auto text = [&](const char* key) { return fields.at(key).get<std::string>(); };
  fields["query"] = preprocess_hellaswag(text("activity_label") + ": " + text("ctx_a") + " " +
                                         capitalize(text("ctx_b")));
  fields["choices"] = OrderedJson::array();
  for (const auto& ending : fields.at("endings")) {
    fields["choices"].push_back(preprocess_hellaswag(ending.get<std::string>()));
  }
  fields["gold"] = text("label")[0] - '0';
}

std::vector<Document> read_hellaswag(const Files& files) {
  std::vector<Document> documents;
  for (const auto& [json, where] : read_jsonl(files.at(0))) {
    documents.push_back(read_scene(json, where));
  }
  return documents;
}

}  // namespace moe::eval
