#include "core/train/observe/history.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPrompts = 16, kMaxKept = 12;  // moe writes three prompts

OrderedJson to_pair(const TextSample& sample) {
  return OrderedJson::array({sample.step, sample.text});
}

TextSample parse_sample(const Json& pair, const std::string& prompt, const std::string& where) {
  USER_ERROR_IF(
      !pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() || !pair[1].is_string(),
      "{}: a sample must be [step, text]", where);
  return {pair[0], prompt, pair[1]};
}

constexpr const char *kOptimizer = "Optimizer", *kMachine = "Machine";
constexpr size_t kMaxCurves = 1000, kMaxSkipped = 20;

// Returns true for the curves of single_curve_panels(), the losses and accuracies.
bool is_drawn(const std::string& curve) {
  const auto& panels = single_curve_panels();
  return curve == "loss" || curve == "held_out_loss" || !task_name(curve).empty() ||
         std::ranges::find(panels, curve, &PanelSpec::curve) != panels.end();
}

struct stat file_status(const Descriptor& descriptor, const fs::path& file) {
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) {
    fail_file(file.string(), "cannot be read");
  }
  return status;
}

std::string_view file_text(const io::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Calls `on_object` for each line of `file`, up to the first that is not a JSON object or for which
// on_object() returns false. Does nothing if there is no file.
void for_each_object(const fs::path& file, const std::function<bool(const Json&)>& on_object) {
  if (!fs::exists(file)) {
    return;
  }
  FileReader in(file);
  for (std::string line; in.read_whole_line(line);) {
    const auto json = try_parse_json(line);
    if (!json || !json->is_object() || !on_object(*json)) {
      return;
    }
  }
}

}  // namespace

