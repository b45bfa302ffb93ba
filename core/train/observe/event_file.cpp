#include "core/train/observe/event_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <set>
#include <span>

#include "core/base/error.h"

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
  put_varint(event, static_cast<uint64_t>(step));
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

// Returns the CRC-32C (Castagnoli), as in TFRecord before masking.
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

uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

void add_numbers(const Json& object, const std::string& group, const std::set<std::string>& keys,
                 std::vector<std::pair<std::string, double>>& curves) {
  for (const auto& [key, value] : object.items()) {
    if (keys.count(key) > 0 && value.is_number() && std::isfinite(value.get<double>())) {
      curves.emplace_back(group + key, value.get<double>());
    }
  }
}

std::string event_name(int64_t start) {
  return fmt::format("{}{}.{}.moe", kPrefix, start, ::getpid());
}

// Returns the listed event files; all event files of moe if none is listed (older version).
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

Descriptor open_events(const fs::path& file, int flags) {
  return Descriptor(
      ::open(file.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags, 0666));
}

// Returns true if length and last event of the file match the mark.
bool fits(const Descriptor& descriptor, const EventMark& mark) {
  struct stat status {};
  std::array<unsigned char, 4> bytes{};
  if (!descriptor.is_open() || mark.bytes < bytes.size() ||
      ::fstat(descriptor.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) < mark.bytes ||
      ::pread(descriptor.get(), bytes.data(), bytes.size(),
              static_cast<off_t>(mark.bytes - bytes.size())) != std::ssize(bytes)) {
    return false;
  }
  uint32_t sum = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    sum = sum << 8 | bytes[i];
  }
  return sum == mark.sum;
}

}  // namespace

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
  std::optional<EventFile> found;
  for (const auto& file : event_files(folder)) {
    Descriptor descriptor = open_events(file, 0);
    if (found || !fits(descriptor, mark)) {
      continue;
    }
    found = EventFile();
    found->file_ = file;
    found->descriptor_ = std::move(descriptor);
    found->mark_ = mark;
  }
  struct stat status {};
  if (!found || ::fstat(found->descriptor_.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) == mark.bytes) {
    return found;
  }
  if (::ftruncate(found->descriptor_.get(), static_cast<off_t>(mark.bytes)) != 0) {
    io::throw_write_error(errno, found->file_);
  }
  // A running TensorBoard may have read beyond the cut. It reads a renamed file from its beginning.
  const std::string name = found->file_.filename().string();
  const std::string start =
      name.substr(kPrefix.size(), name.find('.', kPrefix.size()) - kPrefix.size());
  const fs::path renamed = folder.path() / event_name(std::stoll(start));
  if (renamed != found->file_) {
    folder.claim(renamed);
    fs::rename(found->file_, renamed);
    found->file_ = renamed;
  }
  return found;
}

EventFile::EventFile(const RunFolder& folder, double seconds) {
  folder.remove_events();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  mark_.clock_s = std::chrono::duration<double>(now).count() - seconds;
  file_ = folder.path() / event_name(static_cast<int64_t>(mark_.clock_s));
  folder.claim(file_);
  descriptor_ = open_events(file_, O_CREAT | O_EXCL);
  if (!descriptor_.is_open()) {
    if (errno == ENOSPC || errno == EDQUOT) {
      io::throw_write_error(errno, file_);
    }
    fail_file(file_.string(), "cannot be written");
  }
  std::string version = event_head(mark_.clock_s, 0);
  put_bytes(version, 3, "brain.Event:2");
  write(version);
}

void EventFile::append(const Json& line) {
  mark_.clock_s += get_double(line, "seconds", file_.string(), 0);
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
  put_little_endian(frame, masked(crc32c(length)), 4);
  frame += event;
  mark_.sum = masked(crc32c(event));
  put_little_endian(frame, mark_.sum, 4);
  io::write_all(descriptor_, std::as_bytes(std::span(frame)), file_);
  mark_.bytes += frame.size();
}

}  // namespace moe::train
