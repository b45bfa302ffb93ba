#include "core/distributed/comm.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "core/base/error.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"

namespace moe::bench {
namespace {

using at::Tensor;

constexpr int64_t kMinBytes = 64, kSizeFactor = 8;

// Times `repeats` calls that all ranks start together, after two to warm up. Returns the time of
// the slowest rank for each call.
Timing time_together(distributed::Comm& comm, int64_t repeats, const std::function<void()>& call) {
  std::vector<int64_t> own_ns;
  call();
  call();
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    comm.barrier();
    const double start = wall_s();
    call();
    own_ns.push_back(static_cast<int64_t>((wall_s() - start) * 1e9));
  }
  std::vector<double> slowest(own_ns.size(), 0);
  for (const auto& rank_ns : distributed::gather_numbers(comm, own_ns)) {
    for (size_t repeat = 0; repeat < rank_ns.size(); ++repeat) {
      slowest[repeat] = std::max(slowest[repeat], rank_ns[repeat] / 1e9);
    }
  }
  return make_timing(std::move(slowest));
}

// Times one collective. `bytes`: size of a rank's input, or of the output of all_gather. In the
// result, "bytes_per_second" counts the bytes that a rank sends to others, at the median.
OrderedJson time_collective(distributed::Comm& comm, const std::string& name, int64_t bytes,
                            int64_t repeats) {
  const int64_t size = comm.size(), length = std::max<int64_t>(1, bytes / 4 / size);
  const auto options = at::TensorOptions(at::kFloat).device(comm.device());
  const Tensor whole = at::zeros({length * size}, options), other = at::zeros_like(whole);
  const Tensor part = at::zeros({length}, options);
  const std::vector<int64_t> rows(size, length);
  const auto call = [&] {
    if (name == "all_to_all") {
      comm.all_to_all(whole, rows, other, rows).wait();
    } else if (name == "all_reduce") {
      comm.all_reduce(whole);
    } else if (name == "all_gather") {
      comm.all_gather(part, whole);
    } else {
      comm.reduce_scatter(whole, part);
    }
  };
  const Timing timing = time_together(comm, repeats, call);
  const double sent = static_cast<double>(4 * length * (size - 1)) * (name == "all_reduce" ? 2 : 1);
  OrderedJson row = {{"bytes", whole.numel() * 4}};
  row.update(to_json(timing));
  row["bytes_per_second"] = sent / timing.median_s;
  return row;
}

OrderedJson time_collectives(distributed::Comm& comm, int64_t max_bytes, int64_t repeats) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto hosts = distributed::gather_texts(comm, host.data());
  const size_t num_hosts = std::set(hosts.begin(), hosts.end()).size();
  OrderedJson rows = OrderedJson::object();
  double rate = 0;
  for (const std::string name : {"all_to_all", "all_reduce", "all_gather", "reduce_scatter"}) {
    for (int64_t bytes = kMinBytes; bytes <= max_bytes; bytes *= kSizeFactor) {
      OrderedJson row = time_collective(comm, name, bytes, repeats);
      rate = name == "all_to_all" ? row["bytes_per_second"].get<double>() : rate;
      rows[fmt::format("{} {}", name, bytes)] = std::move(row);
    }
  }
  return {
      {"ranks", comm.size()},
      {"hosts", num_hosts},
      {"rows", rows},
      {num_hosts == 1 ? "within_host" : "between_hosts",
       {{"latency_s", rows.front()["median_ms"].get<double>() / 1e3}, {"bytes_per_second", rate}}}};
}

}  // namespace

std::optional<OrderedJson> bench_comm(const CommSettings& settings, c10::Device device) {
  USER_ERROR_IF(settings.max_bytes < kMinBytes,
                "--bytes: the smallest tensor measured has {} bytes; give more", kMinBytes);
  std::optional<OrderedJson> report;
  distributed::RankSettings ranks = settings.ranks;
  ranks.on_cuda = device.is_cuda();  // the setting of --device
  distributed::run_on_ranks(ranks, [&](distributed::Comm& comm) {
    USER_ERROR_IF(comm.size() == 1,
                  "moe bench comm measures collectives between ranks, and there is one; give "
                  "--ranks N, or start it with torchrun, mpirun or srun");
    distributed::check_same_on_all_ranks(
        comm, "the sizes",
        fmt::format("bytes {}\nrepeats {}", settings.max_bytes, settings.repeats));
    OrderedJson json =
        time_collectives(comm, static_cast<int64_t>(settings.max_bytes), settings.repeats);
    if (comm.rank() == 0) {
      report = std::move(json);
    }
  });
  return report;
}

}  // namespace moe::bench
