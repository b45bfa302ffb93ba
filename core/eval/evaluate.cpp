#include "core/eval/evaluate.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ranges>
#include <set>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/data/chat_template.h"
#include "core/eval/formats/text.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"
#include "core/upcycle/upcycle.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

void note_subset(const EvalEvents& events, const LoadedTask& loaded) {
  const int64_t expected = loaded.task.harness_items;
  if (expected != 0 && loaded.total_questions != expected) {
    events.note(
        fmt::format("{}: the file has {} questions, lm-evaluation-harness has {}: the results are "
                    "not comparable",
                    loaded.task.name, loaded.total_questions, expected));
  }
  for (const auto& note : loaded.notes) {
    events.note(note);
  }
}

RunReport report_settings(const EvalSettings& settings, const OpenedModel& opened) {
  RunReport report;
  report.model = settings.model.string();
  report.upcycle = model::to_json(settings.upcycle);
  report.dtype = dtype_name(settings.precision);
  report.window = opened.config.max_position_embeddings;
  report.adds_bos = opened.adds_bos;
  report.limit = settings.limit;
  report.batch_tokens = settings.batch_tokens;
  report.device = settings.device.str();
  report.compat = settings.compat;
  if (const std::string& text = settings.system_instruction; !text.empty()) {
    report.prompt_form = {{"system_instruction", text},
                          {"system_instruction_sha", sha256_hex(text)}};
  }
  if (settings.apply_chat_template) {
    const auto form = data::ChatTemplate::find(settings.model);
    report.prompt_form.update({{"fewshot_as_multiturn", settings.examples_as_turns},
                               {"chat_template", form->source()},
                               {"chat_template_sha", sha256_hex(form->source())},
                               {"chat_template_args", settings.chat_options.arguments},
                               {"template_date", settings.chat_options.date}});
  }
  if (opened.config.moe) {
    report.router = route::to_string(opened.routing.router);
    report.ep_ranks = opened.routing.ep_ranks;
    report.group_tokens = group_tokens(settings, opened);
  }
  return report;
}

// Notes how routing during generation differs from routing during scoring.
void note_generation(const EvalEvents& events, const EvalSettings& settings,
                     const OpenedModel& opened, const std::vector<LoadedTask>& tasks) {
  const bool any = std::ranges::any_of(
      tasks, [](const auto& loaded) { return loaded.task.output == OutputType::kGenerateUntil; });
  if (any && group_tokens(settings, opened) > 0) {
    events.note(
        "answers are generated without a capacity and without +fr, as in moe generate, so that the "
        "routing of a token does not depend on its batch");
  }
  if (any && !settings.stats.empty()) {
    events.note(
        "routing during generation is not counted: --stats counts a separate forward pass over "
        "each question with its right answer");
  }
}

int64_t count_truncated(const std::vector<Request>& requests) {
  return std::ranges::count_if(requests, [](const auto& request) { return request.is_truncated; });
}

void note_truncated(const EvalEvents& events, const std::string& name,
                    const std::vector<Request>& requests, int64_t window) {
  if (const int64_t cut = count_truncated(requests); cut > 0) {
    events.note(
        fmt::format("{}: {} continuation{} longer than the model's window: only the last {} tokens "
                    "are scored (lm-evaluation-harness raises an error)",
                    name, cut, cut == 1 ? " is" : "s are", window));
  }
}

TaskReport run_task(Runner& runner, LoadedTask loaded, const EncodedTask& encoded) {
  if (loaded.task.output == OutputType::kGenerateUntil) {
    std::vector<std::string> answers = runner.generate(loaded, encoded.prompts);
    if (!encoded.requests.empty()) {
      runner.run(loaded.task.name, encoded.requests);
    }
    return make_generated_report(std::move(loaded), std::move(answers));
  }
  Scores scores = runner.run(loaded.task.name, encoded.requests, &loaded);
  TaskReport report = make_task_report(std::move(loaded), std::move(scores));
  report.cut_choices = count_truncated(encoded.requests);
  return report;
}

