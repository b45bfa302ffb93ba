#pragma once
// One record of a data file -> one example: the form is settled by the file's first record, the
// template makes text of a conversation, the tokenizer ids of the text (core/data/examples.h says
// what comes out). Cheap to copy: once the form of a file is settled, each thread has a maker of
// its own.

#include <functional>
#include <optional>
#include <string>

#include "core/data/chat_forms.h"
#include "core/data/examples.h"
#include "core/data/records.h"

namespace moe::data {

class ExampleMaker {
 public:
  // Keeps references to `settings` and `codec`; `codec` is called when the first text is met.
  ExampleMaker(const ReadSettings& settings, int64_t vocab_size,
               const std::function<TextCodec()>& codec);

  void begin_file() { format_.reset(); }
  Format format() const { return *format_; }  // once a record of the file was made

  // `where` opens every error.
  Example make(const Record& record, RecordForm form, const std::string& where);

 private:
  Example from_json(const Record& record, const std::string& where);
  Example from_document(const Record& record, const std::string& where);
  void settle_format(const Json& json, const std::string& where);
  void check_objective(const std::string& where) const;
  Example from_conversation(const Conversation& conversation, const std::string& where);
  Example from_text(const std::string& text, const std::string& where);
  Example from_row(const Json& json, const std::string& where) const;
  void check_id(int64_t id, const char* key, size_t position, const std::string& where) const;
  void push_bos(Example& example);  // where the tokenizer has one
  void push_ids(Example& example, const std::vector<int64_t>& ids, bool learned,
                const std::string& where) const;
  void push_chat(Example& example, const std::vector<ChatPiece>& pieces, const std::string& where);
  void push_id(Example& example, int64_t id, bool learned, const std::string& where) const;
  const TextCodec& codec();

  const ReadSettings& settings_;
  int64_t vocab_size_;
  const std::function<TextCodec()>& codec_source_;
  std::optional<TextCodec> codec_;
  std::optional<Format> format_;  // of the file, once a record was read
};

}  // namespace moe::data
