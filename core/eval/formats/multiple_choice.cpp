// Readers of benchmarks with multiple-choice questions, and of a user's quiz.

#include <algorithm>
#include <array>
#include <cctype>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

// Returns letter - first. Throws UserError if `letter` is not a letter from `first` to `last`.
int answer_index(const std::string& letter, char first, char last, const std::string& where) {
  USER_ERROR_IF(letter.size() != 1 || letter[0] < first || letter[0] > last,
                "{}: the right answer must be a letter from {} to {}, not '{}'", where, first, last,
                printable(letter));
  return letter[0] - first;
}

// ARC (Easy and Challenge) and CommonsenseQA: JSON lines with a stem, labelled choices (A-E or 1-5)
// and the label of the right one.

template <bool has_concept>
OrderedJson arc_fields(const Json& json, const std::string& where) {
  const Json& question = get_object(json, "question", where);
  OrderedJson texts = OrderedJson::array();
  std::vector<std::string> labels;
  for (const Json& choice : get_array(question, "choices", where)) {
    texts.push_back(get_string(choice, "text", where));
    labels.push_back(get_string(choice, "label", where));
  }
  const std::string key = get_string(json, "answerKey", where);
  USER_ERROR_IF(std::ranges::find(labels, key) == labels.end(),
                "{}: answerKey '{}' is not one of the labels {}", where, printable(key),
                Json(labels).dump());
  OrderedJson fields = {{"id", get_string(json, "id", where, "")},
                        {"question", get_string(question, "stem", where)}};
  if (has_concept) {
    fields["question_concept"] = get_string(question, "question_concept", where);
  }
  fields["choices"] = {{"text", std::move(texts)}, {"label", labels}};
  fields["answerKey"] = key;
  return fields;
}

// LogiQA: plain text in blocks of eight lines.

constexpr size_t kLinesPerProblem = 7;  // without the blank line before each
constexpr std::array<const char*, kLinesPerProblem> kParts = {
    "the right letter", "the context", "the question", "option A",
    "option B",         "option C",    "option D"};

std::string space_full_stops(std::string_view text) { return strip(replace_all(text, ".", ". ")); }

// Returns the problem whose letter is in lines[first]. Removes the first two characters of each
// option without a check, because the files also have "A ", "A?" and others instead of "A.".
Document logiqa_problem(const std::vector<Line>& lines, size_t first) {
  const std::string label = strip(lines[first].text);
  answer_index(label, 'a', 'd', lines[first].where);
  for (size_t i = 1; i < kLinesPerProblem; ++i) {
    USER_ERROR_IF(first + i >= lines.size() || strip(lines[first + i].text).empty(),
                  "{}: this problem ends before {}; the file is truncated, download it again",
                  lines[first].where, kParts.at(i));
  }
  OrderedJson fields = {{"label", label},
                        {"context", space_full_stops(lines[first + 1].text)},
                        {"question", space_full_stops(lines[first + 2].text)},
                        {"options", OrderedJson::array()}};
  for (size_t i = 0; i < 4; ++i) {
    fields["options"].push_back(space_full_stops(slice(lines[first + 3 + i].text, 2)));
  }
  return {std::move(fields), lines[first].where};
}

// OpenBookQA: tab-separated, with the four choices in one field.

// Returns the four texts of "(A) one (B) two (C) three (D) four".
OrderedJson openbookqa_choices(const std::string& text, const std::string& where) {
  OrderedJson choices = OrderedJson::array();
  size_t begin = 0;
  for (const char letter : {'A', 'B', 'C', 'D', '\0'}) {
    const std::string mark = fmt::format("({})", letter);
    const size_t end = letter == '\0' ? text.size() : text.find(mark, begin);
    USER_ERROR_IF(end == std::string::npos, "{}: no {} in the choices '{}'", where, mark,
                  printable(text));
    if (letter != 'A') {
      choices.push_back(strip(text.substr(begin, end - begin)));
    }
    begin = end + mark.size();
  }
  return choices;
}

// TruthfulQA's mc_task.json: the answers are keys of objects, whose order must be kept.

OrderedJson truthfulqa_answers(const OrderedJson& entry, const char* key,
                               const std::string& where) {
  const auto found = entry.find(key);
  USER_ERROR_IF(found == entry.end() || !found->is_object() || found->empty(),
                "{}: '{}' is missing or not an object of answers with 1 or 0", where, key);
  OrderedJson choices = OrderedJson::array(), labels = OrderedJson::array();
  for (const auto& [answer, label] : found->items()) {
    USER_ERROR_IF(label != 0 && label != 1, "{}: '{}': the label of '{}' must be 0 or 1, not {}",
                  where, key, printable(answer), printable(label.dump()));
    choices.push_back(answer);
    labels.push_back(label);
  }
  return {{"choices", std::move(choices)}, {"labels", std::move(labels)}};
}

// A user's quiz: JSON lines.

int64_t quiz_answer(const Json& json, const std::vector<std::string>& choices,
                    const std::string& where) {
  const auto answer = json.find("answer");
  const auto count = static_cast<int64_t>(choices.size());
  USER_ERROR_IF(
      answer == json.end(),
      "{}: 'answer' is missing; give the index of a choice from 0, its text, or its letter", where);
  int64_t index = -1;
  if (answer->is_number_integer()) {
    index = answer->get<int64_t>();
  } else if (answer->is_string()) {
    const auto text = answer->get<std::string>();
    const auto same = std::ranges::find(choices, text);
    const std::string letter = strip(text);
    if (same != choices.end()) {
      index = same - choices.begin();
    } else if (letter.size() == 1 && std::isalpha(static_cast<unsigned char>(letter[0])) != 0) {
      index = std::toupper(letter[0]) - 'A';
    }
  }
  USER_ERROR_IF(index < 0 || index >= count,
                "{}: answer {} is not one of the {} choices; give an index from 0 to {}, a letter, "
                "or the text of a choice",
                where, answer->dump(), count, count - 1);
  return index;
}

