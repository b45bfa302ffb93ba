#include "core/train/observe/metrics.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <set>
#include <span>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/train/observe/report.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kTrainScalars = {"auxiliary_loss",
                                             "bias_max",
                                             "data_wait_seconds",
                                             "entropy_loss",
                                             "grad_norm",
                                             "l1_loss",
                                             "lambda",
                                             "load_balance_loss",
                                             "loss",
                                             "lr",
                                             "sequence_balance_loss",
                                             "skipped_outliers",
                                             "skipped_steps",
                                             "tokens_per_second",
                                             "z_loss"};
const std::set<std::string> kRoutingScalars = {
    "dropped_share", "unserved_share", "filled_share",       "ir_share",    "experts_per_token",
    "sparsity",      "entropy",        "load_max_over_mean", "dead_experts"};
const std::set<std::string> kLayerScalars = {"dropped_share", "experts_per_token",
                                             "load_max_over_mean", "dead_experts"};

constexpr std::string_view kEventPrefix = "events.out.tfevents.";

void put_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int byte = 0; byte < bytes; ++byte) {
    out.push_back(static_cast<char>(value >> (8 * byte)));
  }
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
}

// Wire types of protocol buffers. A key is the field number and the wire type.
enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, uint64_t field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, uint64_t field, const std::string& value) {
  put_key(out, field, kBytes);
  put_varint(out, value.size());
  out += value;
}

// Returns the head of an Event {wall_time = 1 (double), step = 2}; the caller appends the rest.
std::string event_head(double wall_time_s, int64_t step) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(wall_time_s), 8);
  put_key(event, 2, kVarint);
  put_varint(event, step);
  return event;
}

// Appends Summary.Value {tag = 1, simple_value = 2 (float)} to Summary {value = 1}.
void put_value(std::string& summary, const std::string& tag, double number) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, kFixed32);
  put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
  put_bytes(summary, 1, value);
}

uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) {
        crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
      }
      entries[byte] = crc;
    }
    return entries;
  }();
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

void add_numbers(const Json& object, const std::string& group, const std::set<std::string>& keys,
                 std::vector<std::pair<std::string, double>>& curves) {
  for (const auto& [key, value] : object.items()) {
    if (keys.contains(key) && is_finite_number(value)) {
      curves.emplace_back(group + key, value.get<double>());
    }
  }
}

std::string event_name(int64_t start) {
  return fmt::format("{}{}.{}.moe", kEventPrefix, start, ::getpid());
}

// Returns the listed event files; if none is listed (older version), all event files of moe.
std::vector<fs::path> event_files(const RunFolder& folder) {
  std::vector<fs::path> listed, all;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    if (is_event_name(name)) {
      all.push_back(entry.path());
      if (folder.is_listed(name)) {
        listed.push_back(entry.path());
      }
    }
  }
  return listed.empty() ? all : listed;
}

// Returns the length of the file; nothing if it is shorter than `mark`, or if the bytes before the
// mark are not the recorded checksum.
std::optional<uint64_t> matching_length(const Descriptor& descriptor, const EventMark& mark) {
  constexpr ssize_t kSumBytes = sizeof(mark.sum);
  struct stat status {};
  static_assert(std::endian::native == std::endian::little);  // the byte order of the file
  uint32_t sum = 0;
  if (!descriptor.is_open() || mark.bytes < kSumBytes || ::fstat(descriptor.get(), &status) != 0 ||
      !S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) < mark.bytes ||
      ::pread(descriptor.get(), &sum, kSumBytes, static_cast<off_t>(mark.bytes - kSumBytes)) !=
          kSumBytes ||
      sum != mark.sum) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(status.st_size);
}

void put(OrderedJson& json, const char* key, const std::optional<double>& value) {
  if (value) {
    json[key] = *value;
  }
}

constexpr const char* kHistory = "history.json";
constexpr uint64_t kTail = uint64_t{4} << 20;  // larger than a line of thousands of experts

OrderedJson to_json(const LinesMark& mark) { return {{"bytes", mark.bytes}, {"step", mark.step}}; }

LinesMark read_lines_mark(const Json& json, const std::string& where) {
  const int64_t bytes = get_int(json, "bytes", where);
  USER_ERROR_IF(bytes < 0, "{}: 'bytes' is {}, it must not be negative", where, bytes);
  return {static_cast<uint64_t>(bytes), get_int(json, "step", where)};
}