std::string to_line(const TextSample& sample) {
  const OrderedJson json = {
      {"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::optional<TextSample> read_sample(const Json& line) {
  const auto step = find_int(line, "step");
  const auto is_text = [&](const char* key) { return line.contains(key) && line[key].is_string(); };
  if (!step || !is_text("prompt") || !is_text("text")) {
    return std::nullopt;
  }
  return TextSample{*step, line["prompt"], line["text"]};
}

void SampleHistory::add(const TextSample& sample) {
  auto entry = std::ranges::find_if(
      prompts_, [&](const Prompt& prompt) { return prompt.prompt == sample.prompt; });
  if (entry == prompts_.end()) {
    if (prompts_.size() == kMaxPrompts) {
      return;
    }
    entry = prompts_.insert(entry, {sample.prompt, 0, 1, {}, {}});
  }
  if (entry->count % entry->stride == 0) {
    entry->kept.push_back(sample);
  }
  entry->last = sample;
  ++entry->count;
  if (entry->kept.size() > kMaxKept) {
    entry->stride *= 2;
    size_t index = 0;
    std::erase_if(entry->kept, [&](const TextSample&) { return index++ % 2 != 0; });
  }
}

OrderedJson SampleHistory::to_json() const {
  OrderedJson json = OrderedJson::array();
  for (const auto& prompt : prompts_) {
    OrderedJson samples = OrderedJson::array();
    for (const auto& sample : prompt.kept) {
      samples.push_back(to_pair(sample));
    }
    json.push_back({{"prompt", prompt.prompt},
                    {"count", prompt.count},
                    {"stride", prompt.stride},
                    {"kept", samples},
                    {"last", to_pair(prompt.last)}});
  }
  return json;
}

SampleHistory SampleHistory::from_json(const Json& json, const std::string& where) {
  SampleHistory history;
  USER_ERROR_IF(!json.is_array() || json.size() > kMaxPrompts,
                "{}: samples must be an array of at most {} prompts", where, kMaxPrompts);
  for (const auto& entry : json) {
    Prompt prompt{get_string(entry, "prompt", where),
                  get_int(entry, "count", where),
                  get_int(entry, "stride", where),
                  {},
                  parse_sample(entry.value("last", Json()), entry["prompt"], where)};
    const Json samples = entry.value("kept", Json());
    USER_ERROR_IF(
        prompt.stride < 1 || !samples.is_array() || samples.empty() || samples.size() > kMaxKept,
        "{}: a prompt must have 1 to {} samples and a positive stride", where, kMaxKept);
    for (const auto& pair : samples) {
      prompt.kept.push_back(parse_sample(pair, prompt.prompt, where));
    }
    history.prompts_.push_back(std::move(prompt));
  }
  return history;
}

std::vector<const TextSample*> select_samples(const SampleHistory::Prompt& prompt) {
  constexpr size_t kMaxSelected = 6;
  std::vector<const TextSample*> all, selected;
  for (const auto& sample : prompt.kept) {
    all.push_back(&sample);
  }
  if ((prompt.count - 1) % prompt.stride != 0) {
    all.push_back(&prompt.last);
  }
  const size_t count = std::min(kMaxSelected, all.size());
  for (size_t i = 0; i < count; ++i) {
    selected.push_back(all[count == all.size() ? i : i * (all.size() - 1) / (count - 1)]);
  }
  return selected;
}

const std::vector<PanelSpec>& single_curve_panels() {
  const auto loss = [](const char* title, const char* curve,
                       const char* unit = "unscaled, sum over layers") {
    return PanelSpec{kLearningGroup, title, unit, curve, 1, false, false, /*is_loss=*/true};
  };
  static const std::vector<PanelSpec> panels = {
      loss("Load-balance loss", "load_balance_loss"),
      loss("Entropy loss", "entropy_loss"),
      loss("L1 loss", "l1_loss"),
      loss("Router z-loss", "z_loss"),
      loss("Balance within sequences", "sequence_balance_loss"),
      loss("Auxiliary losses", "auxiliary_loss", "as added to the loss"),
      {kLearningGroup, "Lambda", "weight of L1", "lambda"},
      {kLearningGroup, "Router bias", "largest of the choice, all layers", "bias_max"},
      {kLearningGroup, "Sparsity", "share of experts that do not run", "sparsity"},
      {kOptimizer, "Learning rate", "", "lr", 1, true},
      {kOptimizer, "Gradient norm", "before clipping", "grad_norm", 1, true, true},
      {kMachine, "Speed", "tokens per second", "tokens_per_second", 1, true, true},
      {kMachine, "Memory", "GB, the process at its largest", "peak_memory_bytes", 1e-9, true},
      {kRoutingGroup, "Experts per token", "rows over tokens", "experts_per_token"},
      {kRoutingGroup, "Dropped", "% of requests", "dropped_share", 100, true},
      {kRoutingGroup, "Unserved", "% of tokens, no expert at all", "unserved_share", 100, true},
      {kRoutingGroup, "Filled", "% of fill-in requests (FR)", "filled_share", 100, true},
      {kRoutingGroup, "Rectified", "% of tokens, IR rows", "ir_share", 100, true},
      {kRoutingGroup, "Load", "busiest expert over the mean, worst layer", "load_max_over_mean"},
      {kRoutingGroup, "Dead experts", "without a token, over all layers", "dead_experts", 1, true},
      {kRoutingGroup, "Router entropy", "nats per token", "entropy"},
  };
  return panels;
}

std::string task_name(const std::string& curve) {
  constexpr std::string_view kPrefix = "tasks/", kSuffix = "/acc";
  const bool is_accuracy = curve.starts_with(kPrefix) && curve.ends_with(kSuffix) &&
                           curve.size() > kPrefix.size() + kSuffix.size();
  return is_accuracy ? curve.substr(kPrefix.size(), curve.size() - kPrefix.size() - kSuffix.size())
                     : "";
}

void History::add(const Json& line, const std::string& where) {
  const int64_t step = get_int(line, "step", where);
  USER_ERROR_IF(
      step < 0 || (has_lines_ && step <= steps) || step == std::numeric_limits<int64_t>::max(),
      "{}: step {} cannot follow step {}", where, step, steps);
  missing += std::max<int64_t>(0, step - steps - 1);  // steps count from 1; step 0 is optional
  has_lines_ = true;
  steps = step;
  const bool has_loss = line.value("target_tokens", Json(1)) != 0;  // older logs have a loss of 0
  for (const auto& [name, value] : line.items()) {
    if (has_loss || name != "loss") {
      add_number(step, name, value);
    }
  }
  const Json tasks = line.value("tasks", Json::object());
  for (const auto& [task, scores] : tasks.items()) {
    for (const auto& [metric, value] : scores.items()) {
      add_number(step, "tasks/" + task + "/" + metric, value);
    }
  }
  const std::vector<LayerLoad> loads = parse_loads(line);
  loads_.add(step, loads);
  collapse_.add(step, loads);
  const auto sparsity = find_number(line, "sparsity"),
             target = find_number(line, "target_sparsity");
  if (sparsity && target) {
    relu_stages_.add(step, *sparsity, *target);
  }
  total_tokens = find_int(line, "total_tokens").value_or(total_tokens);
  seconds += find_number(line, "seconds").value_or(0) +
             find_number(line, "evaluation_seconds").value_or(0);
  const int64_t skipped_now = find_int(line, "skipped_steps").value_or(skipped_count);
  if (skipped_now > skipped_count && skipped.size() < kMaxSkipped) {
    skipped.push_back(step);
  }
  skipped_count = skipped_now;
  skipped_outliers = find_int(line, "skipped_outliers").value_or(skipped_outliers);
  steps_without_targets = find_int(line, "steps_without_targets").value_or(steps_without_targets);
}

void History::add_number(int64_t step, const std::string& name, const Json& value) {
  if (is_drawn(name) && is_finite_number(value) &&
      (curves_.contains(name) || curves_.size() < kMaxCurves)) {
    curves_[name].add(step, value.get<double>());
  }
}

OrderedJson History::to_json() const {
  OrderedJson curves = OrderedJson::object();
  for (const auto& [name, curve] : curves_) {
    curves[name] = curve.to_json();
  }
  return {{"steps", has_lines_ ? steps : -1},
          {"missing", missing},
          {"total_tokens", total_tokens},
          {"seconds", seconds},
          {"skipped", skipped},
          {"skipped_count", skipped_count},
          {"skipped_outliers", skipped_outliers},
          {"steps_without_targets", steps_without_targets},
          {"curves", curves},
          {"loads", loads_.to_json()},
          {"samples", samples_.to_json()},
          {"relu_stages", relu_stages_.to_json()},
          {"collapse", collapse_.to_json()}};
}

History History::from_json(const Json& json, const std::string& where) {
  History history;
  const int64_t steps = get_int(json, "steps", where);
  history.has_lines_ = steps >= 0;
  history.steps = std::max<int64_t>(0, steps);
  history.missing = get_int(json, "missing", where);
  history.total_tokens = get_int(json, "total_tokens", where);
  history.seconds = get_double(json, "seconds", where);
  history.skipped = get_ints(json, "skipped", where);
  history.skipped_count = get_int(json, "skipped_count", where);
  history.skipped_outliers = get_int(json, "skipped_outliers", where);
  history.steps_without_targets = get_int(json, "steps_without_targets", where, 0);
  const Json curves = json.value("curves", Json());
  USER_ERROR_IF(
      !curves.is_object() || curves.size() > kMaxCurves || history.skipped.size() > kMaxSkipped,
      "{}: 'curves' must be an object of at most {} curves", where, kMaxCurves);
  for (const auto& [name, curve] : curves.items()) {
    history.curves_.emplace(name, Downsampled::from_json(curve, where + ": " + name));
  }
  history.loads_ = LoadMap::from_json(json.value("loads", Json()), where + ": loads");
  history.samples_ = SampleHistory::from_json(json.value("samples", Json()), where + ": samples");
  history.relu_stages_ =
      ReluStages::from_json(json.value("relu_stages", Json()), where + ": relu_stages");
  history.collapse_ =
      CollapseWatch::from_json(json.value("collapse", Json()), where + ": collapse");
  return history;
}

History read_history(const fs::path& run) {
  const fs::path file = run / "metrics.jsonl";
  USER_ERROR_IF(!fs::exists(file), "{}: no such file; name the folder of a run of moe train",
                file.string());
  FileReader in(file);
  History history;
  int64_t number = 0;
  for (std::string line; in.read_whole_line(line);) {
    const std::string where = fmt::format("{} line {}", file.string(), ++number);
    history.add(parse_json(line, where), where);
  }
  for_each_object(run / "samples.jsonl", [&](const Json& json) {
    const auto sample = read_sample(json);
    if (sample) {
      history.add(*sample);
    }
    return sample.has_value();
  });
  return history;
}

std::vector<Json> read_run_history(const fs::path& file) {
  std::vector<Json> history;
  for_each_object(file, [&](const Json& start) {
    history.push_back(start);
    return true;
  });
  return history;
}

std::string time_text() {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::chrono::system_clock::now()));
}