// Returns `events` with a `note` that ignores repeated notes.
EvalEvents without_repeated_notes(EvalEvents events) {
  auto seen = std::make_shared<std::set<std::string>>();
  events.note = [seen, note = events.note](const std::string& sentence) {
    if (seen->insert(sentence).second) {
      note(sentence);
    }
  };
  return events;
}

// Returns a function that renders conversations with the chat template of settings.model. Like the
// harness, it omits a system message that the template refuses.
std::function<std::string(const Messages&)> chat_renderer(const EvalSettings& settings,
                                                          const EvalEvents& events) {
  const auto codec = data::make_text_codec(
      std::make_shared<const io::Tokenizer>(io::Tokenizer::load(settings.model, 0)));
  const auto form = data::ChatTemplate::find(settings.model, settings.chat_options);
  USER_ERROR_IF(!form,
                "{}: has no chat template (chat_template.jinja or \"chat_template\" of "
                "tokenizer_config.json); add one or remove --apply-chat-template",
                settings.model.string());
  return [codec, form, note = without_repeated_notes(events).note](const Messages& messages) {
    data::Chat chat;
    for (const auto& message : messages) {
      chat.messages.push_back({.json = {{"role", message.role}, {"content", message.content}}});
    }
    try {
      return form->fill_prompt(chat, codec).text;
    } catch (const UserError&) {
      if (messages.front().role != "system") {
        throw;
      }
    }
    chat.messages.erase(chat.messages.begin());
    std::string text = form->fill_prompt(chat, codec).text;
    note("the chat template refuses system messages: description and --system-instruction omitted");
    return text;
  };
}

std::vector<LoadedTask> load_requested_tasks(const EvalSettings& settings,
                                             const EvalEvents& events) {
  return load_tasks(settings.tasks, settings.data, settings.limit,
                    {settings.compat, settings.shots, settings.system_instruction,
                     settings.apply_chat_template ? chat_renderer(settings, events) : nullptr,
                     settings.examples_as_turns});
}

// An evaluation whose model is opened and whose tasks are encoded once, for one or more runs.
class PreparedEvaluation {
 public:
  // Opens the model folder and starts to encode the tasks in the background. `settings` and
  // `events` must outlive the object. Throws the UserErrors of open_model().
  PreparedEvaluation(const EvalSettings& settings, const EvalEvents& events,
                     std::vector<LoadedTask> tasks)
      : opened(open_model(settings, events)),
        settings_(settings),
        events_(events),
        tasks_(std::move(tasks)),
        encoded_(make_encoder(opened, settings.compat), tasks_,
                 /*counts_routing=*/!settings.stats.empty()) {
    for (const auto& loaded : tasks_) {
      note_subset(events, loaded);
    }
  }

  OpenedModel opened;  // if its routing is changed, call Runner::restart()

  // Runs every task with the routing of `opened` and adds averages. Writes no file. If `is_last`,
  // moves the questions into the report; run() must not be called again. Throws UserError on all
  // ranks if a task cannot be encoded.
  RunReport run(Runner& runner, bool is_last) {
    note_generation(events_, settings_, opened, tasks_);
    RunReport report = report_settings(settings_, opened);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const EncodedTask* task = nullptr;
      distributed::on_all_ranks(settings_.ranks, [&] { task = &encoded_.at(i); });
      note_truncated(events_, tasks_[i].task.name, task->requests, encoded_.window());
      LoadedTask loaded = is_last ? std::move(tasks_[i]) : tasks_[i];
      report.tasks.push_back(run_task(runner, std::move(loaded), *task));
    }
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    add_averages(report, settings_.tasks);
    return report;
  }

  const std::vector<LoadedTask>& tasks() const { return tasks_; }

 private:
  const EvalSettings& settings_;
  const EvalEvents& events_;
  std::vector<LoadedTask> tasks_;
  EncodedTasks encoded_;  // declared last: its thread uses `opened` and tasks_
};

