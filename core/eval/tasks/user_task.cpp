#include "core/eval/tasks/user_task.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/base/toml_depth.h"
#include "core/base/utf8.h"
#include "core/eval/formats/csv.h"
#include "core/eval/formats/first_documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/tasks/declare.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = {"task",
                                                "data",
                                                "fewshot_data",
                                                "output_type",
                                                "description",
                                                "doc_to_text",
                                                "doc_to_choice",
                                                "doc_to_target",
                                                "metric_list",
                                                "target_delimiter",
                                                "fewshot_delimiter",
                                                "num_fewshot",
                                                "fewshot_sampler",
                                                "until",
                                                "max_gen_toks",
                                                "ignore_case",
                                                "version"};
  return keys;
}

Json read_settings(const fs::path& file) {
  const std::string text = read_text(file);
  if (file.extension() == ".json") {
    return parse_json(text, file.string(), DuplicateKeys::kRefused);
  }
  check_toml_depth(text, file.string());
  try {
    std::ostringstream json;
    json << toml::json_formatter(toml::parse(text));
    return parse_json(json.str(), file.string());
  } catch (const toml::parse_error& error) {
    throw UserError("{} line {}: {}", file.string(), error.source().begin.line,
                    printable(std::string(error.description())));
  }
}

void check_keys(const Json& settings, const std::string& where) {
  if (!settings.is_object()) {
    throw UserError("{}: not an object of settings", where);
  }
  for (const auto& [key, value] : settings.items()) {
    const auto& known = known_keys();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string near = nearest_name(key, known);
      throw UserError("{}: '{}' is no setting of a task{}; known: {}", where, printable(key),
                      near.empty() ? "" : ", did you mean '" + near + "'?", fmt::join(known, ", "));
    }
  }
}

// Where the fields of a document lie in a row: one a name, in the header's order. A name that
// stands there twice (an export with several nameless columns has such) means its last column.
std::vector<size_t> columns_of(const std::vector<std::string>& header) {
  std::unordered_map<std::string, size_t> places;
  std::vector<size_t> columns;
  for (size_t column = 0; column < header.size(); ++column) {
    const auto [place, is_new] = places.emplace(header[column], columns.size());
    if (is_new) {
      columns.push_back(column);
    } else {
      columns[place->second] = column;
    }
  }
  return columns;
}