OrderedJson quiz_fields(const Json& json, const std::string& where) {
  const bool has_question = json.contains("question");
  USER_ERROR_IF(
      has_question == json.contains("context"),
      "{}: give either 'question' (the prompt is 'Question: ..') or 'context' (the full prompt){}",
      where, has_question ? ", not both" : "");
  const char* const key = has_question ? "question" : "context";
  const std::string text = get_string(json, key, where);
  const std::vector<std::string> choices = get_strings(json, "choices", where);
  USER_ERROR_IF(choices.size() < 2, "{}: 'choices' must have at least 2 entries, not {}", where,
                choices.size());
  const int64_t gold = quiz_answer(json, choices, where);
  OrderedJson fields = {
      {key, text}, {"choices", choices}, {"answer", OrderedJson(json["answer"])}, {"gold", gold}};
  if (const std::string source = get_source(json, ""); !source.empty()) {
    fields["source"] = source;
  }
  return fields;
}

}  // namespace

std::vector<Document> read_arc(const Files& files) {
  return read_records(files.at(0), arc_fields</*has_concept=*/false>).documents;
}

std::vector<Document> read_commonsense_qa(const Files& files) {
  return read_records(files.at(0), arc_fields</*has_concept=*/true>).documents;
}

std::vector<Document> read_logiqa(const Files& files) {
  const std::vector<Line> lines = read_lines(files.at(0));
  std::vector<Document> documents;
  for (size_t first = 0; first < lines.size();) {
    if (strip(lines[first].text).empty()) {
      ++first;
      continue;
    }
    documents.push_back(logiqa_problem(lines, first));
    first += kLinesPerProblem;
  }
  return documents;
}

std::vector<Document> read_mmlu(const Files& files) {
  const std::string stem = files.at(0).stem().string();
  const std::string subject = stem.substr(0, stem.rfind('_'));
  std::vector<Document> documents;
  for (const auto& [fields, where] : read_csv(files.at(0))) {
    USER_ERROR_IF(fields.size() != 6,
                  "{}: {} fields instead of 6 (question, four choices, letter); is the line "
                  "truncated?",
                  where, fields.size());
    documents.push_back({{{"question", fields[0]},
                          {"subject", subject},
                          {"choices", {fields[1], fields[2], fields[3], fields[4]}},
                          {"answer", answer_index(fields[5], 'A', 'D', where)}},
                         where});
  }
  return documents;
}

std::vector<Document> read_openbookqa(const Files& files) {
  const std::vector<CsvRow> rows = read_csv(files.at(0), '\t', /*quotes=*/false);
  std::vector<Document> documents;
  for (size_t row = 1; row < rows.size(); ++row) {
    const auto& [fields, where] = rows[row];
    USER_ERROR_IF(
        fields.size() != 5,
        "{}: {} fields instead of 5 (ID, stem, choices, complete question, key); is the line "
        "truncated?",
        where, fields.size());
    const std::string key = strip(fields[4]);
    answer_index(key, 'A', 'D', where);
    documents.push_back(
        {{{"id", fields[0]},
          {"question_stem", fields[1]},
          {"choices",
           {{"text", openbookqa_choices(fields[2], where)}, {"label", {"A", "B", "C", "D"}}}},
          {"answerKey", key}},
         where});
  }
  return documents;
}

std::vector<Document> read_piqa(const Files& files) {
  const std::vector<JsonLine> records = read_jsonl(files.at(0));
  std::vector<int> labels;
  for (const auto& [text, where] : read_lines(files.at(1))) {
    const std::string label = strip(text);
    if (label.empty()) {
      continue;
    }
    USER_ERROR_IF(label != "0" && label != "1", "{}: the label must be 0 or 1, not '{}'", where,
                  printable(label));
    labels.push_back(label == "1" ? 1 : 0);
  }
  USER_ERROR_IF(records.size() != labels.size(),
                "{} has {} questions but {} has {} labels; download both again",
                files.at(0).string(), records.size(), files.at(1).string(), labels.size());
  std::vector<Document> documents;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto& [json, where] = records[i];
    documents.push_back({{{"goal", get_string(json, "goal", where)},
                          {"sol1", get_string(json, "sol1", where)},
                          {"sol2", get_string(json, "sol2", where)},
                          {"label", labels[i]}},
                         where});
  }
  return documents;
}

std::vector<Document> read_truthfulqa(const Files& files) {
  const std::string file = files.at(0).string();
  const OrderedJson questions = parse_ordered_json(read_text(files.at(0)), file);
  USER_ERROR_IF(!questions.is_array(), "{}: not a JSON array of questions", file);
  std::vector<Document> documents;
  for (const auto& entry : questions) {
    const std::string where = fmt::format("{} question {}", file, documents.size() + 1);
    USER_ERROR_IF(
        !entry.is_object() || !entry.contains("question") || !entry["question"].is_string(),
        "{}: 'question' is missing or not a string", where);
    documents.push_back({{{"question", entry["question"]},
                          {"mc1_targets", truthfulqa_answers(entry, "mc1_targets", where)},
                          {"mc2_targets", truthfulqa_answers(entry, "mc2_targets", where)}},
                         where});
  }
  return documents;
}

FirstDocuments read_quiz(const Files& files, int64_t limit) {
  return read_records(files.at(0), quiz_fields, limit);
}

}  // namespace moe::eval