const std::vector<std::string> kSweepSettings = {"cf", "p", "router", "ep-ranks"};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (const auto part : text | std::views::split(',')) {
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

// Returns true if `part` begins a router ("top1", "topp:0.4", "relu:k=1"); false if it is an option
// of the previous router ("order=score", "max=2").
bool begins_router(const std::string& part) {
  return std::ranges::any_of(route::router_families(), [&](const auto& family) {
    return lower(part).starts_with(family.word);
  });
}

std::vector<std::string> split_routers(const std::string& text) {
  std::vector<std::string> routers;
  for (const auto& part : split_at_commas(text)) {
    if (routers.empty() || part.empty() || begins_router(part)) {
      routers.push_back(part);
    } else {
      routers.back() += "," + part;
    }
  }
  return routers;
}

// Returns the max= option of the router whose p is swept, such as ",max=2"; "" if it has none.
std::string max_option(const route::RouterRequest& base, const route::RouterSettings& stored) {
  const auto router = base.router.empty() ? stored : route::parse_router(base.router);
  USER_ERROR_IF(!base.router.empty() && router.family->name != "topp",
                "--sweep p needs a top-p router, but --router is {}", base.router);
  return router.max_experts ? fmt::format(",max={}", *router.max_experts) : "";
}

// Sets the swept setting in `request` to `value`. `max` is the result of max_option().
void set_swept(const std::string& setting, const std::string& value, const std::string& max,
               route::RouterRequest& request) {
  USER_ERROR_IF(value.empty(), "a value is empty; remove a comma");
  if (setting == "cf") {
    request.cf = value;
  } else if (setting == "p") {
    request.router = "topp:" + value + max;
  } else if (setting == "router") {
    request.router = value;
  } else {
    request.ep_ranks = parse_int(value);
    USER_ERROR_IF(!request.ep_ranks, "the number of ranks must be an integer");
  }
}

void check_axes(const std::vector<SweepAxis>& axes, const route::RouterRequest& base) {
  std::set<std::string> settings;
  for (const auto& axis : axes) {
    const bool is_flag = (axis.setting == "cf" && !base.cf.empty()) ||
                         (axis.setting == "router" && !base.router.empty()) ||
                         (axis.setting == "ep-ranks" && base.ep_ranks);
    USER_ERROR_IF(is_flag, "--sweep {0} cannot be combined with --{0}; use one of them",
                  axis.setting);
    USER_ERROR_IF(!settings.insert(axis.setting).second,
                  "--sweep {0} is given twice; list all values in one --sweep {0}=VALUE,VALUE,..",
                  axis.setting);
  }
  USER_ERROR_IF(settings.contains("p") && (settings.contains("router") || settings.contains("cf")),
                "--sweep p selects top-p routers, which have no capacity; remove --sweep router or "
                "--sweep cf");
}

// Returns all combinations; the last axis varies fastest.
std::vector<std::vector<std::string>> make_grid(const std::vector<SweepAxis>& axes) {
  std::vector<std::vector<std::string>> grid = {{}};
  for (const auto& axis : axes) {
    std::vector<std::vector<std::string>> wider;
    for (const auto& point : grid) {
      for (const auto& value : axis.values) {
        wider.push_back(point);
        wider.back().push_back(value);
      }
    }
    grid = std::move(wider);
  }
  return grid;
}

// Adds the results of a point of the grid, with one column for each group in `names` and one for
// each task outside these groups.
void add_row(SweepReport& sweep, const SweepValue& value, const RunReport& report,
             const std::vector<std::string>& names) {
  SweepRow row{value, {}};
  sweep.columns.clear();
  const auto add_column = [&](SweepColumn column, const Mean& mean) {
    sweep.columns.push_back(std::move(column));
    row.means.push_back(mean);
    row.average += mean.value;
  };
  std::set<std::string> covered;
  for (const auto& [group, mean, questions] : report.groups) {
    if (std::ranges::find(names, group.name) != names.end()) {
      add_column({group.name, group.metric, questions}, mean);
      const auto members = group_tasks(group);
      covered.insert(members.begin(), members.end());
    }
  }
  for (const auto& task : report.tasks) {
    const std::string& name = task.loaded.task.name;
    const std::string metric = main_metric(task.loaded.task).key();
    if (!covered.contains(name)) {
      add_column({name, metric, task.questions()}, task.metrics.at(metric));
    }
  }
  row.average /= static_cast<double>(row.means.size());
  route::CounterValues sum;
  for (const auto& task : report.tasks) {
    sum.add(route::sum_layers(task.run.counters).sum);
  }
  row.drop_rate = route::ratio(sum.dropped_requests, sum.requests);
  row.ir_share = route::ratio(sum.ir_tokens, sum.tokens);
  row.experts_per_token = sum.experts_per_token();
  row.seconds = report.seconds;
  sweep.rows.push_back(std::move(row));
}

// Throws UserError if one of `files` cannot be written, is an input, was not written by moe, or
// exists and neither --force nor `is_resumable` is set.
void check_files(const EvalSettings& settings, const std::vector<fs::path>& files,
                 bool is_resumable = false) {
  io::check_output(files, settings.force || is_resumable, "-o", input_files(settings));
  io::check_own_output(files);
}

// Checks the output files of a sweep. Accepts existing results of single points if an interrupted
// sweep can be resumed.
void check_sweep_output(const EvalSettings& settings, const std::vector<SweepValue>& values,
                        const std::vector<LoadedTask>& tasks) {
  if (settings.out.empty()) {
    return;
  }
  const auto cache = response_file(settings);
  const bool is_resumable = cache && cache->is_temporary && fs::exists(cache->file);
  check_files(settings, {settings.out / "sweep.json", settings.out / "sweep.html"});
  for (const auto& value : values) {
    const fs::path folder = settings.out / value.name;
    USER_ERROR_IF(fs::is_symlink(folder),
                  "{} is a symbolic link to {}; replace it by a folder, or use another -o",
                  folder.string(), fs::read_symlink(folder).string());
    check_files(settings, report_files(folder, tasks), is_resumable);
  }
}

}  // namespace