Descriptor open_to_append(const fs::path& file, int flags) {
  // O_NONBLOCK: opening a named pipe must not block.
  Descriptor descriptor(
      ::open(file.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0666));
  if (!descriptor.is_open()) {
    USER_ERROR_IF(errno == ELOOP,
                  "{}: is a symbolic link, which moe does not follow here; remove it",
                  file.string());
    if (errno == ENOSPC || errno == EDQUOT) {
      io::throw_write_error(errno, file);
    }
    fail_file(file.string(), "cannot be written");
  }
  USER_ERROR_IF(!S_ISREG(file_status(descriptor, file).st_mode),
                "{}: is not a regular file; remove it", file.string());
  return descriptor;
}

void truncate(const Descriptor& descriptor, uint64_t bytes, const fs::path& file) {
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    io::throw_write_error(errno, file);
  }
}

Descriptor open_lines(const fs::path& file) {
  Descriptor descriptor = open_to_append(file, O_CREAT);
  const io::MappedFile mapped(file);
  const std::string_view text = file_text(mapped);
  const size_t end = text.rfind('\n') + 1;  // 0 if there is no line break
  USER_ERROR_IF(text.size() - end > kMaxLineBytes,
                "{}: has a line of more than {} bytes; move the file away", file.string(),
                kMaxLineBytes);
  if (end < text.size()) {
    truncate(descriptor, end, file);
  }
  return descriptor;
}

