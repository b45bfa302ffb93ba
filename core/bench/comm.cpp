#include "core/bench/comm.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>

#include "core/base/error.h"

namespace moe::bench {
namespace {

using at::Tensor;
using Operation = std::function<void()>;

constexpr int64_t kSizeFactor = 8;

// The slowest rank's time of each of `repeats` calls, which begin together.
Timing time_together(distributed::Comm& comm, int64_t repeats, const Operation& operation) {
  std::vector<int64_t> rank_ns;
  operation();
  operation();
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    comm.barrier();
    const auto begin = std::chrono::steady_clock::now();
    operation();
    rank_ns.push_back((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1));
  }
  std::vector<double> slowest(rank_ns.size(), 0);
  for (const auto& rank : distributed::gather_numbers(comm, rank_ns)) {
    for (size_t repeat = 0; repeat < rank.size(); ++repeat) {
      slowest[repeat] = std::max(slowest[repeat], static_cast<double>(rank[repeat]) / 1e9);
    }
  }
  return timing_of(std::move(slowest));
}

Operation make_operation(distributed::Comm& comm, const std::string& name, const Tensor& whole) {
  const int64_t size = comm.size(), length = whole.numel() / size;
  const Tensor piece = at::empty({length}, whole.options());
  const Tensor other = at::empty_like(whole);
  const std::vector<int64_t> rows(static_cast<size_t>(size), length);
  if (name == "all_to_all") {
    return [=, &comm] { comm.all_to_all(whole, rows, other, rows)->wait(); };
  }
  if (name == "all_reduce") {
    return [=, &comm] { comm.all_reduce(whole); };
  }
  if (name == "all_gather") {
    return [=, &comm] { comm.all_gather(piece, whole); };
  }
  MOE_CHECK(name == "reduce_scatter", "{}", name);
  return [=, &comm] { comm.reduce_scatter(whole, piece); };
}

CommRow measure(distributed::Comm& comm, const std::string& name, int64_t bytes, int64_t repeats) {
  const int64_t size = comm.size(), length = std::max<int64_t>(1, bytes / 4 / size);
  const Tensor whole =
      at::zeros({length * size}, at::TensorOptions(at::kFloat).device(comm.device()));
  CommRow row{name, whole.numel() * 4, {}, 0};
  row.time = time_together(comm, repeats, make_operation(comm, name, whole));
  const double sent = static_cast<double>(row.bytes) * static_cast<double>(size - 1) /
                      static_cast<double>(size) * (name == "all_reduce" ? 2 : 1);
  row.rate = sent / row.time.median_s;
  return row;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Link link_of(distributed::Comm& comm, const CommSettings& settings) {
  const CommRow small = measure(comm, "all_to_all", kLeastBytes, settings.repeats);
  const CommRow large = measure(comm, "all_to_all", settings.most_bytes, settings.repeats);
  return {small.time.median_s, large.rate};
}

}  // namespace

CommReport bench_comm(distributed::Comm& comm, const CommSettings& settings) {
  const auto hosts = distributed::gather_texts(comm, host_name());
  CommReport report{
      comm.size(), static_cast<int64_t>(std::set(hosts.begin(), hosts.end()).size()), {}, {}, {}};
  if (comm.size() == 1) {
    return report;
  }
  for (const std::string name : {"all_to_all", "all_reduce", "all_gather", "reduce_scatter"}) {
    for (int64_t bytes = kLeastBytes; bytes <= settings.most_bytes; bytes *= kSizeFactor) {
      report.rows.push_back(measure(comm, name, bytes, settings.repeats));
    }
  }
  if (report.hosts == 1) {
    report.within_host = link_of(comm, settings);
    return report;
  }
  report.between_hosts = link_of(comm, settings);
  std::vector<int64_t> neighbours;
  for (int64_t rank = 0; rank < comm.size(); ++rank) {
    if (hosts[rank] == hosts[comm.rank()]) {
      neighbours.push_back(rank);
    }
  }
  const auto part = comm.part("host", neighbours);
  const Link link = part->size() > 1 ? link_of(*part, settings) : Link{};
  const auto rates = distributed::sum_numbers(
      comm, {part->size() > 1 ? 1.0 : 0.0, link.latency_s, link.bytes_per_s});
  if (rates[0] > 0) {
    report.within_host = Link{rates[1] / rates[0], rates[2] / rates[0]};
  }
  return report;
}

OrderedJson to_json(const CommReport& report) {
  OrderedJson json = {
      {"ranks", report.ranks}, {"hosts", report.hosts}, {"rows", OrderedJson::array()}};
  for (const CommRow& row : report.rows) {
    OrderedJson json_row = {{"name", fmt::format("{} of {}", row.operation, row.bytes)},
                            {"operation", row.operation},
                            {"bytes", row.bytes}};
    json_row.update(to_json(row.time));
    json_row["bytes_per_second"] = row.rate;
    json["rows"].push_back(json_row);
  }
  for (const auto& [name, link] : {std::pair("within_host", report.within_host),
                                   std::pair("between_hosts", report.between_hosts)}) {
    if (link) {
      json[name] = {{"latency_s", link->latency_s}, {"bytes_per_second", link->bytes_per_s}};
    }
  }
  return json;
}

}  // namespace moe::bench
