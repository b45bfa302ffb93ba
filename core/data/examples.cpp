#include "core/data/examples.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <future>
#include <mutex>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe::data {

namespace {

void push(Example& example, int64_t id, bool learned) {
  example.ids.push_back(static_cast<int32_t>(id));
  example.labels.push_back(learned ? static_cast<int32_t>(id) : kNoLoss);
}

// Returns encode(); prepends `where` to the message of a UserError.
template <typename Encode>
auto with_place(const std::string& where, const Encode& encode) {
  try {
    return encode();
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
}

constexpr const char* kHasBos = "texts that begin with BOS, given no second one";
constexpr const char* kHasEos = "texts that end with EOS, given no second one";

// Occurrences of each text, of at most 10,000 different texts. Thread-safe.
struct Counter {
  void add(const std::string& text) {
    const std::scoped_lock lock(mutex);
    if (counts.size() < 10'000 || counts.contains(text)) {
      ++counts[text];
    }
  }
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
};

// Converts a record to an example. The first record of a file decides the format. Cheap to copy:
// after the first record each thread uses its own copy.
class ExampleMaker {
 public:
  // Keeps references to `settings` and `codec`. Calls `codec` once, before the first text is
  // encoded.
  ExampleMaker(const ReadSettings& settings, int64_t vocab_size,
               const std::function<TextCodec()>& codec)
      : settings_(settings), vocab_size_(vocab_size), codec_source_(codec) {}

  // Starts a file. Its records add to `unused_keys` and `remarks`, which must outlive the file.
  void begin_file(Counter& unused_keys, Counter& remarks) {
    format_.reset();
    unused_keys_ = &unused_keys;
    remarks_ = &remarks;
  }
  Format format() const { return *format_; }  // requires a first record

  // Throws UserError that opens with `where`.
  Example make(const Record& record, RecordForm form, const std::string& where) {
    return form == RecordForm::kText ? from_document(record, where) : from_json(record, where);
  }

 private:
  Example from_json(const Record& record, const std::string& where) {
    const Json json = parse_json(record.text, where);
    USER_ERROR_IF(!json.is_object(), "{}: a JSON object {{...}} is expected", where);
    settle_format(json, where);
    const bool is_chat = settings_.text_template.chat() && is_conversation(*format_);
    if (is_conversation(*format_)) {
      settings_.text_template.require_usable();
    }
    for (const auto& key : check_keys(json, *format_, is_chat, where)) {
      unused_keys_->add(key);
    }
    if (*format_ == Format::kRows) {
      return from_row(json, where);
    }
    if (is_chat) {
      return from_chat(read_chat(parse_ordered_json(record.text, where), json, *format_, where),
                       where);
    }
    return *format_ == Format::kText
               ? from_text(get_string(json, "text", where), where)
               : from_conversation(read_conversation(json, *format_, where), where);
  }

  Example from_document(const Record& record, const std::string& where) {
    USER_ERROR_IF(settings_.format && settings_.format != Format::kText,
                  "{}: --format {}: the file is plain text, it begins with neither {{ nor [", where,
                  format_name(*settings_.format));
    format_ = Format::kText;
    check_objective(where);
    return from_text(record.text, where);
  }

  // Sets format_ from --format or the first record. Later records must have the key of the format.
  void settle_format(const Json& json, const std::string& where) {
    const std::optional<Format> found = recognise(json, settings_.objective);
    if (!format_) {
      USER_ERROR_IF(
          !found && !settings_.format,
          "{}: no known form: its keys are {}; known are instruction/input/output, "
          "instruction/context/response, system_prompt/question/response, prompt/response, "
          "prompt/completion, conversations, messages, input_ids/labels and text",
          where, quoted_keys(json));
      format_ = settings_.format ? settings_.format : found;
      check_objective(where);
    } else if (!settings_.format && found && found != format_ &&
               !json.contains(format_key(*format_))) {
      throw UserError(
          "{}: mixed forms: the file began with {}, this is one of the {}; put them into two files",
          where, format_label(*format_), format_label(*found));
    }
  }

  void check_objective(const std::string& where) const {
    USER_ERROR_IF(settings_.objective == Objective::kInstruct && *format_ == Format::kText,
                  "{}: plain text has no responses to learn; use --objective lm", where);
    USER_ERROR_IF(settings_.objective == Objective::kLm && is_conversation(*format_),
                  "{}: {} are for --objective instruct; --objective lm takes text", where,
                  format_label(*format_));
  }

  Example from_chat(const Chat& chat, const std::string& where) {
    check_last_answer(chat.messages.back().carries_loss, where);
    Example example;
    with_place(where, [&] {
      const FilledChat filled =
          settings_.text_template.chat()->fill(chat, settings_.loss_on == LossOn::kLast, codec());
      for (const auto& token : chat_tokens(filled, codec())) {
        push_id(example, token.id, token.learned, where);
      }
    });
    USER_ERROR_IF(std::ranges::count(example.labels, kNoLoss) == std::ssize(example.labels),
                  "{}: the chat template writes no answer that carries loss", where);
    return example;
  }

  void check_last_answer(bool carries_loss, const std::string& where) const {
    USER_ERROR_IF(settings_.loss_on == LossOn::kLast && !carries_loss,
                  "{}: the last answer carries no loss; remove the record, or use --loss-on all",
                  where);
  }

  Example from_conversation(const Conversation& conversation, const std::string& where) {
    check_last_answer(conversation.turns.back().carries_loss, where);
    Example example;
    for (size_t turn = 0; turn < conversation.turns.size(); ++turn) {
      const bool is_last = turn + 1 == conversation.turns.size();
      const bool learned =
          (settings_.loss_on == LossOn::kAll || is_last) && conversation.turns[turn].carries_loss;
      const TextCodec& encoder = codec();
      const TurnTokens tokens = with_place(
          where, [&] { return settings_.text_template.encode(conversation, turn, encoder); });
      if (has_plain_mark(conversation.turns[turn])) {
        remarks_->add("turns with BOS or EOS in a field, read as characters");
      }
      if (tokens.had_bos) {
        remarks_->add(kHasBos);
      }
      push_ids(example, tokens.prompt, false, where);
      push_ids(example, tokens.response, learned, where);
      push_eos(example, tokens.response, learned);
    }
    return example;
  }

  Example from_text(const std::string& text, const std::string& where) {
    USER_ERROR_IF(is_blank(text), "{}: the document is empty; remove it", where);
    Example example;
    std::vector<int64_t> ids = with_place(where, [&] { return codec().encode_filled({text, {}}); });
    if (codec().bos >= 0) {
      push(example, codec().bos, false);
    }
    if (!ids.empty() && ids.front() == codec().bos) {
      ids.erase(ids.begin());
      remarks_->add(kHasBos);
    }
    USER_ERROR_IF(ids.empty() || (ids.size() == 1 && ids[0] == codec().eos),
                  "{}: the document is empty; remove it", where);
    push_ids(example, ids, true, where);
    push_eos(example, ids, true);
    return example;
  }

  // Returns true if the instruction begins with the text of BOS, or the response ends with that of
  // EOS.
  bool has_plain_mark(const Turn& turn) {
    const std::string &bos = codec().bos_text, &eos = codec().eos_text;
    return (!bos.empty() && turn.instruction.starts_with(bos)) ||
           (!eos.empty() && turn.response.ends_with(eos));
  }

  Example from_row(const Json& json, const std::string& where) const {
    const std::vector<int64_t> ids = get_ints(json, "input_ids", where);
    const std::vector<int64_t> labels = get_ints(json, "labels", where);
    USER_ERROR_IF(ids.size() != labels.size(),
                  "{}: 'input_ids' has {} entries, 'labels' has {}; they must be equally long",
                  where, ids.size(), labels.size());
    Example example;
    bool has_target = false;
    const auto [first, last] = unmasked_range(json, ids.size(), where);
    check_positions(json, first, last, where);
    for (size_t t = first; t < last; ++t) {
      check_id(ids[t], "input_ids", t, where);
      if (labels[t] != kNoLoss) {
        check_id(labels[t], "labels", t, where);
        has_target = has_target || t > first;  // nothing predicts the first token
      }
      example.ids.push_back(static_cast<int32_t>(ids[t]));
      example.labels.push_back(static_cast<int32_t>(labels[t]));
    }
    USER_ERROR_IF(!has_target,
                  "{}: no response: no label after the first is other than -100; remove the row",
                  where);
    return example;
  }

  // Returns the range of the tokens that "attention_mask" does not mark as padding.
  static std::pair<size_t, size_t> unmasked_range(const Json& json, size_t size,
                                                  const std::string& where) {
    if (!has_value(json, "attention_mask")) {
      return {0, size};
    }
    const std::vector<int64_t> mask = get_ints(json, "attention_mask", where);
    const auto first = std::ranges::find(mask, 1);
    const auto last = std::find(first, mask.end(), 0);
    USER_ERROR_IF(mask.size() != size || first == mask.end() ||
                      std::count(first, last, 1) != last - first ||
                      std::count(mask.begin(), first, 0) != first - mask.begin() ||
                      std::count(last, mask.end(), 0) != mask.end() - last,
                  "{}: 'attention_mask' must have a 1 for each of {} tokens, and 0 for padding "
                  "before and after them only",
                  where, size);
    return {first - mask.begin(), last - mask.begin()};
  }

  // Throws UserError unless "position_ids" are 0, 1, 2, ...; others mean several documents.
  static void check_positions(const Json& json, size_t first, size_t last,
                              const std::string& where) {
    const auto positions = has_value(json, "position_ids") ? get_ints(json, "position_ids", where)
                                                           : std::vector<int64_t>();
    USER_ERROR_IF(!positions.empty() && positions.size() < last,
                  "{}: 'position_ids' has {} entries, fewer than 'input_ids'; they must be equally "
                  "long",
                  where, positions.size());
    for (size_t t = first; t < last && !positions.empty(); ++t) {
      USER_ERROR_IF(positions[t] != static_cast<int64_t>(t - first),
                    "{}: 'position_ids'[{}] is not {}; write each document as a row of its own and "
                    "use --pack stream --pack-mask doc",
                    where, t, t - first);
    }
  }

  void check_id(int64_t id, const char* key, size_t position, const std::string& where) const {
    USER_ERROR_IF(
        id < 0 || id >= vocab_size_,
        "{}: '{}'[{}] is {}, outside the model's vocabulary of {}; was another tokenizer used?",
        where, key, position, id, vocab_size_);
  }

  // Appends EOS, unless `last`, the tokens appended last, ends with it.
  void push_eos(Example& example, const std::vector<int64_t>& last, bool learned) {
    if (!last.empty() && last.back() == codec().eos) {
      remarks_->add(kHasEos);
    } else {
      push(example, codec().eos, learned);
    }
  }

  void push_ids(Example& example, const std::vector<int64_t>& ids, bool learned,
                const std::string& where) const {
    for (const int64_t id : ids) {
      push_id(example, id, learned, where);
    }
  }

  void push_id(Example& example, int64_t id, bool learned, const std::string& where) const {
    USER_ERROR_IF(id < 0 || id >= vocab_size_,
                  "{}: the tokenizer gives id {}, outside the model's vocabulary of {}", where, id,
                  vocab_size_);
    push(example, id, learned);
  }

  const TextCodec& codec() {
    if (!codec_) {
      codec_ = codec_source_();
      USER_ERROR_IF(codec_->eos < 0 || codec_->eos >= vocab_size_ || codec_->bos >= vocab_size_,
                    "the tokenizer has no {} within the model's vocabulary of {}; name another as "
                    "{} in tokenizer_config.json, or use pre-tokenised rows",
                    codec_->bos >= vocab_size_ ? "BOS" : "EOS", vocab_size_,
                    codec_->bos >= vocab_size_ ? "bos_token" : "eos_token");
      if (settings_.text_template.chat()) {
        settings_.text_template.chat()->check_special_tokens(*codec_);
      }
    }
    return *codec_;
  }

  const ReadSettings& settings_;
  int64_t vocab_size_;
  const std::function<TextCodec()>& codec_source_;
  std::optional<TextCodec> codec_;
  std::optional<Format> format_;  // of the file, once a record was read
  Counter *unused_keys_ = nullptr, *remarks_ = nullptr;
};

// Reads one file and passes its examples to `sink` in file order. An error of the reader is thrown
// after the errors of earlier records, so that the first error in the file is reported.
class FileStream {
 public:
  FileStream(const std::filesystem::path& file, int32_t index, const ReadSettings& settings,
             ExampleMaker& maker, const std::function<void(Example&&)>& sink)
      : name_(data_file_name(file, settings.pipes)),
        index_(index),
        settings_(settings),
        reader_(file, settings.pipes),
        maker_(maker),
        sink_(sink) {}

  FileForm run() {
    maker_.begin_file(unused_keys_, remarks_);
    const std::optional<Record> first = reader_.next();
    USER_ERROR_IF(!first, "{}: the file holds no example", name_);
    sink_(make(maker_, *first));  // decides the format, and loads the codec if needed
    read_ = 1;
    read_chunks();
    return {maker_.format(), reader_.packing(), unused_keys_.counts, remarks_.counts};
  }

 private:
  Example make(ExampleMaker& maker, const Record& record) {
    const std::string where = fmt::format("{} line {}", name_, record.line);
    Example example = maker.make(record, reader_.form(), where);
    example.file = index_;
    example.line = record.line;
    return example;
  }

  // Appends the next records, a single one with one thread; none at the end of the file.
  void read_chunk(std::vector<Record>& records) {
    const size_t min_bytes = settings_.threads > 1 ? size_t{256} << 10 : 1;
    for (size_t bytes = 0; bytes < min_bytes && read_ != settings_.max_per_file; ++read_) {
      std::optional<Record> record = reader_.next();
      if (!record) {
        return;
      }
      bytes += record->text.size();
      records.push_back(std::move(*record));
    }
  }

  // Converts chunks of records in threads.
  void read_chunks() {
    const auto policy = settings_.threads > 1 ? std::launch::async : std::launch::deferred;
    std::deque<std::future<std::vector<Example>>> pending;  // waits for its threads when destroyed
    const auto pass_on = [&](int max_pending) {
      for (; std::ssize(pending) > max_pending; pending.pop_front()) {
        for (auto& example : pending.front().get()) {
          sink_(std::move(example));
        }
      }
    };
    const auto convert = [this](ExampleMaker maker, const std::vector<Record>& records) {
      std::vector<Example> examples;
      for (const auto& record : records) {
        examples.push_back(make(maker, record));
      }
      return examples;
    };
    std::exception_ptr error;
    for (std::vector<Record> records(1); error == nullptr && !records.empty();) {
      records.clear();
      try {
        read_chunk(records);
      } catch (const std::exception&) {
        error = std::current_exception();
      }
      pending.push_back(std::async(policy, convert, maker_, records));
      pass_on(settings_.threads - 1);
    }
    pass_on(0);
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  }

  std::string name_;
  int32_t index_;
  const ReadSettings& settings_;
  RecordReader reader_;
  ExampleMaker& maker_;
  const std::function<void(Example&&)>& sink_;
  int64_t read_ = 0;  // records
  Counter unused_keys_, remarks_;
};

}  // namespace

std::string FileForm::summary() const {
  const std::string packed = packing_name(packing);
  std::string words = format_label(format) + (packed.empty() ? "" : ", " + packed);
  for (const auto& [remark, count] : remarks) {
    words += fmt::format("; {}: {}", remark, count);
  }
  constexpr size_t kMaxNamed = 20;
  size_t named = 0;
  for (const auto& [key, count] : unused_keys) {
    words += named == 0 ? "; not used:" : ",";
    if (named++ == kMaxNamed) {
      return words + fmt::format(" and {} more", unused_keys.size() - kMaxNamed);
    }
    words += fmt::format(" '{}' of {} record{}", printable(key, 40), count, count == 1 ? "" : "s");
  }
  return words;
}

std::vector<FileForm> stream_examples(const std::vector<Source>& sources,
                                      const ReadSettings& settings, int64_t vocab_size,
                                      const std::function<TextCodec()>& codec,
                                      const std::function<void(Example&&)>& sink) {
  MOE_CHECK(!sources.empty());
  ExampleMaker maker(settings, vocab_size, codec);
  std::vector<FileForm> forms;
  for (const auto& source : sources) {
    const auto index = static_cast<int32_t>(forms.size());
    forms.push_back(FileStream(source.file, index, settings, maker, sink).run());
  }
  return forms;
}

void describe_sources(const std::vector<Source>& sources, const std::vector<FileForm>& forms,
                      Examples& examples) {
  examples.files.clear();
  for (size_t index = 0; index < sources.size(); ++index) {
    examples.files.push_back(sources[index].file.string());
    examples.forms.push_back(forms.at(index).summary());
    examples.all_rows = examples.all_rows && forms[index].format == Format::kRows;
    if (sources[index].weight > 0) {
      examples.weights.push_back(sources[index].weight);
    }
  }
  MOE_CHECK(examples.weights.empty() || examples.weights.size() == examples.files.size());
}

}  // namespace moe::data