StepLines::StepLines(fs::path file, LinesPerStep per_step)
    : file_(std::move(file)), per_step_(per_step), descriptor_(open_lines(file_)) {}

void StepLines::cut(const LinesMark& mark) {
  truncate(descriptor_, mark.bytes, file_);
  mark_ = mark;
}

bool StepLines::cut_at(const LinesMark& mark) {
  if (mark.bytes > 0) {
    const io::MappedFile mapped(file_);
    const std::string_view text = file_text(mapped);
    if (text.size() < mark.bytes || text[mark.bytes - 1] != '\n') {
      return false;
    }
    const std::string_view lines = text.substr(0, mark.bytes - 1);
    const std::string_view line = lines.substr(lines.rfind('\n') + 1);
    if (line.size() > kMaxLineBytes ||
        find_int(try_parse_json(line).value_or(Json()), "step") != mark.step) {
      return false;
    }
  }
  cut(mark.bytes > 0 ? mark : LinesMark());
  return true;
}

int64_t StepLines::keep_steps(int64_t steps, const std::function<void(const Json&)>& on_line) {
  LinesMark mark;
  int64_t damaged = 0;
  const auto for_each_valid = [&](const auto& on_valid) {
    mark = {};
    damaged = 0;
    int64_t skipped = 0;  // since the last valid line
    FileReader in(file_);
    for (std::string line; in.read_whole_line(line);) {
      const Json json = try_parse_json(line).value_or(Json());
      const auto step = find_int(json, "step");
      const bool ascends =
          step && (*step > mark.step || (*step == mark.step && per_step_ == LinesPerStep::kAny));
      if (!ascends || *step > steps) {
        ++skipped;
        continue;
      }
      damaged += std::exchange(skipped, 0);
      line += '\n';
      on_valid(line, json);
      mark = {mark.bytes + line.size(), *step};
    }
  };
  for_each_valid([&](const std::string&, const Json& json) { on_line(json); });
  if (damaged == 0) {
    cut(mark);
    return 0;
  }
  io::PartialFile copy(file_);
  ::fchmod(copy.file().get(), file_status(descriptor_, file_).st_mode & 0777);
  for_each_valid([&](const std::string& line, const Json&) {
    io::write_all(copy.file(), std::as_bytes(std::span(line)), copy.path());
  });
  copy.commit();
  descriptor_ = open_lines(file_);
  mark_ = mark;
  return damaged;
}

void StepLines::append(std::string_view text, int64_t step) {
  const std::string line = std::string(text) + "\n";
  io::write_all(descriptor_, std::as_bytes(std::span(line)), file_);
  mark_ = {mark_.bytes + line.size(), step};
}

}  // namespace moe::train