FirstDocuments read_table(const fs::path& file, int64_t limit) {
  CsvTable table(file, file.extension() == ".tsv" ? '\t' : ',');
  const std::vector<std::string> header = table.header();
  const std::vector<size_t> columns = columns_of(header);
  return first_documents(std::move(table), limit, [&](CsvRow row) {
    // Names are known to differ, so none is looked for: operator[] would, name by name.
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
  if (file.extension() == ".csv" || file.extension() == ".tsv") {
    return read_table(file, limit);
  }
  return first_documents(JsonLinesReader(file), limit, [](const JsonLine& record) {
    return Document{OrderedJson(record.json), record.where};
  });
}

Split split_of(const Json& settings, const char* key, const fs::path& task_file) {
  const std::string name = get_string(settings, key, task_file.string(), "");
  if (name.empty()) {
    return {};
  }
  return {key, {{{(task_file.parent_path() / name).string()}, read_any_records}}};
}

OutputType output_of(const Json& settings, const std::string& where) {
  const std::string name = get_string(settings, "output_type", where, "multiple_choice");
  for (const OutputType type :
       {OutputType::kMultipleChoice, OutputType::kLogLikelihood, OutputType::kGenerateUntil}) {
    if (name == to_string(type)) {
      return type;
    }
  }
  throw UserError(
      "{}: output_type '{}' is unknown; known: multiple_choice, loglikelihood, "
      "generate_until",
      where, printable(name));
}

std::function<Texts(const OrderedJson&)> choices_of(const Json& settings,
                                                    const std::string& where) {
  const auto found = settings.find("doc_to_choice");
  if (found != settings.end() && found->is_string()) {
    return list(found->get<std::string>());
  }
  return each(get_strings(settings, "doc_to_choice", where));
}

std::vector<Metric> metrics_of(const Json& settings, OutputType output, const std::string& where) {
  const bool chooses = output == OutputType::kMultipleChoice;
  Texts names = chooses                                ? Texts{"acc", "acc_norm"}
                : output == OutputType::kLogLikelihood ? Texts{"perplexity", "acc"}
                                                       : Texts{"exact_match"};
  if (settings.contains("metric_list")) {
    names = get_strings(settings, "metric_list", where);
  }
  std::vector<Metric> metrics;
  for (const auto& name : names) {
    if (chooses) {
      metrics.push_back(choice_metric(name));
    } else if (output == OutputType::kLogLikelihood && (name == "acc" || name == "perplexity")) {
      metrics.push_back(name == "acc" ? greedy() : perplexity());
    } else if (output == OutputType::kGenerateUntil && name == "exact_match") {
      metrics.push_back({.name = name});
    } else {
      throw UserError("metric '{}' is unknown for {}; known: {}", printable(name),
                      to_string(output),
                      output == OutputType::kLogLikelihood ? "acc, perplexity" : "exact_match");
    }
  }
  if (metrics.empty()) {
    throw UserError("metric_list is empty; name one metric at least");
  }
  return metrics;
}

ShotRule shots_of(const Json& settings, const std::string& where) {
  const std::string sampler = get_string(settings, "fewshot_sampler", where, "default");
  if (sampler != "default" && sampler != "first_n") {
    throw UserError("fewshot_sampler '{}' is unknown; known: default, first_n", sampler);
  }
  const int64_t count = get_int(settings, "num_fewshot", where, 0);
  if (count < 0 || count > 1000) {
    throw UserError("num_fewshot is {}, 0 to 1000 are possible", count);
  }
  return {sampler == "default" ? ShotRule::Sampler::kRandom : ShotRule::Sampler::kFirst, false,
          count, !settings.contains("fewshot_data")};
}

Generation generation_of(const Json& settings, const std::string& where) {
  Generation generation;
  if (settings.contains("until")) {
    generation.until = get_strings(settings, "until", where);
  }
  generation.max_tokens = get_int(settings, "max_gen_toks", where, 256);
  if (generation.max_tokens < 1) {
    throw UserError("max_gen_toks is {}, 1 is the least", generation.max_tokens);
  }
  return generation;
}

Task make_task(const Json& settings, const fs::path& file) {
  const std::string where = file.string();
  Task task;
  task.name = get_string(settings, "task", where, printable(file.stem().string()));
  if (task.name.empty() || task.name.find_first_of("/\\") != std::string::npos ||
      terminal_text(task.name, /*one_line=*/true) != task.name) {
    throw UserError("'task' is '{}', it names files: no slashes, no control characters, not empty",
                    printable(task.name));
  }
  task.is_own = true;
  task.output = output_of(settings, where);
  if (settings.contains("version")) {
    task.version = get_double(settings, "version", where);
  }
  task.data.scored = split_of(settings, "data", file);
  task.data.shots = split_of(settings, "fewshot_data", file);
  if (task.data.scored.forms.empty()) {
    throw UserError("'data' is missing: the file of the questions");
  }
  task.description = get_string(settings, "description", where, "");
  task.prompt = PromptTemplate(get_string(settings, "doc_to_text", where));
  task.target = target(get_string(settings, "doc_to_target", where));
  if (task.output == OutputType::kMultipleChoice) {
    task.choices = choices_of(settings, where);
  }
  task.metrics = metrics_of(settings, task.output, where);
  task.delimiter = get_string(settings, "target_delimiter", where, " ");
  task.shot_delimiter = get_string(settings, "fewshot_delimiter", where, "\n\n");
  task.shots = shots_of(settings, where);
  task.generation = generation_of(settings, where);
  task.filters = {{"none", [](const std::string& answer, const OrderedJson&) { return answer; }}};
  task.ignores_case_and_marks = get_bool(settings, "ignore_case", where, false);
  return task;
}

}  // namespace

Task read_user_task(const fs::path& file) {
  const Json settings = read_settings(file);
  check_keys(settings, file.string());
  try {
    return make_task(settings, file);
  } catch (const UserError& error) {
    const std::string message = error.what();
    throw UserError("{}{}", message.starts_with(file.string()) ? "" : file.string() + ": ",
                    message);
  }
}

}  // namespace moe::eval
