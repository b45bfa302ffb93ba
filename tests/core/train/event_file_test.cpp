#include "core/train/observe/event_file.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using moe::test::read_file;
using moe::test::TempDir;
using moe::test::write_file;
namespace fs = std::filesystem;

namespace {

// Bitwise reference of the CRC-32C (Castagnoli) checksum.
uint32_t slow_crc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
    }
  }
  return crc ^ 0xffffffff;
}

uint64_t little_endian(const std::string& bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  }
  return value;
}

// Returns the payloads of all frames. Checks lengths and checksums.
std::vector<std::string> read_frames(const std::string& bytes) {
  const auto masked = [](const std::string& part) {
    const uint32_t crc = slow_crc32c(part);
    return static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8U);
  };
  std::vector<std::string> frames;
  for (size_t at = 0; at < bytes.size();) {
    REQUIRE(at + 12 <= bytes.size());
    const auto length = static_cast<size_t>(little_endian(bytes, at, 8));
    CHECK(little_endian(bytes, at + 8, 4) == masked(bytes.substr(at, 8)));
    REQUIRE(at + 16 + length <= bytes.size());
    frames.push_back(bytes.substr(at + 12, length));
    CHECK(little_endian(bytes, at + 12 + length, 4) == masked(frames.back()));
    at += 16 + length;
  }
  return frames;
}

fs::path find_event_file(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      CHECK(found.empty());
      found = entry.path();
    }
  }
  return found;
}

// The folder of a run that has begun.
struct Run {
  TempDir dir;
  RunFolder folder{dir / "run", dir / "model", false};

  Run() { folder.begin("[train]\n", RunState::kNew); }
  const fs::path& path() const { return folder.path(); }
};

}  // namespace

TEST_CASE("curves are the numbers of a line of metrics.jsonl", "[train]") {
  using Curves = std::vector<std::pair<std::string, double>>;
  for (const auto& [line, curves] : std::vector<std::pair<const char*, Curves>>{
           {R"({"step": 3, "loss": 1.5, "lr": null, "tokens": 8, "dropped_share": 0.25,
               "layers": [{"layer": 2, "experts_per_token": 2, "requests": 9, "load": [1, 2]}]})",
            {{"train/loss", 1.5},
             {"routing/dropped_share", 0.25},
             {"layer_2/experts_per_token", 2.0}}},
           {R"({"step": 3, "z_loss": 1.5, "sequence_balance_loss": 2.5})",
            {{"train/sequence_balance_loss", 2.5}, {"train/z_loss", 1.5}}},
           {R"({"step": 0, "held_out_loss": 2.5, "evaluation_seconds": 1,
               "tasks": {"piqa": {"acc": 0.5, "acc_norm": 0.25, "acc_stderr": 0.1}}})",
            {{"train/held_out_loss", 2.5},
             {"tasks/piqa/acc", 0.5},
             {"tasks/piqa/acc_norm", 0.25}}}}) {
    CHECK((scalars(Json::parse(line)) == curves));
  }
}

TEST_CASE("an event file has the version and an event per line, with checksums and times",
          "[train]") {
  CHECK(slow_crc32c("123456789") == 0xe3069283);  // check value of RFC 3720
  const Run run;
  { EventFile earlier(run.folder, 0); }
  {
    EventFile events(run.folder, 1.0);
    events.append(Json::parse(R"({"step": 1, "loss": 2.5, "seconds": 0.5})"));
    events.append(Json::parse(R"({"step": 2, "loss": 2, "seconds": 0.5})"));
    events.append(Json::parse(R"({"step": 300, "loss": 1.25, "seconds": 1})"));
    events.sync();
  }
  const auto frames = read_frames(read_file(find_event_file(run.path())));
  REQUIRE(frames.size() == 4);
  CHECK(frames[0].find("brain.Event:2") != std::string::npos);
  // Event: 09 wall time, 10 step, 2a summary { 0a value { 0a tag, 15 float } }.
  const auto wall_time = [&](size_t i) {
    return std::bit_cast<double>(little_endian(frames[i], 1, 8));
  };
  CHECK(wall_time(2) - wall_time(1) == Approx(0.5).margin(1e-5));
  CHECK(wall_time(3) - wall_time(2) == Approx(1.0).margin(1e-5));
  const std::string value("\x0a\x11\x0a\x0atrain/loss\x15", 15);
  const std::string last = frames[3].substr(9);
  CHECK(last.substr(0, 3) == std::string("\x10\xac\x02", 3));  // 300 as a varint
  CHECK(last.substr(3, 2) == std::string("\x2a\x13", 2));
  CHECK(last.substr(5, 15) == value);
  CHECK(std::bit_cast<float>(static_cast<uint32_t>(little_endian(last, 20, 4))) == 1.25F);
  CHECK(last.size() == 24);
}

TEST_CASE("an event file resumes at its mark if it is the same file", "[train]") {
  const Run run;
  EventMark mark;
  std::string marked, whole;
  {
    EventFile events(run.folder, 0);
    events.append(Json::parse(R"({"step": 1, "loss": 2.5, "seconds": 0.5})"));
    mark = events.mark();
    marked = read_file(find_event_file(run.path()));
    events.append(Json::parse(R"({"step": 2, "loss": 7, "seconds": 0.5})"));
    whole = read_file(find_event_file(run.path()));
  }
  CHECK(mark.bytes == marked.size());
  const auto resume = [&](const std::string& text, const EventMark& from) {
    write_file(find_event_file(run.path()), text);
    auto events = EventFile::resume(run.folder, from);
    if (events) {
      events->append(Json::parse(R"({"step": 2, "loss": 2, "seconds": 0.5})"));
    }
    return events.has_value();
  };
  REQUIRE(resume(whole, mark));
  const std::string after = read_file(find_event_file(run.path()));
  CHECK(after.starts_with(marked));
  CHECK(read_frames(after).size() == 3);
  CHECK(after != whole);
  CHECK(after.size() == whole.size());
  CHECK_FALSE(resume(marked.substr(0, marked.size() - 1), mark));
  CHECK_FALSE(resume(std::string(marked.size(), 'x'), mark));
  CHECK_FALSE(resume(whole, {0, 0, 0}));
  CHECK_FALSE(resume(whole, {mark.bytes, mark.sum + 1, 0}));
  fs::remove(find_event_file(run.path()));
  CHECK_FALSE(EventFile::resume(run.folder, mark).has_value());
}