RunReport evaluate(const EvalSettings& settings, const EvalEvents& events) {
  std::vector<LoadedTask> tasks = load_requested_tasks(settings, events);
  if (!settings.out.empty()) {
    check_files(settings, report_files(settings.out, tasks));
  }
  for (const auto& loaded : tasks) {
    io::check_inputs_outside(settings.stats, loaded.files);
  }
  OtherRun other;
  if (!settings.against.empty()) {
    std::vector<std::string> names;
    for (const auto& loaded : tasks) {
      names.push_back(loaded.task.name);
    }
    other = read_run(settings.against, names);
  }
  PreparedEvaluation evaluation(settings, events, std::move(tasks));
  Runner runner(settings, evaluation.opened, events,
                request_sizes(settings, evaluation.opened, evaluation.tasks()));
  RunReport report = evaluation.run(runner, /*is_last=*/true);
  report.routing = runner.finish(settings.stats);
  for (const auto& task : report.tasks) {
    if (const auto found = other.find(task.loaded.task.name); found != other.end()) {
      const auto differences = compare(task, found->second);
      report.against.insert(report.against.end(), differences.begin(), differences.end());
      if (!differences.empty() && differences.front().other_prompts > 0) {
        events.note(fmt::format("{}: {} prompts differ from those of --against",
                                differences.front().task, differences.front().other_prompts));
      }
    }
  }
  if (!settings.out.empty() && settings.is_rank_zero()) {
    write_report(report, settings.out);
  }
  runner.remove_temporary_cache();
  return report;
}

Scores evaluate_requests(const EvalSettings& settings, const fs::path& file,
                         const EvalEvents& events) {
  io::check_inputs_outside(settings.stats, {file});
  const std::vector<TextPair> pairs = read_text_pairs(file, settings.limit);
  const OpenedModel opened = open_model(settings, events);
  const TextEncoder encoder = make_encoder(opened, settings.compat);
  const std::vector<Request> requests = encode_requests(encoder, pairs);
  note_truncated(events, file.string(), requests, encoder.window);
  Runner runner(settings, opened, events, request_sizes(settings, opened, requests));
  Scores scores = runner.run("requests", requests);
  runner.finish(settings.stats);
  return scores;
}

