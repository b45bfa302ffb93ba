#include "core/eval/tasks/task.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

const char* to_string(OutputType type) {
  return type == OutputType::kMultipleChoice  ? "multiple_choice"
         : type == OutputType::kLogLikelihood ? "loglikelihood"
                                              : "generate_until";
}

const char* to_string(Compat compat) { return compat == Compat::k041 ? "0.4.1" : "current"; }

namespace fs = std::filesystem;

namespace {

using Texts = std::vector<std::string>;

const Texts kUserKeys = split_words(
    "task data fewshot_data output_type description doc_to_text doc_to_choice doc_to_target "
    "metric_list target_delimiter fewshot_delimiter gen_prefix num_fewshot fewshot_sampler until "
    "max_gen_toks ignore_case version");
// Keys that only the files of known/ may have, in addition to kUserKeys.
const Texts kKnownKeys = split_words(
    "alias choices_are_contexts dataset_path documents extract fewshot_excludes_question "
    "fewshot_fixed fields gold_may_be_absent in_0_4_1 not_in_0_4_1 origin process_docs reader");

// Keys of the harness's task files that moe does not support, and their replacements.
constexpr std::pair<const char*, const char*> kHarnessKeys[] = {
    {"dataset_path dataset_name dataset_kwargs test_split validation_split",
     "set 'data' to the file of questions (JSON lines, CSV or TSV)"},
    {"training_split fewshot_split fewshot_config",
     "set 'fewshot_data' to the file of examples, and 'fewshot_sampler'"},
    {"generation_kwargs", "set until and max_gen_toks as keys of the task; decoding is greedy"},
    {"filter_list process_results", "exact_match compares the whole answer, truncated at 'until'"},
    {"process_docs", "apply it to the questions and set 'data' to the file of the result"},
    {"include", "copy the keys of that file"},
    {"group tag", "remove it and list the task files in --tasks"},
    {"metadata", "set 'version' as a key of the task"},
    {"repeats should_decontaminate doc_to_decontamination_query task_alias",
     "remove it; scores of greedy answers do not depend on it"}};

void check_keys(const Json& settings, const std::string& where, bool is_known) {
  USER_ERROR_IF(!settings.is_object(), "{}: not a JSON object", where);
  for (const auto& [key, value] : settings.items()) {
    const auto is_among = [&](const Texts& keys) {
      return std::ranges::find(keys, key) != keys.end();
    };
    for (const auto& [keys, advice] : kHarnessKeys) {
      USER_ERROR_IF(!is_known && is_among(split_words(keys)),
                    "{}: '{}' is a key of lm-evaluation-harness that moe does not support: {}",
                    where, key, advice);
    }
    USER_ERROR_IF(value.is_string() && value.get<std::string>().starts_with("!function"),
                  "{}: {} is a Python function; write a template, or put its results into the data",
                  where, key);
    USER_ERROR_IF(!is_among(kUserKeys) && !(is_known && is_among(kKnownKeys)),
                  "{}: '{}' is not a key of a task{}; known: {}", where, printable(key),
                  did_you_mean(key, kUserKeys), fmt::join(kUserKeys, ", "));
  }
}

// Returns the columns to read, one per distinct name, in header order. If several columns have the
// same name (some exports have several unnamed ones), returns the last of them in place of the
// first.
std::vector<size_t> distinct_columns(const Texts& header) {
  std::unordered_map<std::string, size_t> last;
  for (size_t column = 0; column < header.size(); ++column) {
    last[header[column]] = column;
  }
  std::vector<size_t> columns;
  for (const auto& name : header) {
    if (const auto found = last.extract(name)) {
      columns.push_back(found.mapped());
    }
  }
  return columns;
}

FirstDocuments read_table(const fs::path& file, char separator, int64_t limit) {
  CsvReader rows(file, separator);
  const std::vector<std::string> header = rows.read_header();
  const std::vector<size_t> columns = distinct_columns(header);
  return first_documents(std::move(rows), limit, [&](CsvRow row) {
    // Avoids operator[], which would compare each name with all earlier ones. Names are distinct.
    OrderedJson::object_t fields;
    fields.reserve(columns.size());
    for (const size_t column : columns) {
      fields.emplace_back(header[column], std::move(row.fields[column]));
    }
    return Document{std::move(fields), std::move(row.where)};
  });
}

FirstDocuments read_any_records(const Files& files, int64_t limit) {
  const fs::path& file = files.at(0);
  const std::string format = data::format_extension(file);
  if (format == ".csv" || format == ".tsv") {
    return read_table(file, format == ".tsv" ? '\t' : ',', limit);
  }
  return read_records(
      file, [](const Json& json, const std::string&) { return OrderedJson(json); }, limit);
}

Split user_split(const Json& settings, const char* key, const fs::path& task_file) {
  const std::string name = get_string(settings, key, task_file.string(), "");
  if (name.empty()) {
    return {};
  }
  return {key, {{{(task_file.parent_path() / name).string()}, read_any_records}}};
}

Split known_split(const Json& settings, const char* key, const Schema& schema) {
  const Json& split = settings.at(key);
  const auto read =
      find_document_reader(split.value("reader", settings.value("reader", "")), schema);
  Split result{split.at("split"), {}};
  for (const auto& entry : split.at("files").get<Texts>()) {
    const size_t plus = entry.find(" + ");
    Texts files = {entry.substr(0, plus)};
    if (plus != std::string::npos) {
      files.push_back(entry.substr(plus + 3));
    }
    result.layouts.push_back({std::move(files), read});
  }
  return result;
}

// Parses "NAME" (a text field), "NAME: KIND", or "NAME: VALUE | VALUE .." (a label and the names of
// its values).
Field parse_field(const std::string& text) {
  const std::map<std::string, Field::Kind> kinds = {{"any", Field::Kind::kAny},
                                                    {"answers", Field::Kind::kAnswers},
                                                    {"choices", Field::Kind::kChoices},
                                                    {"int", Field::Kind::kInt},
                                                    {"sorted texts", Field::Kind::kSortedTexts},
                                                    {"texts", Field::Kind::kTexts}};
  const size_t colon = text.find(": ");
  if (colon == std::string::npos) {
    return {text};
  }
  const std::string name = text.substr(0, colon), kind = text.substr(colon + 2);
  if (const auto found = kinds.find(kind); found != kinds.end()) {
    return {name, found->second};
  }
  const Texts words = split_words(replace_all(kind, "|", " "));
  MOE_CHECK(words.size() > 1, "unknown kind of field '{}'", kind);
  return {name, Field::Kind::kLabel, words};
}

DataSet known_data(const Json& settings) {
  DataSet data;
  data.hub = settings.at("dataset_path");
  data.origin = settings.at("origin");
  for (const auto& field : settings.at("fields").get<Texts>()) {
    data.schema.push_back(parse_field(field));
  }
  data.scored = known_split(settings, "data", data.schema);
  data.shots = known_split(settings, "fewshot_data", data.schema);
  if (settings.contains("process_docs")) {
    MOE_CHECK(settings.at("process_docs") == "hellaswag");
    data.process = process_hellaswag;
  }
  return data;
}

OutputType output_type(const Json& settings, const std::string& where) {
  const std::string name = get_string(settings, "output_type", where, "multiple_choice");
  for (const OutputType type :
       {OutputType::kMultipleChoice, OutputType::kLogLikelihood, OutputType::kGenerateUntil}) {
    if (name == to_string(type)) {
      return type;
    }
  }
  throw UserError(
      "{}: output_type '{}' is unknown; known: multiple_choice, loglikelihood, generate_until",
      where, printable(name));
}

// Returns the function for a doc_to_choice such as "{{choices}}", whose value is a list of strings,
// or such a list as text.
std::function<Texts(const OrderedJson&)> list_template(const std::string& text) {
  return [text, entries = PromptTemplate(text)](const OrderedJson& document) {
    OrderedJson value = entries.value(document);
    if (value.is_string() && value.get<std::string>().starts_with('[')) {
      value = parse_literal(value.get<std::string>(), text);
    }
    const auto is_text = [](const OrderedJson& entry) { return entry.is_string(); };
    USER_ERROR_IF(!value.is_array() || !std::ranges::all_of(value, is_text),
                  "{} must be a list of strings, not {}", text, printable(value.dump()));
    return value.get<Texts>();
  };
}

// Returns the choices of a range such as "(A) .. (F)" or "0 .. 18".
Texts parse_range(const std::string& text) {
  const size_t dots = text.find(" .. ");
  const std::string first = text.substr(0, dots), last = text.substr(dots + 4);
  Texts choices;
  if (first.starts_with('(')) {
    for (char letter = first.at(1); letter <= last.at(1); ++letter) {
      choices.push_back({'(', letter, ')'});
    }
  } else {
    for (int64_t number = std::stoll(first); number <= std::stoll(last); ++number) {
      choices.push_back(std::to_string(number));
    }
  }
  return choices;
}

std::function<Texts(const OrderedJson&)> make_choices(const Json& settings,
                                                      const std::string& where, bool is_known) {
  const auto found = settings.find("doc_to_choice");
  Texts texts;
  if (found == settings.end() || !found->is_string()) {
    texts = get_strings(settings, "doc_to_choice", where);
  } else if (is_known && found->get<std::string>().find(" .. ") != std::string::npos) {
    texts = parse_range(*found);
  } else {
    return list_template(*found);
  }
  const std::vector<PromptTemplate> templates(texts.begin(), texts.end());
  return [templates](const OrderedJson& document) {
    Texts choices;
    for (const auto& choice : templates) {
      choices.push_back(choice(document));
    }
    return choices;
  };
}

// Returns the function for doc_to_target. If the task has choices, an integer, a boolean or a text
// of 1 to 6 digits is the index of the right choice, and any other text is its text. Otherwise the
// value is the right answer as text. If the choices are contexts, the index is that of doc_to_text.
std::function<Target(const OrderedJson&)> make_target(const Json& settings,
                                                      const std::string& where, bool is_known,
                                                      bool has_choices) {
  const PromptTemplate answer(get_string(settings, "doc_to_target", where));
  if (!has_choices) {
    return [answer](const OrderedJson& document) -> Target {
      return {std::nullopt, answer(document)};
    };
  }
  if (settings.contains("choices_are_contexts")) {
    return [answer, index = PromptTemplate(get_string(settings, "doc_to_text", where))](
               const OrderedJson& document) -> Target {
      return {index.value(document).get<int64_t>(), answer(document)};
    };
  }
  return [answer, is_known](const OrderedJson& document) -> Target {
    const OrderedJson value = answer.value(document);
    if (is_known && value.is_array() && !value.empty()) {  // the first may spell a number
      return {std::nullopt, value.at(0).get<std::string>()};
    }
    if (value.is_number_integer()) {
      return {value.get<int64_t>(), ""};
    }
    if (value.is_boolean()) {
      return {value.get<bool>() ? 1 : 0, ""};
    }
    std::string text = value.is_string() ? value.get<std::string>() : answer(document);
    const bool is_index = !text.empty() && text.size() < 7 &&
                          text.find_first_not_of("0123456789") == std::string::npos;
    if (is_index) {
      return {std::stoll(text), ""};
    }
    return {std::nullopt, std::move(text)};
  };
}

Metric make_metric(const std::string& name, OutputType output, bool is_known) {
  if (output == OutputType::kMultipleChoice) {
    return is_known ? known_task_metric(name) : choice_metric(name);
  }
  if (output == OutputType::kLogLikelihood && (name == "acc" || name == "perplexity")) {
    return name == "acc" ? greedy_accuracy() : perplexity();
  }
  if (output == OutputType::kGenerateUntil && name == "exact_match") {
    return {.name = name};
  }
  if (output == OutputType::kGenerateUntil && is_known && name.starts_with("exact_match,")) {
    return {.name = "exact_match", .filter = name.substr(name.find(',') + 1)};
  }
  throw UserError("metric '{}' is unknown for {}; known: {}", printable(name), to_string(output),
                  output == OutputType::kLogLikelihood ? "acc, perplexity" : "exact_match");
}

std::vector<Metric> make_metrics(const Json& settings, OutputType output, const std::string& where,
                                 bool is_known) {
  Texts names = output == OutputType::kMultipleChoice  ? Texts{"acc", "acc_norm"}
                : output == OutputType::kLogLikelihood ? Texts{"perplexity", "acc"}
                                                       : Texts{"exact_match"};
  if (settings.contains("metric_list")) {
    const Json& list = settings.at("metric_list");
    USER_ERROR_IF(list.is_array() && !list.empty() && list.front().is_object(),
                  "{}: metric_list has objects; write the names only: metric_list = [{}]", where,
                  printable(list.front().value("metric", Json(names.front())).dump()));
    names = get_strings(settings, "metric_list", where);
  }
  std::vector<Metric> metrics;
  for (const auto& name : names) {
    metrics.push_back(make_metric(name, output, is_known));
  }
  USER_ERROR_IF(metrics.empty(), "metric_list is empty; add at least one metric");
  return metrics;
}

ShotRule shot_rule(const Json& settings, const std::string& where) {
  const std::string sampler = get_string(settings, "fewshot_sampler", where, "default");
  USER_ERROR_IF(sampler != "default" && sampler != "first_n",
                "fewshot_sampler '{}' is unknown; known: default, first_n", sampler);
  const int64_t count = get_int(settings, "num_fewshot", where, 0);
  USER_ERROR_IF(count < 0 || count > 1000, "num_fewshot must be 0 to 1000, not {}", count);
  return {sampler == "default" ? ShotRule::Sampler::kRandom : ShotRule::Sampler::kFirst,
          get_bool(settings, "fewshot_excludes_question", where, false), count,
          !settings.contains("fewshot_data") || get_bool(settings, "fewshot_fixed", where, false)};
}

Generation make_generation(const Json& settings, const std::string& where) {
  Generation generation;
  if (settings.contains("until")) {
    generation.until = get_strings(settings, "until", where);
  }
  generation.max_tokens = get_int(settings, "max_gen_toks", where, 256);
  USER_ERROR_IF(generation.max_tokens < 1, "max_gen_toks must be at least 1, not {}",
                generation.max_tokens);
  return generation;
}

// Returns a task with the settings that both users' files and files of known/ can have.
Task make_task(const Json& settings, const std::string& where, bool is_known) {
  Task task;
  task.output = output_type(settings, where);
  if (settings.contains("version")) {
    task.version = get_double(settings, "version", where);
  }
  task.description = get_string(settings, "description", where, "");
  task.choices_are_contexts = get_bool(settings, "choices_are_contexts", where, false);
  if (!task.choices_are_contexts) {
    task.prompt = PromptTemplate(get_string(settings, "doc_to_text", where));
  }
  const bool has_choices = task.output == OutputType::kMultipleChoice;
  task.target = make_target(settings, where, is_known, has_choices);
  if (has_choices) {
    task.choices = make_choices(settings, where, is_known);
  }
  task.metrics = make_metrics(settings, task.output, where, is_known);
  task.delimiter = get_string(settings, "target_delimiter", where, " ");
  task.shot_delimiter = get_string(settings, "fewshot_delimiter", where, "\n\n");
  task.gen_prefix = get_string(settings, "gen_prefix", where, "");
  if (!task.gen_prefix.empty()) {
    task.answer_begin = PromptTemplate(task.gen_prefix);
  }
  task.shots = shot_rule(settings, where);
  task.generation = make_generation(settings, where);
  const auto identity = [](const std::string& answer, const OrderedJson&) { return answer; };
  task.filters = {{"none", identity}, {"strict-match", identity}};
  if (settings.contains("extract")) {
    task.filters.push_back({"flexible-extract", extraction(settings.at("extract"))});
  }
  task.ignores_case_and_punctuation = get_bool(settings, "ignore_case", where, false);
  return task;
}

Task make_user_task(const Json& settings, const fs::path& file) {
  const std::string name =
      get_string(settings, "task", file.string(), printable(file.stem().string()));
  USER_ERROR_IF(
      name.empty() || name.find_first_of("/\\") != std::string::npos || terminal_line(name) != name,
      "'task' is '{}'; it is part of file names and must not be empty or contain slashes or "
      "control characters",
      printable(name));
  DataSet data;
  data.scored = user_split(settings, "data", file);
  data.shots = user_split(settings, "fewshot_data", file);
  USER_ERROR_IF(data.scored.layouts.empty(), "'data' is missing; set it to the file of questions");
  Task task = make_task(settings, file.string(), /*is_known=*/false);
  USER_ERROR_IF(task.shots.count > 0 && data.shots.layouts.empty(),
                "num_fewshot is {} but 'fewshot_data' is missing; set it to the file of examples, "
                "or remove num_fewshot",
                task.shots.count);
  task.name = name;
  task.is_user_defined = true;
  task.data = std::move(data);
  return task;
}

}  // namespace