// Returns the log state of a checkpoint; nothing, with a note, if it is invalid.
std::optional<LogState> find_state(const fs::path& checkpoint, std::vector<std::string>& notes) {
  try {
    return checkpoint.empty() ? std::nullopt : read_log_state(checkpoint);
  } catch (const UserError& error) {
    notes.push_back(fmt::format("{}; the history is read from metrics.jsonl", error.what()));
    return std::nullopt;
  }
}

std::optional<double> lr_from_checkpoint(const fs::path& model) {
  const auto state = read_log_state(model);
  const Downsampled* curve = state ? state->history.find_curve("lr") : nullptr;
  return curve == nullptr ? std::nullopt : std::optional(curve->last.value);
}

std::optional<double> lr_from_upcycle_report(const fs::path& model) {
  const fs::path file = model / "upcycle.json";
  const Json report = fs::exists(file) ? read_json(file, uint64_t{1} << 24) : Json();
  return has_value(report, "source") ? find_number(report.at("source"), "last_learning_rate")
                                     : std::nullopt;
}

// Returns the rate of the last complete line of RUN/metrics.jsonl that has one. Reads only the end
// of the file, which may have millions of lines.
std::optional<double> lr_from_metrics(const fs::path& model) {
  const fs::path folder = fs::weakly_canonical(model);
  const fs::path file = folder.parent_path() / "metrics.jsonl";
  if (folder.filename() != "final" || !fs::exists(file)) {
    return std::nullopt;
  }
  FileReader in(file);
  std::optional<double> last;
  std::string line;
  if (const uint64_t size = fs::file_size(file); size > kTail) {
    in.seek(size - kTail);
    in.read_line(line);  // skips an incomplete line
  }
  while (in.read_whole_line(line)) {
    if (const auto rate = find_number(parse_json(line, file.string()), "lr")) {
      last = rate;
    }
  }
  return last;
}

}  // namespace

OrderedJson to_json(const StepRecord& record) {
  OrderedJson json = OrderedJson::object();
  json["step"] = record.step;
  json["loss"] = record.has_loss() ? OrderedJson(record.loss) : OrderedJson();
  json["grad_norm"] = record.grad_norm;
  json["lr"] = record.lr;
  json["tokens"] = record.tokens;
  json["target_tokens"] = record.target_tokens;
  json["total_tokens"] = record.total_tokens;
  json["tokens_per_second"] = record.tokens_per_second;
  json["seconds"] = record.seconds;
  json["peak_memory_bytes"] = record.peak_memory;
  if (record.gpu_memory) {
    json["peak_gpu_bytes"] = *record.gpu_memory;
  }
  json["data_wait_seconds"] = record.data_wait_seconds;
  json["skipped_steps"] = record.skipped_steps;
  if (record.skipped) {
    json["skipped"] = record.skipped_kind;
    json["skipped_why"] = record.skipped_why;
  }
  if (record.skipped_outliers) {
    json["skipped_outliers"] = *record.skipped_outliers;
  }
  if (record.steps_without_targets > 0) {
    json["steps_without_targets"] = record.steps_without_targets;
  }
  put(json, "load_balance_loss", record.load_balance);
  put(json, "entropy_loss", record.entropy);
  put(json, "l1_loss", record.l1);
  put(json, "z_loss", record.z);
  put(json, "sequence_balance_loss", record.sequence_balance);
  put(json, "auxiliary_loss", record.auxiliary);
  put(json, "lambda", record.lambda);
  put(json, "bias_max", record.bias_max);
  if (record.layers.empty()) {
    return json;
  }
  json.update(route::to_json(record.total(), record.row_bytes));
  if (record.target_sparsity) {
    json["sparsity"] = record.sparsity;  // mean over layers, not over rows
    json["target_sparsity"] = *record.target_sparsity;
  }
  json["layers"] = route::layers_json(record.moe_layers, record.layers, record.row_bytes);
  return json;
}

void add_evaluation(OrderedJson& line, const Evaluation& evaluation) {
  put(line, "held_out_loss", evaluation.held_out_loss);
  if (!evaluation.tasks.empty()) {
    line["tasks"] = evaluation.tasks;
  }
  line["evaluation_seconds"] = evaluation.seconds;
}

