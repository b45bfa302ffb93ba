#include "core/train/observe/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <set>

#include "core/base/error.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

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

// Protocol buffers: field number and wire type, then the value.
enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_key(std::string& out, uint64_t field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_bytes(std::string& out, uint64_t field, const std::string& value) {
  put_key(out, field, kBytes);
  put_varint(out, value.size());
  out += value;
}

// Event {wall_time = 1 (double), step = 2}; the rest is appended by the caller.
std::string event_head(double wall_time_s, int64_t step) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(wall_time_s), 8);
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

// Summary.Value {tag = 1, simple_value = 2 (float)} in Summary {value = 1}.
void put_value(std::string& summary, const std::string& tag, double number) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, kFixed32);
  put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
  put_bytes(summary, 1, value);
}

uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void add_numbers(const Json& object, const std::string& group, const std::set<std::string>& keys,
                 std::vector<std::pair<std::string, double>>& curves) {
  for (const auto& [key, value] : object.items()) {
    if (keys.count(key) > 0 && value.is_number() && std::isfinite(value.get<double>())) {
      curves.emplace_back(group + key, value.get<double>());
    }
  }
}

std::vector<Json> lines_of(const fs::path& metrics_file) {
  std::ifstream in(metrics_file, std::ios::binary);
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(parse_json(line, metrics_file.string()));
  }
  return lines;
}

}  // namespace

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

std::vector<std::pair<std::string, double>> curves_of(const Json& line) {
  static const std::set<std::string> train = {"loss",
                                              "grad_norm",
                                              "lr",
                                              "tokens_per_second",
                                              "data_wait_seconds",
                                              "skipped_steps",
                                              "skipped_outliers",
                                              "load_balance_loss",
                                              "entropy_loss",
                                              "l1_loss",
                                              "auxiliary_loss",
                                              "lambda"};
  static const std::set<std::string> routing = {
      "dropped_share", "unserved_share", "filled_share",       "ir_share",    "experts_per_token",
      "sparsity",      "entropy",        "load_max_over_mean", "dead_experts"};
  static const std::set<std::string> layer = {"dropped_share", "experts_per_token",
                                              "load_max_over_mean", "dead_experts"};
  std::vector<std::pair<std::string, double>> curves;
  add_numbers(line, "train/", train, curves);
  add_numbers(line, "routing/", routing, curves);
  add_numbers(line, "train/", {"held_out_loss"}, curves);
  const Json tasks = line.value("tasks", Json::object());
  for (const auto& [task, scores] : tasks.items()) {
    add_numbers(scores, "tasks/" + task + "/", {"acc", "acc_norm"}, curves);
  }
  for (const auto& one : line.value("layers", Json::array())) {
    add_numbers(one, fmt::format("layer_{}/", one.value("layer", int64_t{0})), layer, curves);
  }
  return curves;
}

EventFile::EventFile(const fs::path& folder, const fs::path& metrics_file) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kPrefix)) {
      fs::remove(entry.path());
    }
  }
  const std::vector<Json> lines = lines_of(metrics_file);
  double spent_s = 0;
  for (const auto& line : lines) {
    spent_s += get_double(line, "seconds", metrics_file.string(), 0);
  }
  clock_s_ = now_s() - spent_s;
  file_ = folder / fmt::format("{}{}.{}.moe", kPrefix, static_cast<int64_t>(clock_s_), ::getpid());
  out_.open(file_, std::ios::binary | std::ios::trunc);
  std::string version = event_head(clock_s_, 0);
  put_bytes(version, 3, "brain.Event:2");
  write(version);
  for (const auto& line : lines) {
    append(line);
  }
}

void EventFile::append(const Json& line) {
  clock_s_ += get_double(line, "seconds", file_.string(), 0);
  std::string summary;
  for (const auto& [tag, value] : curves_of(line)) {
    put_value(summary, tag, value);
  }
  std::string event = event_head(clock_s_, get_int(line, "step", file_.string()));
  put_bytes(event, 5, summary);
  write(event);
}

// TFRecord: length, its masked CRC, the bytes, theirs.
void EventFile::write(const std::string& event) {
  std::string length;
  put_little_endian(length, event.size(), 8);
  std::string frame = length;
  put_little_endian(frame, masked(crc32c(length)), 4);
  frame += event;
  put_little_endian(frame, masked(crc32c(event)), 4);
  out_.write(frame.data(), static_cast<std::streamsize>(frame.size())).flush();
  if (!out_) {
    throw UserError("{}: cannot be written any more; is the disk full?", file_.string());
  }
}

}  // namespace moe::train