Task read_user_task(const fs::path& file) {
  const std::string text = read_text(file);
  const Json settings = file.extension() == ".json"
                            ? parse_json(text, file.string(), DuplicateKeys::kRefused)
                            : parse_toml(text, file.string());
  check_keys(settings, file.string(), /*is_known=*/false);
  try {
    return make_user_task(settings, file);
  } catch (const UserError& error) {
    const std::string message = error.what();
    throw UserError("{}{}", message.starts_with(file.string()) ? "" : file.string() + ": ",
                    message);
  }
}

Task read_quiz_task(const fs::path& file) {
  const PromptTemplate question("Question: {{question}}\nAnswer:"), context("{{context}}");
  const Json settings = {
      {"doc_to_text", ""}, {"doc_to_choice", "{{choices}}"}, {"doc_to_target", "{{gold}}"}};
  Task task = make_task(settings, file.string(), /*is_known=*/false);
  const fs::path name = file.stem();  // quiz.jsonl.gz -> quiz
  task.name = printable((name.extension() == ".jsonl" ? name.stem() : name).string());
  task.is_user_defined = true;
  task.data.scored = {"", {{{file.string()}, read_quiz}}};
  task.prompt = [question, context](const OrderedJson& document) {
    return document.contains("context") ? context(document) : question(document);
  };
  return task;
}

Task make_known_task(Json settings, Compat compat) {
  const std::string name = settings.at("task");
  if (compat == Compat::k041 && settings.contains("in_0_4_1")) {
    settings.update(Json(settings.at("in_0_4_1")));
  }
  check_keys(settings, name, /*is_known=*/true);
  Task task = make_task(settings, name, /*is_known=*/true);
  task.name = name;
  task.alias = get_string(settings, "alias", name, "");
  task.data = known_data(settings);
  task.harness_items = get_int(settings, "documents", name, 0);
  task.gold_may_be_absent = get_bool(settings, "gold_may_be_absent", name, false);
  task.not_in_0_4_1 = get_string(settings, "not_in_0_4_1", name, "");
  return task;
}

}  // namespace moe::eval
