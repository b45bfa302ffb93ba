// Whole instruction files, tokenized and decoded again: the decoded tokens without loss are the
// prompts of the file, those with loss its responses, and there are no others.

#include "core/base/json.h"
#include "core/data/examples.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

struct Text {
  std::string prompt, response;
};
using Texts = std::vector<Text>;  // the turns of a record

TextCodec codec_of_ids(const io::Tokenizer& tokenizer) {
  return {[&](std::string_view text) { return tokenizer.encode(text); }, tokenizer.bos_id(),
          tokenizer.eos_id()};
}

// Decodes the runs of tokens without and with loss.
Texts decode(const io::Tokenizer& tokenizer, const Example& example) {
  Texts texts;
  std::vector<int64_t> prompt, response;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool with_loss = example.labels[t] != kNoLoss;
    REQUIRE((!with_loss || example.labels[t] == example.ids[t]));
    if (!with_loss && !response.empty()) {
      texts.push_back({tokenizer.decode(prompt), tokenizer.decode(response)});
      prompt.clear();
      response.clear();
    }
    (with_loss ? response : prompt).push_back(example.ids[t]);
  }
  texts.push_back({tokenizer.decode(prompt), tokenizer.decode(response)});
  return texts;
}

std::vector<Json> records_of(const std::filesystem::path& file) {
  if (file.extension() == ".json") {
    return read_json(file).get<std::vector<Json>>();
  }
  std::vector<Json> records;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    records.push_back(Json::parse(line));
  }
  return records;
}

// Reads a record by its keys: Alpaca, prompt pairs or ShareGPT.
Texts texts_of(const Json& record) {
  if (record.contains("instruction")) {
    const std::string input = record.at("input");
    return {
        {record.at("instruction").get<std::string>() + (input.empty() ? "" : "\n" + input) + "\n",
         record.at("output")}};
  }
  if (record.contains("prompt")) {
    return {{record.at("prompt"), record.value("response", record.value("completion", ""))}};
  }
  Texts texts;
  const Json& messages = record.at("conversations");
  for (size_t i = 0; i + 1 < messages.size(); i += 2) {
    texts.push_back(
        {messages[i].at("value").get<std::string>() + "\n", messages[i + 1].at("value")});
  }
  return texts;
}

void check_file(const io::Tokenizer& tokenizer, const std::filesystem::path& file,
                const std::string& form) {
  const Examples examples = read_examples({file}, Objective::kInstruct, tokenizer.vocab_size(),
                                          [&] { return codec_of_ids(tokenizer); });
  const std::vector<Json> records = records_of(file);
  CHECK(examples.forms.at(0) == form);
  REQUIRE(examples.size() == static_cast<int64_t>(records.size()));
  for (size_t index = 0; index < records.size(); ++index) {
    const Texts expected = texts_of(records[index]);
    const Texts texts = decode(tokenizer, examples.at(static_cast<int64_t>(index)));
    INFO(examples.where(static_cast<int64_t>(index)));
    REQUIRE(texts.size() == expected.size());
    for (size_t turn = 0; turn < expected.size(); ++turn) {
      REQUIRE(texts[turn].prompt == expected[turn].prompt);
      REQUIRE(texts[turn].response == expected[turn].response);
    }
  }
}

}  // namespace

TEST_CASE("Generated instruction files of each form are decoded to their texts", "[data]") {
  const io::Tokenizer tokenizer = io::Tokenizer::load(tiny_model_folder(), 0);
  const TempDir dir;
  const std::vector<std::string> texts = {
      "Once", "two  spaces", "a\nb\tc", "\u65E5\u672C \U0001F600", "<s> </s>", "\"quoted\" \\ {x}"};
  std::string alpaca, pairs, completions;
  Json conversations = Json::array();
  for (const auto& text : texts) {
    const std::string answer = "so " + text;
    alpaca += Json{{"instruction", text}, {"input", ""}, {"output", answer}}.dump() + "\n" +
              Json{{"instruction", text}, {"input", text}, {"output", answer}}.dump() + "\n";
    pairs += Json{{"prompt", text}, {"response", answer}}.dump() + "\n";
    completions += Json{{"prompt", text}, {"completion", answer}}.dump() + "\n";
    const Json question = {{"from", "human"}, {"value", text}};
    const Json reply = {{"from", "gpt"}, {"value", answer}};
    conversations.push_back({{"conversations", {question, reply, question, reply}}});
  }
  write_file(dir / "alpaca.jsonl", alpaca);
  write_file(dir / "pairs.jsonl", pairs);
  write_file(dir / "completions.jsonl", completions);
  write_file(dir / "conversations.json", conversations.dump(2));
  check_file(tokenizer, dir / "alpaca.jsonl", "Alpaca records");
  check_file(tokenizer, dir / "pairs.jsonl", "prompt pairs");
  check_file(tokenizer, dir / "completions.jsonl", "prompt pairs");
  check_file(tokenizer, dir / "conversations.json", "ShareGPT conversations");
  check_file(tokenizer, source_folder() / "recipes/tiny/instruct.jsonl", "Alpaca records");
}

TEST_CASE("Published instruction files are decoded to their texts, with LLaMA's ids", "[data]") {
  MOE_NEED_SHARED_DATA();
  const io::Tokenizer llama = io::Tokenizer::load(shared_data() / "llama-tokenizer", 32000);
  const auto folder = shared_data() / "instruct";
  check_file(llama, folder / "alpaca_2000.jsonl", "Alpaca records");
  check_file(llama, folder / "alpaca_en_demo.json", "Alpaca records");
  check_file(llama, folder / "dolly_hhrlhf_train_small.jsonl", "prompt pairs");
  check_file(llama, folder / "sharegpt_dummy_conversation.json", "ShareGPT conversations");
  for (const auto& entry : std::filesystem::directory_iterator(folder / "t0_sample")) {
    check_file(llama, entry.path(), "prompt pairs");
  }
  const io::Tokenizer tokenizer = io::Tokenizer::load(shared_data() / "stories260K-hf", 512);
  const auto stories = read_examples({shared_data() / "text" / "tinystories_v2_train_head.txt"},
                                     Objective::kLm, 512, [&] { return codec_of_ids(tokenizer); });
  CHECK(stories.size() == 1728);
  const Json reference = read_json(shared_data() / "stories260K-hf" / "reference.json");
  auto expected = reference["first_story"]["ids_with_bos"].get<std::vector<int32_t>>();
  expected.push_back(2);
  CHECK(stories.at(0).ids == expected);
}