RoutingStats evaluate_texts(const EvalSettings& settings, const std::vector<fs::path>& files,
                            const EvalEvents& events) {
  io::check_inputs_outside(settings.stats, files);
  const OpenedModel opened = open_model(settings, events);
  USER_ERROR_IF(!opened.config.moe,
                "{}: this model is dense and has no routing statistics; --stats-text needs a "
                "mixture of experts",
                settings.model.string());
  const std::vector<Request> windows =
      read_text_windows(files, make_encoder(opened, settings.compat),
                        std::max<int64_t>(0, opened.tokenizer.eos_id()), settings.limit);
  Runner runner(settings, opened, events, request_sizes(settings, opened, windows));
  runner.run("texts", windows);
  return *runner.finish(settings.stats);
}

SweepAxis parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string setting = text.substr(0, equals);
  USER_ERROR_IF(equals == std::string::npos ||
                    std::ranges::find(kSweepSettings, setting) == kSweepSettings.end(),
                "--sweep '{}' is not SETTING=VALUE,VALUE,..{}; settings: {}", printable(text),
                did_you_mean(setting, kSweepSettings), fmt::join(kSweepSettings, ", "));
  const std::string values = text.substr(equals + 1);
  USER_ERROR_IF(values.empty(), "--sweep {} has no values; write {}=VALUE,VALUE,..",
                printable(text), setting);
  return {setting, setting == "router" ? split_routers(values) : split_at_commas(values)};
}

std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force) {
  USER_ERROR_IF(!config.moe, "this model is dense and has no router; remove --sweep");
  check_axes(axes, base);
  const bool has_p =
      std::ranges::any_of(axes, [](const auto& axis) { return axis.setting == "p"; });
  const std::string max = has_p ? max_option(base, config.moe->router) : "";
  std::vector<SweepValue> values;
  for (const auto& point : make_grid(axes)) {
    SweepValue value{point, "", {}};
    for (size_t i = 0; i < axes.size(); ++i) {
      value.name += (i == 0 ? "" : ",") + axes[i].setting + "=" + point[i];
    }
    try {
      route::RouterRequest request = base;
      for (size_t i = 0; i < axes.size(); ++i) {
        set_swept(axes[i].setting, point[i], max, request);
      }
      value.routing = resolve_router(config, request, force);
    } catch (const UserError& error) {
      throw UserError("--sweep {}: {}", printable(value.name), error.what());
    }
    for (const auto& other : values) {
      USER_ERROR_IF(other.routing.router == value.routing.router &&
                        other.routing.ep_ranks == value.routing.ep_ranks,
                    "--sweep: {} and {} are the same router, {}; remove one of them", other.name,
                    value.name, route::to_string(value.routing.router));
    }
    values.push_back(std::move(value));
  }
  return values;
}

SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& all_events) {
  const EvalEvents events = without_repeated_notes(all_events);
  PreparedEvaluation evaluation(settings, events, load_requested_tasks(settings, events));
  OpenedModel& opened = evaluation.opened;
  const auto values =
      sweep_values(axes, model::remaining_router_request(settings.upcycle, settings.router),
                   opened.config, settings.force);
  check_sweep_output(settings, values, evaluation.tasks());
  for (const auto& value : values) {
    for (const auto& note : value.routing.notes) {
      events.note(note);
    }
  }
  Runner runner(settings, opened, events, request_sizes(settings, opened, evaluation.tasks()));
  SweepReport report{settings.model.string(), axes, {}, {}};
  for (const auto& value : values) {
    opened.routing = value.routing;
    runner.restart(value.name);
    const RunReport run = evaluation.run(runner, &value == &values.back());
    if (!settings.out.empty() && settings.is_rank_zero()) {
      write_report(run, settings.out / value.name);
    }
    add_row(report, value, run, settings.tasks);
  }
  if (!settings.out.empty() && settings.is_rank_zero()) {
    io::add_to_output_list(settings.out, {"sweep.html", "sweep.json"});
    io::write_whole(settings.out / "sweep.html", sweep_page(report));
    io::write_whole(settings.out / "sweep.json", sweep_json(report).dump(2) + "\n");
  }
  runner.remove_temporary_cache();
  return report;
}

}  // namespace moe::eval
