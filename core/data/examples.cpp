#include "core/data/examples.h"

#include <optional>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/data/records.h"

namespace moe::data {

namespace {

enum class Form { kAlpaca, kPrompt, kRows, kText };

struct FormName {
  Form form;
  const char* key;    // the key that tells it
  const char* words;  // for messages
};
constexpr FormName kForms[] = {{Form::kRows, "input_ids", "pre-tokenised rows"},
                               {Form::kAlpaca, "instruction", "Alpaca records"},
                               {Form::kPrompt, "prompt", "prompt pairs"},
                               {Form::kText, "text", "text documents"}};

const FormName& name_of(Form form) {
  for (const auto& name : kForms) {
    if (name.form == form) {
      return name;
    }
  }
  fail_check("a form is in the table", __FILE__, __LINE__, "");
}

std::optional<Form> recognise(const Json& record) {
  for (const auto& name : kForms) {
    if (record.contains(name.key)) {
      return name.form;
    }
  }
  return std::nullopt;
}

std::string keys_of(const Json& record) {
  std::string keys;
  for (const auto& item : record.items()) {
    if (keys.size() > 80) {
      return keys + ", ...";
    }
    keys += (keys.empty() ? "'" : ", '") + printable(item.key(), 40) + "'";
  }
  return keys.empty() ? "none" : keys;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Turns the records of one run into examples; remembers what must be one for a file (its form) or
// for all (the codec).
class ExampleMaker {
 public:
  ExampleMaker(Objective objective, int64_t vocab_size, const std::function<TextCodec()>& codec)
      : objective_(objective), vocab_size_(vocab_size), codec_source_(codec) {}

  void begin_file() { form_.reset(); }
  Form form() const { return *form_; }

  Example from_json(const Record& record, const std::string& where) {
    const Json json = parse_json(record.text, where);
    if (!json.is_object()) {
      throw UserError("{}: a JSON object {{...}} is expected", where);
    }
    settle_form(json, where);
    switch (*form_) {
      case Form::kRows:
        return from_row(json, where);
      case Form::kAlpaca:
        return from_pair(
            alpaca_instruct(json, where), get_string(json, "output", where), "output", where);
      case Form::kPrompt: {
        const char* key =
            json.contains("response") || !json.contains("completion") ? "response" : "completion";
        return from_pair(
            get_string(json, "prompt", where), get_string(json, key, where), key, where);
      }
      default:
        return from_text(get_string(json, "text", where), where);
    }
  }

  Example from_document(const Record& record, const std::string& where) {
    form_ = Form::kText;
    check_objective(where);
    return from_text(record.text, where);
  }

 private:
  // The file's first record decides; later ones must have the same key.
  void settle_form(const Json& json, const std::string& where) {
    const std::optional<Form> found = recognise(json);
    if (!form_) {
      if (!found) {
        throw UserError(
            "{}: no known form: its keys are {}; known are instruction/input/output, "
            "prompt/response, prompt/completion, "
            "input_ids/labels and text",
            where,
            keys_of(json));
      }
      form_ = found;
      check_objective(where);
    } else if (found && found != form_ && !json.contains(name_of(*form_).key)) {
      throw UserError(
          "{}: mixed forms: the file began with {}, this is one of the {}; put them into two files",
          where,
          name_of(*form_).words,
          name_of(*found).words);
    }
  }

  void check_objective(const std::string& where) const {
    if (objective_ == Objective::kInstruct && *form_ == Form::kText) {
      throw UserError("{}: plain text has no responses to learn; use --objective lm", where);
    }
    if (objective_ == Objective::kLm && (*form_ == Form::kAlpaca || *form_ == Form::kPrompt)) {
      throw UserError("{}: {} are for --objective instruct; --objective lm takes text",
                      where,
                      name_of(*form_).words);
    }
  }

  static std::string alpaca_instruct(const Json& json, const std::string& where) {
    const std::string instruction = get_string(json, "instruction", where);
    const std::string input = get_string(json, "input", where, "");
    return instruction + (input.empty() ? "" : "\n" + input) + "\n";
  }

  Example from_pair(const std::string& instruct,
                    const std::string& response,
                    const std::string& response_key,
                    const std::string& where) {
    if (is_blank(response)) {
      throw UserError(
          "{}: no response: '{}' is empty; remove the record or give it one", where, response_key);
    }
    Example example;
    push(example, codec().bos, false);
    push_text(example, instruct, false, where);
    push_text(example, response, true, where);
    push(example, codec().eos, true);
    return example;
  }

  Example from_text(const std::string& text, const std::string& where) {
    if (is_blank(text)) {
      throw UserError("{}: the document is empty; remove it", where);
    }
    Example example;
    push(example, codec().bos, false);
    push_text(example, text, true, where);
    push(example, codec().eos, true);
    return example;
  }

  Example from_row(const Json& json, const std::string& where) const {
    const std::vector<int64_t> ids = get_ints(json, "input_ids", where);
    const std::vector<int64_t> labels = get_ints(json, "labels", where);
    if (ids.size() != labels.size()) {
      throw UserError("{}: 'input_ids' has {} entries, 'labels' has {}; they must be equally long",
                      where,
                      ids.size(),
                      labels.size());
    }
    Example example;
    bool has_target = false;
    for (size_t t = 0; t < ids.size(); ++t) {
      check_id(ids[t], "input_ids", t, where);
      if (labels[t] != kNoLoss) {
        check_id(labels[t], "labels", t, where);
        has_target = has_target || t > 0;  // nothing predicts the first token
      }
      example.ids.push_back(static_cast<int32_t>(ids[t]));
      example.labels.push_back(static_cast<int32_t>(labels[t]));
    }
    if (!has_target) {
      throw UserError(
          "{}: no response: no label after the first is other than -100; remove the row", where);
    }
    return example;
  }

  void check_id(int64_t id, const char* key, size_t position, const std::string& where) const {
    if (id < 0 || id >= vocab_size_) {
      throw UserError(
          "{}: '{}'[{}] is {}, outside the model's vocabulary of {}; was another tokenizer used?",
          where,
          key,
          position,
          id,
          vocab_size_);
    }
  }

  static void push(Example& example, int64_t id, bool learned) {
    example.ids.push_back(static_cast<int32_t>(id));
    example.labels.push_back(learned ? static_cast<int32_t>(id) : kNoLoss);
  }

  void push_text(Example& example,
                 const std::string& text,
                 bool learned,
                 const std::string& where) {
    for (const int64_t id : codec().encode(text)) {
      if (id < 0 || id >= vocab_size_) {
        throw UserError("{}: the tokenizer gives id {}, outside the model's vocabulary of {}",
                        where,
                        id,
                        vocab_size_);
      }
      push(example, id, learned);
    }
  }

  const TextCodec& codec() {
    if (!codec_) {
      codec_ = codec_source_();
      if (codec_->bos < 0 || codec_->eos < 0 || codec_->bos >= vocab_size_ ||
          codec_->eos >= vocab_size_) {
        throw UserError(
            "the tokenizer has no BOS or EOS within the model's vocabulary of {}; use "
            "pre-tokenised rows",
            vocab_size_);
      }
    }
    return *codec_;
  }

  Objective objective_;
  int64_t vocab_size_;
  const std::function<TextCodec()>& codec_source_;
  std::optional<TextCodec> codec_;
  std::optional<Form> form_;
};

}  // namespace

int64_t Examples::tokens() const {
  int64_t total = 0;
  for (const auto& example : items) {
    total += static_cast<int64_t>(example.ids.size());
  }
  return total;
}

std::string Examples::where(const Example& example) const {
  return fmt::format("{} line {}", files.at(static_cast<size_t>(example.file)), example.line);
}

Examples read_examples(const std::vector<std::filesystem::path>& files,
                       Objective objective,
                       int64_t vocab_size,
                       const std::function<TextCodec()>& codec) {
  MOE_CHECK(!files.empty());
  Examples examples;
  ExampleMaker maker(objective, vocab_size, codec);
  for (const auto& file : files) {
    const auto index = static_cast<int32_t>(examples.files.size());
    examples.files.push_back(file.string());
    RecordReader reader(file);
    maker.begin_file();
    const size_t before = examples.items.size();
    while (const std::optional<Record> record = reader.next()) {
      const std::string where = fmt::format("{} line {}", file.string(), record->line);
      Example example = reader.form() == RecordForm::kText ? maker.from_document(*record, where)
                                                           : maker.from_json(*record, where);
      example.file = index;
      example.line = record->line;
      examples.all_rows = examples.all_rows && maker.form() == Form::kRows;
      examples.items.push_back(std::move(example));
    }
    if (examples.items.size() == before) {
      throw UserError("{}: the file holds no example", file.string());
    }
  }
  return examples;
}

}  // namespace moe::data