void write_log_state(const LogState& state, const fs::path& checkpoint) {
  const OrderedJson json = {{"format", 1},
                            {"metrics", to_json(state.metrics)},
                            {"samples", to_json(state.samples)},
                            {"events",
                             {{"bytes", state.events.bytes},
                              {"sum", state.events.sum},
                              {"clock_s", state.events.clock_s}}},
                            {"history", state.history.to_json()}};
  io::write_file(checkpoint / kHistory,
                 json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

std::optional<LogState> read_log_state(const fs::path& checkpoint) {
  const std::string where = (checkpoint / kHistory).string();
  std::error_code ignored;
  if (!fs::exists(where, ignored)) {
    return std::nullopt;
  }
  const Json json = read_json(where, uint64_t{1} << 28);
  USER_ERROR_IF(get_int(json, "format", where) != 1, "{}: format {} is of another version of moe",
                where, json["format"].dump());
  LogState state;
  state.metrics = read_lines_mark(json.value("metrics", Json()), where + ": metrics");
  state.samples = read_lines_mark(json.value("samples", Json()), where + ": samples");
  const Json events = json.value("events", Json());
  state.events = {
      read_lines_mark({{"bytes", get_int(events, "bytes", where)}, {"step", 0}}, where).bytes,
      static_cast<uint32_t>(get_int(events, "sum", where)), get_double(events, "clock_s", where)};
  state.history = History::from_json(json.value("history", Json()), where);
  return state;
}

std::vector<std::pair<std::string, double>> scalars(const Json& line) {
  std::vector<std::pair<std::string, double>> curves;
  add_numbers(line, "train/", kTrainScalars, curves);
  add_numbers(line, "routing/", kRoutingScalars, curves);
  add_numbers(line, "train/", {"held_out_loss"}, curves);
  const Json tasks = line.value("tasks", Json::object());
  for (const auto& [task, scores] : tasks.items()) {
    add_numbers(scores, "tasks/" + task + "/", {"acc", "acc_norm"}, curves);
  }
  for (const auto& counters : line.value("layers", Json::array())) {
    const Json index = counters.is_object() ? counters.value("layer", Json(0)) : Json();
    if (index.is_number_integer()) {
      add_numbers(counters, fmt::format("layer_{}/", index.get<int64_t>()), kLayerScalars, curves);
    }
  }
  return curves;
}

std::optional<EventFile> EventFile::resume(const RunFolder& folder, const EventMark& mark) {
  for (const auto& file : event_files(folder)) {
    EventFile events;
    events.file_ = file;
    events.descriptor_ = Descriptor(io::check_opened(
        ::open(file.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK),
        file.string()));
    events.mark_ = mark;
    if (const auto length = matching_length(events.descriptor_, mark)) {
      if (*length > mark.bytes) {
        events.cut(folder);
      }
      return events;
    }
  }
  return std::nullopt;
}

// Truncates the file at its mark and renames it: a running TensorBoard may have read beyond the
// cut, and reads a renamed file from its beginning.
void EventFile::cut(const RunFolder& folder) {
  truncate(descriptor_, mark_.bytes, file_);
  const std::string start = file_.filename().string().substr(kEventPrefix.size());
  const fs::path renamed = folder.path() / event_name(std::stoll(start));  // up to the first '.'
  if (renamed != file_) {
    folder.claim(renamed);
    fs::rename(file_, renamed);
    file_ = renamed;
  }
}

EventFile::EventFile(const RunFolder& folder, double seconds) {
  folder.remove_events();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  mark_.clock_s = std::chrono::duration<double>(now).count() - seconds;
  file_ = folder.path() / event_name(static_cast<int64_t>(mark_.clock_s));
  folder.claim(file_);
  descriptor_ = open_to_append(file_, O_CREAT | O_EXCL);
  std::string version = event_head(mark_.clock_s, 0);
  put_bytes(version, 3, "brain.Event:2");
  write(version);
}

void EventFile::append(const Json& line) {
  mark_.clock_s += find_number(line, "seconds").value_or(0);
  std::string summary;
  for (const auto& [tag, value] : scalars(line)) {
    put_value(summary, tag, value);
  }
  std::string event = event_head(mark_.clock_s, get_int(line, "step", file_.string()));
  put_bytes(event, 5, summary);
  write(event);
}

// Appends a TFRecord: length, its masked CRC, the bytes, their masked CRC.
void EventFile::write(const std::string& event) {
  std::string length;
  put_little_endian(length, event.size(), 8);
  std::string frame = length;
  put_little_endian(frame, masked_crc(length), 4);
  frame += event;
  mark_.sum = masked_crc(event);
  put_little_endian(frame, mark_.sum, 4);
  io::write_all(descriptor_, std::as_bytes(std::span(frame)), file_);
  mark_.bytes += frame.size();
}

MetricsLog::MetricsLog(const RunFolder& folder, int64_t steps, const fs::path& checkpoint,
                       std::vector<std::string>& notes)
    : folder_(folder),
      metrics_(folder.metrics(), LinesPerStep::kOne),
      samples_(folder.samples(), LinesPerStep::kAny) {
  const int64_t last = steps > 0 ? steps : -1;  // the evaluation before the first step is repeated
  auto state = find_state(checkpoint, notes);
  if (state) {
    history_ = std::move(state->history);
  }
  if (!state || !metrics_.cut_at(state->metrics)) {
    read_metrics(last, state.has_value(), notes);
  }
  if (!state || !samples_.cut_at(state->samples)) {
    samples_.keep_steps(last, [&](const Json& line) {
      if (const auto sample = read_sample(line); sample && !state) {
        history_.add(*sample);
      }
    });
  }
  if (state) {
    events_ = EventFile::resume(folder, state->events);
  }
  if (!events_) {
    make_events();
  }
}

void MetricsLog::read_metrics(int64_t steps, bool has_history, std::vector<std::string>& notes) {
  const std::string file = folder_.metrics().string();
  constexpr size_t kMaxRanges = 5;
  std::vector<std::string> missing;  // ranges of steps without a line; at most kMaxRanges + 1
  int64_t next = 1;
  const auto add_gap_before = [&](int64_t step) {
    if (step > next && missing.size() <= kMaxRanges) {
      missing.push_back(step == next + 1 ? fmt::format("{}", next)
                                         : fmt::format("{} to {}", next, step - 1));
    }
    next = std::max(next, step + 1);
  };
  const int64_t damaged = metrics_.keep_steps(steps, [&](const Json& line) {
    add_gap_before(line["step"]);
    if (!has_history) {
      history_.add(line, file);
    }
  });
  if (damaged > 0) {
    notes.push_back(fmt::format("{}: {} damaged line{} left out", file, damaged,
                                damaged == 1 ? " was" : "s were"));
  }
  add_gap_before(steps + 1);
  if (!missing.empty()) {
    const bool has_others = missing.size() > kMaxRanges;
    missing.resize(std::min(missing.size(), kMaxRanges));
    notes.push_back(fmt::format(
        "{}: the lines of steps {}{} are missing; the other lines are kept and the run resumes",
        file, fmt::join(missing, ", "), has_others ? " and others" : ""));
  }
}

// Makes the event file from the valid lines of metrics.jsonl. Reads them twice, because the event
// file needs the total time first.
void MetricsLog::make_events() {
  const auto for_each_line = [&](const std::function<void(const Json&)>& on_line) {
    FileReader in(folder_.metrics());
    for (std::string line; in.read_whole_line(line);) {
      if (const auto json = try_parse_json(line); json && find_int(*json, "step")) {
        on_line(*json);
      }
    }
  };
  double seconds = 0;
  for_each_line([&](const Json& line) { seconds += find_number(line, "seconds").value_or(0); });
  events_.emplace(folder_, seconds);
  for_each_line([&](const Json& line) { events_->append(line); });
}

void MetricsLog::append(const OrderedJson& line, const std::vector<TextSample>& samples) {
  for (const auto& sample : samples) {
    samples_.append(to_line(sample), sample.step);
    history_.add(sample);
  }
  const Json json(line);
  history_.add(json, folder_.metrics().string());
  OrderedJson whole = line;
  const int64_t step = json["step"];
  if (const ReluStages& stages = history_.relu_stages(); stages.sparsifying_end == step) {
    whole["dense_stage_end"] = stages.dense_end;
    whole["sparsifying_stage_end"] = step;
  }
  metrics_.append(whole.dump(), step);
  events_->append(json);
}

LogState MetricsLog::state() const {
  return {metrics_.mark(), samples_.mark(), events_->mark(), history_};
}

void MetricsLog::sync() const {
  metrics_.sync();
  samples_.sync();
  events_->sync();
  io::sync_folder(folder_.path());
}

void MetricsLog::report() const {
  io::write_whole(folder_.report(), report_page(folder_.path(), history_));
}

std::optional<double> last_learning_rate(const fs::path& model) {
  for (const auto& source : {lr_from_checkpoint, lr_from_upcycle_report, lr_from_metrics}) {
    try {
      if (const auto rate = source(model)) {
        return rate;
      }
    } catch (const UserError&) {  // damaged
    } catch (const fs::filesystem_error&) {
    }
  }
  return std::nullopt;
}

}  // namespace moe::train
