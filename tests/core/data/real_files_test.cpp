// Every real instruction file, there and back: what a person gets by decoding the tokens without
// loss is the prompt, what the tokens with loss say is the response, and nothing is between them.
// The records are read here a second time, by their plain keys.

#include <fstream>

#include "core/base/json.h"
#include "core/data/examples.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::data;
using moe::test::shared_data;

namespace {

struct Text {
  std::string prompt, response;
};
using Texts = std::vector<Text>;  // of one record, a turn each

class Llama {
 public:
  Llama() : tokenizer_(io::Tokenizer::load(shared_data() / "llama-tokenizer", 32000)) {}

  Examples read(const std::filesystem::path& file) const {
    const auto codec = [this] {
      return TextCodec{[this](std::string_view text) { return tokenizer_.encode(text); }, 1, 2};
    };
    return read_examples({file}, Objective::kInstruct, 32000, codec);
  }

  // The runs without and with loss, decoded; BOS and EOS decode to nothing.
  Texts decode(const Example& example) const {
    Texts texts;
    std::vector<int64_t> prompt, response;
    for (size_t t = 0; t < example.ids.size(); ++t) {
      const bool with_loss = example.labels[t] != kNoLoss;
      REQUIRE((!with_loss || example.labels[t] == example.ids[t]));
      if (!with_loss && !response.empty()) {
        texts.push_back({tokenizer_.decode(prompt), tokenizer_.decode(response)});
        prompt.clear();
        response.clear();
      }
      (with_loss ? response : prompt).push_back(example.ids[t]);
    }
    texts.push_back({tokenizer_.decode(prompt), tokenizer_.decode(response)});
    return texts;
  }

 private:
  io::Tokenizer tokenizer_;
};

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

Texts alpaca(const Json& record) {
  const std::string input = record.at("input");
  return {{record.at("instruction").get<std::string>() + (input.empty() ? "" : "\n" + input) + "\n",
           record.at("output")}};
}

Texts pair(const Json& record) {
  return {
      {record.at("prompt"), record.at(record.contains("response") ? "response" : "completion")}};
}

Texts sharegpt(const Json& record) {
  Texts texts;
  const Json& messages = record.at("conversations");
  for (size_t i = 0; i + 1 < messages.size(); i += 2) {
    texts.push_back(
        {messages[i].at("value").get<std::string>() + "\n", messages[i + 1].at("value")});
  }
  return texts;
}

void check_file(const Llama& llama, const std::filesystem::path& file, const std::string& form,
                Texts (*expected)(const Json&)) {
  const Examples examples = llama.read(file);
  const std::vector<Json> records = records_of(file);
  CHECK(examples.forms.at(0) == form);
  REQUIRE(examples.size() == static_cast<int64_t>(records.size()));
  for (size_t index = 0; index < records.size(); ++index) {
    const Texts wanted = expected(records[index]), got = llama.decode(examples.at(index));
    INFO(examples.where(static_cast<int64_t>(index)));
    REQUIRE(got.size() == wanted.size());
    for (size_t turn = 0; turn < wanted.size(); ++turn) {
      REQUIRE(got[turn].prompt == wanted[turn].prompt);
      REQUIRE(got[turn].response == wanted[turn].response);
    }
  }
}

}  // namespace

TEST_CASE("every real instruction file comes back from its tokens word for word", "[data]") {
  MOE_NEED_SHARED_DATA();
  const Llama llama;
  const auto folder = shared_data() / "instruct";
  check_file(llama, folder / "alpaca_2000.jsonl", "Alpaca records", alpaca);
  check_file(llama, folder / "alpaca_en_demo.json", "Alpaca records", alpaca);
  check_file(llama, folder / "dolly_hhrlhf_train_small.jsonl", "prompt pairs", pair);
  check_file(llama, folder / "sharegpt_dummy_conversation.json", "ShareGPT conversations",
             sharegpt);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "t0_sample")) {
    check_file(llama, entry.path(), "prompt pairs", pair);
  }
}

TEST_CASE("a real file of another form is refused with the field that it lacks", "[data]") {
  MOE_NEED_SHARED_DATA();
  const Llama llama;
  const auto file = shared_data() / "instruct" / "seed_tasks.jsonl";
  CHECK(test::user_error_of([&] { llama.read(file); }) ==
        file.string() + " line 1: 'output' is missing");
}
