// BIG-Bench-Hard: one JSON file a task, and one text file a task with three worked examples.
#include "core/base/error.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

std::vector<Document> read_bbh(const Files& files) {
  const std::string file = files.at(0).string();
  const Json json = parse_json(read_text(files.at(0)), file);
  if (!json.is_object()) {
    throw UserError("{}: not a JSON object with 'examples'", file);
  }
  std::vector<Document> documents;
  for (const Json& example : get_array(json, "examples", file)) {
    const std::string where = fmt::format("{} example {}", file, documents.size() + 1);
    if (!example.is_object()) {
      throw UserError("{}: not an object with 'input' and 'target'", where);
    }
    documents.push_back({{{"input", get_string(example, "input", where)},
                          {"target", get_string(example, "target", where)}},
                         where});
  }
  return documents;
}

std::vector<Document> read_bbh_prompts(const Files& files) {
  const std::string kQuestion = "\nQ: ", kAnswer = "\nA: ", kResult = "o the answer is ";
  const std::string file = files.at(0).string();
  const std::string text = read_text(files.at(0));
  std::vector<Document> documents;
  for (size_t at = text.find(kQuestion); at != std::string::npos;) {
    const size_t next = text.find(kQuestion, at + 1);
    const std::string where = fmt::format("{} example {}", file, documents.size() + 1);
    const std::string block = text.substr(at, next == std::string::npos ? next : next - at);
    const size_t answer = block.find(kAnswer), result = block.rfind(kResult);
    if (answer == std::string::npos || result == std::string::npos || result < answer) {
      throw UserError("{}: no 'A: ' and 'So the answer is ' after 'Q: '; the file is cut", where);
    }
    std::string target = strip(block.substr(result + kResult.size()));
    target = target.ends_with('.') ? target.substr(0, target.size() - 1) : target;
    documents.push_back(
        {{{"input", block.substr(kQuestion.size(), answer - kQuestion.size())}, {"target", target}},
         where});
    at = next;
  }
  return documents;
}

}  // namespace moe::eval
