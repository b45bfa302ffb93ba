// libFuzzer target: reads the input as a benchmark file. The first byte selects the reader, the
// rest is the file. It is refused with a UserError that names it, or gives documents; a limit must
// give the same first documents and the same count.

#include <algorithm>

#include "core/base/error.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace moe::eval;
using moe::fuzz::require;

using Whole = std::vector<Document> (*)(const Files&);

const Schema& schema() {
  using Kind = Field::Kind;
  static const Schema fields = {{"q"},
                                {"n", Kind::kInt},
                                {"label", Kind::kLabel, {"no", "yes"}},
                                {"t", Kind::kTexts},
                                {"c", Kind::kChoices},
                                {"a", Kind::kAnswers},
                                {"x", Kind::kAny}};
  return fields;
}

constexpr Whole kReaders[] = {
    read_logiqa, read_arc,         read_commonsense_qa, read_openbookqa,
    read_piqa,   read_mmlu,        read_hellaswag,      read_truthfulqa,
    read_bbh,    read_bbh_prompts, read_multirc,        read_record,
    read_wsc,    read_winogrande,  read_lambada,        read_lambada_text};

template <typename Read>
void check_first(const Read& read) {
  const FirstDocuments all = read(kAllDocuments);
  require(all.total == static_cast<int64_t>(all.documents.size()));
  for (const int64_t limit : {0, 1, 2}) {
    const FirstDocuments first = read(limit);
    require(static_cast<int64_t>(first.documents.size()) == std::min(limit, all.total));
    require(first.total == all.total);
    for (size_t i = 0; i < first.documents.size(); ++i) {
      require(first.documents[i].fields == all.documents[i].fields);
      require(first.documents[i].where == all.documents[i].where);
    }
  }
}

void read(uint8_t choice, std::string_view bytes) {
  const bool is_table = choice == 0 || choice == 1 || choice == 3;
  const auto file = moe::fuzz::write_file(is_table ? "data.csv" : "data.jsonl", bytes);
  switch (choice) {
    case 0:
      read_csv(file);
      break;
    case 1:
      read_csv(file, '\t', /*quotes=*/false);
      break;
    case 2:
    case 3:
      check_first([&](int64_t limit) { return read_exported(file, schema(), limit); });
      break;
    case 4:
      check_first([&](int64_t limit) { return read_quiz({file}, limit); });
      break;
    default:
      kReaders[(choice - 5) % std::size(kReaders)]({file, file});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    read(data[0], bytes);
  } catch (const moe::UserError& error) {
    require(std::string_view(error.what()).find("data.") != std::string_view::npos);
  }
  return 0;
}
