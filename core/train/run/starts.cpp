#include "core/train/run/starts.h"

#include <ATen/Parallel.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <span>

#include "core/base/version.h"
#include "core/io/file.h"
#include "core/train/observe/step_lines.h"

namespace moe::train {

namespace {

// "Intel(R) Xeon(R) Processor @ 2.10GHz", where /proc says so.
std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "processor unknown";
}

std::string machine() {
  utsname system{};
  ::uname(&system);
  const auto pages = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  return fmt::format("{}, {} cores, {} of memory, {} {} {}", processor_name(),
                     ::sysconf(_SC_NPROCESSORS_ONLN), io::size_text(pages * page_bytes),
                     system.sysname, system.release, system.machine);
}

}  // namespace

std::string time_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min);
}

OrderedJson describe_start(int64_t step) {
  return {{"step", step},         {"time", time_text()},
          {"moe", kVersion},      {"libtorch", TORCH_VERSION},
          {"machine", machine()}, {"threads", at::get_num_threads()}};
}

void append_start(const std::filesystem::path& file, const OrderedJson& start) {
  const io::Descriptor descriptor = open_lines(file);
  const std::string line = start.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  io::write_all(descriptor, std::as_bytes(std::span(line)), file);
  io::sync(descriptor, file);
}

std::vector<Json> read_starts(const std::filesystem::path& file) {
  std::vector<Json> starts;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    Json start = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!start.is_object()) {
      break;
    }
    starts.push_back(std::move(start));
  }
  return starts;
}

}  // namespace moe::train
