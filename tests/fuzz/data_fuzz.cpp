// libFuzzer target: reads the input as a data file. The first byte selects objective, form,
// template and the suffix .txt; the rest is the file. It is refused with UserError or gives valid
// examples.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "core/base/error.h"
#include "core/data/example_set.h"
#include "core/data/examples.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_examples.h"

namespace {

using namespace moe::data;
using moe::fuzz::require;

constexpr int64_t kVocab = 300;

TextCodec byte_codec() {
  const auto encode = [](std::string_view text) {
    std::vector<int64_t> ids;
    for (const char c : text) {
      ids.push_back(10 + static_cast<unsigned char>(c));
    }
    return ids;
  };
  return {encode, 1, 2};
}

ReadSettings settings_of(uint8_t choice) {
  ReadSettings settings;
  settings.objective = (choice & 1) != 0 ? Objective::kLm : Objective::kInstruct;
  settings.loss_on = (choice & 2) != 0 ? LossOn::kLast : LossOn::kAll;
  const char* templates[] = {"paper", "alpaca", "llama2", "{instruction} {response}\\n"};
  settings.text_template = Template::parse(templates[(choice >> 2) & 3]);
  if ((choice & 16) != 0) {
    settings.format = static_cast<Format>((choice >> 5) & 7);
  }
  return settings;
}

// Checks an example: equal lengths, ids of the vocabulary, at least one target.
void check(const Examples& examples) {
  require(examples.size() > 0 && examples.forms.size() == 1);
  for (int64_t index = 0; index < examples.size(); ++index) {
    const Example example = examples.at(index);
    require(example.ids.size() == example.labels.size() && example.line > 0);
    bool learns = false;
    for (size_t t = 0; t < example.ids.size(); ++t) {
      require(example.ids[t] >= 0 && example.ids[t] < kVocab);
      learns = learns || (t > 0 && example.labels[t] != kNoLoss);
    }
    require(learns);
    const auto piece = [](int64_t id) { return std::string(1, static_cast<char>(id)); };
    const std::string shown = show_example(example, examples.where(index), piece, false);
    require(shown.find('\033') == std::string::npos && shown.back() == '\n');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  static const int file = ::memfd_create("data", 0);
  require(file >= 0 && ::ftruncate(file, 0) == 0);
  const auto count = static_cast<ssize_t>(size - 1);
  require(::pwrite(file, data + 1, size - 1, 0) == count);
  try {
    check(moe::test::read_examples({{"/proc/self/fd/" + std::to_string(file)}},
                                   settings_of(data[0]), kVocab, byte_codec));
  } catch (const moe::UserError&) {
  }
  return 0;
}
