#include "core/data/examples.h"

#include <algorithm>
#include <deque>
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

// Error that does not depend on a record.
class SettingsError : public UserError {
 public:
  using UserError::UserError;
};

// Returns get(); converts a UserError to a SettingsError.
template <typename Get>
auto as_settings_error(const Get& get) {
  try {
    return get();
  } catch (const UserError& error) {
    throw SettingsError("{}", error.what());
  }
}

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
  Format format() const { return format_.value_or(Format::kText); }

  // Returns the examples of a record: of a row one for each document, else one. Throws UserError
  // that opens with `where` if the record cannot be used, SettingsError if all cannot.
  std::vector<Example> make(const Record& record, RecordForm form, const std::string& where) {
    USER_ERROR_IF(!record.error.empty(), "{}", record.error);
    return form == RecordForm::kText ? std::vector{from_document(record, where)}
                                     : from_json(record, where);
  }

 private:
  std::vector<Example> from_json(const Record& record, const std::string& where) {
    Json json = parse_json(record.text, where);
    USER_ERROR_IF(!json.is_object(), "{}: a JSON object {{...}} is expected", where);
    rename_keys(json, where);
    settle_format(json, where);
    const bool is_chat = settings_.text_template.chat() && is_conversation(*format_);
    if (is_conversation(*format_)) {
      as_settings_error([&] { settings_.text_template.require_usable(); });
    }
    for (const auto& key : check_keys(json, *format_, is_chat, where)) {
      unused_keys_->add(key);
    }
    if (*format_ == Format::kRows) {
      std::vector<Example> examples = read_row(json, vocab_size_, where);
      if (examples.size() > 1) {
        remarks_->add("rows of several documents, each of which is an example");
      }
      return examples;
    }
    if (is_chat) {
      OrderedJson ordered = parse_ordered_json(record.text, where);
      rename_keys(ordered, where);
      return {from_chat(read_chat(ordered, json, *format_, where), where)};
    }
    return {*format_ == Format::kText
                ? from_text(get_string(json, "text", where), where)
                : from_conversation(read_conversation(json, *format_, where), where)};
  }

  // Renames the keys of --columns. The first record of a file must have one of each pair.
  template <typename AnyJson>
  void rename_keys(AnyJson& record, const std::string& where) const {
    for (const auto& [from, to] : settings_.columns) {
      if (!format_ && !record.contains(from) && !record.contains(to)) {
        throw SettingsError("{}: --columns {}={}: the record has no '{}', its keys are {}", where,
                            from, to, printable(from, 40), quoted_keys(record));
      }
      if (record.contains(from)) {
        USER_ERROR_IF(record.contains(to), "{}: --columns {}={}: the record has both keys", where,
                      from, to);
        record[to] = AnyJson(record[from]);
        record.erase(from);
      }
    }
  }

  Example from_document(const Record& record, const std::string& where) {
    if (settings_.format && settings_.format != Format::kText) {
      throw SettingsError(
          "{}: --format {}: the file is plain text, it begins with neither {{ nor [", where,
          format_name(*settings_.format));
    }
    format_ = Format::kText;
    check_objective(where);
    return from_text(record.text, where);
  }

  // Sets format_ from --format or the first record. Later records must have the key of the format.
  void settle_format(const Json& json, const std::string& where) {
    const std::optional<Format> found = recognise(json, settings_.objective);
    if (!format_) {
      if (!found && !settings_.format) {
        throw SettingsError(
            "{}: no known form: its keys are {}; known are instruction/input/output, "
            "instruction/context/response, system_prompt/question/response, question/answer, "
            "input/output, prompt/response, prompt/completion, prompt/chosen, conversations, "
            "messages, input_ids/labels and text; name others with --columns",
            where, quoted_keys(json));
      }
      format_ = settings_.format ? settings_.format : found;
      check_objective(where);
    } else if (!settings_.format && found && found != format_ &&
               (format_ == Format::kInputOutput || !json.contains(format_key(*format_)))) {
      // An Alpaca record has the keys of kInputOutput, and an instruction.
      throw UserError(
          "{}: mixed forms: the file began with {}, this is one of the {}; put them into two files",
          where, format_label(*format_), format_label(*found));
    }
  }

  void check_objective(const std::string& where) const {
    as_settings_error([&] {
      USER_ERROR_IF(settings_.objective == Objective::kInstruct && *format_ == Format::kText,
                    "{}: plain text has no responses to learn; use --objective lm", where);
      USER_ERROR_IF(settings_.objective == Objective::kLm && is_conversation(*format_),
                    "{}: {} are for --objective instruct; --objective lm takes text", where,
                    format_label(*format_));
    });
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
      as_settings_error([this] {
        codec_ = codec_source_();
        USER_ERROR_IF(codec_->eos < 0 || codec_->eos >= vocab_size_ || codec_->bos >= vocab_size_,
                      "the tokenizer has no {} within the model's vocabulary of {}; name another "
                      "as {} in tokenizer_config.json, or use pre-tokenised rows",
                      codec_->bos >= vocab_size_ ? "BOS" : "EOS", vocab_size_,
                      codec_->bos >= vocab_size_ ? "bos_token" : "eos_token");
        if (settings_.text_template.chat()) {
          settings_.text_template.chat()->check_special_tokens(*codec_);
        }
      });
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

// Reads one file and passes its examples to `sink` in file order.
class FileStream {
 public:
  FileStream(const std::filesystem::path& file, int32_t index, const ReadSettings& settings,
             ExampleMaker& maker, FirstMessages& bad, const std::function<void(Example&&)>& sink)
      : name_(data_file_name(file, settings.pipes)),
        index_(index),
        settings_(settings),
        reader_(file, settings.pipes),
        maker_(maker),
        bad_(bad),
        sink_(sink) {}

  FileForm run() {
    maker_.begin_file(unused_keys_, remarks_);
    read_chunks();
    const bool is_last_word = skips() || bad_.count == 0;  // else stream_examples() reports
    USER_ERROR_IF(read_ == 0 && is_last_word, "{}: the file holds no example", name_);
    USER_ERROR_IF(examples_ == 0 && is_last_word, "{}: no record can be used; {}", name_,
                  file_bad_.count == 0 ? "all examples are too long" : file_bad_.text());
    return {maker_.format(), reader_.packing(), unused_keys_.counts, remarks_.counts};
  }

 private:
  struct Chunk {
    std::vector<Example> examples;
    std::vector<BadRecord> bad;
  };

  bool skips() const { return settings_.bad_records == BadRecords::kSkip; }

  Chunk convert(ExampleMaker& maker, std::vector<Record> records) {
    Chunk chunk;
    for (auto& record : records) {
      try {
        const std::string where = fmt::format("{} line {}", name_, record.line);
        for (auto& example : maker.make(record, reader_.form(), where)) {
          example.file = index_;
          example.line = record.line;
          if (limit_length(example)) {
            chunk.examples.push_back(std::move(example));
          }
        }
      } catch (const SettingsError&) {
        throw;
      } catch (const UserError& error) {
        chunk.bad.push_back({error.what(), std::move(record)});
      }
    }
    return chunk;
  }

  // Applies --overlong. Returns false if the example is dropped.
  bool limit_length(Example& example) {
    if (settings_.overlong == Overlong::kError || std::ssize(example.ids) <= settings_.max_tokens) {
      return true;
    }
    example.ids.resize(static_cast<size_t>(settings_.max_tokens));
    example.labels.resize(example.ids.size());
    const bool has_target = std::any_of(example.labels.begin() + 1, example.labels.end(),
                                        [](int32_t label) { return label != kNoLoss; });
    const bool is_kept = settings_.overlong == Overlong::kTruncate && has_target;
    remarks_.add(fmt::format("examples of more than {} tokens, {}", settings_.max_tokens,
                             is_kept ? "truncated" : "dropped"));
    return is_kept;
  }

  void pass_on(Chunk&& chunk) {
    for (const auto& bad : chunk.bad) {
      bad_.add(bad.message);
      file_bad_.add(bad.message);
      remarks_.add("records skipped");
      settings_.on_bad(bad);
    }
    examples_ += std::ssize(chunk.examples);
    for (auto& example : chunk.examples) {
      if (skips() || bad_.count == 0) {
        sink_(std::move(example));
      }
    }
  }

  // Appends the next records, none at the end of the file; a single one with one thread and until
  // there is an example.
  void read_chunk(std::vector<Record>& records) {
    const size_t min_bytes = settings_.threads > 1 && examples_ > 0 ? size_t{256} << 10 : 1;
    for (size_t bytes = 0; bytes < min_bytes && (read_ == 0 || read_ != settings_.max_per_file);
         ++read_) {
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
    std::deque<std::future<Chunk>> pending;  // waits for its threads when destroyed
    const auto pass_on_all_but = [&](int count) {
      for (; std::ssize(pending) > count; pending.pop_front()) {
        pass_on(pending.front().get());
      }
    };
    const auto run = [this](ExampleMaker maker, std::vector<Record> records) {
      return convert(maker, std::move(records));
    };
    for (bool is_done = false; !is_done;) {
      std::vector<Record> records;
      try {
        read_chunk(records);
        is_done = records.empty();
      } catch (const UserError& unreadable) {  // the rest of the file
        if (skips()) {
          throw;
        }
        records.push_back({"", 0, unreadable.what()});
        is_done = true;
      }
      if (examples_ == 0) {  // decides the format, and loads the codec if needed
        pass_on(convert(maker_, std::move(records)));
      } else {
        pending.push_back(std::async(policy, run, maker_, std::move(records)));
        pass_on_all_but(settings_.threads - 1);
      }
    }
    pass_on_all_but(0);
  }

  std::string name_;
  int32_t index_;
  const ReadSettings& settings_;
  RecordReader reader_;
  ExampleMaker& maker_;
  FirstMessages& bad_;  // of all files
  FirstMessages file_bad_;
  const std::function<void(Example&&)>& sink_;
  int64_t read_ = 0, examples_ = 0;  // records read, examples passed on
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
  FirstMessages bad;
  for (const auto& source : sources) {
    const auto index = static_cast<int32_t>(forms.size());
    forms.push_back(FileStream(source.file, index, settings, maker, bad, sink).run());
  }
  if (bad.count > 0 && settings.bad_records == BadRecords::kError) {
    USER_ERROR_IF(bad.count == 1, "{}", bad.text());
    throw UserError("{} records cannot be used: {} (--bad-records skip)", bad.count, bad.text());
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
