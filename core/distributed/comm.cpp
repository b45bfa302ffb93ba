#include "core/distributed/comm.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {

using at::Tensor;

namespace {

class Solo : public Comm {
 public:
  explicit Solo(at::Device device) : device_(device) {}

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input,
                                       const std::vector<int64_t>& /*input_rows*/,
                                       const Tensor& output,
                                       const std::vector<int64_t>& /*output_rows*/) override {
    output.copy_(input);
    return std::make_unique<Transfer>();
  }
  void all_reduce(const Tensor& /*tensor*/) override {}
  void reduce_scatter(const Tensor& input, const Tensor& output) override { output.copy_(input); }
  void all_gather(const Tensor& input, const Tensor& output) override { output.copy_(input); }
  void broadcast(const Tensor& /*tensor*/, int64_t /*root*/) override {}
  void barrier() override {}
  std::unique_ptr<Comm> part(const std::string& /*name*/,
                             const std::vector<int64_t>& /*members*/) override {
    return solo_comm(device_);
  }

 private:
  at::Device device_;
};

// Gathers a tensor of equal shape on all ranks. Returns [size, ...] on the host.
Tensor gather_on_host(Comm& comm, const Tensor& values) {
  const Tensor output =
      at::empty({comm.size(), values.numel()}, values.options().device(comm.device()));
  comm.all_gather(values.to(comm.device()), output.view({-1}));
  comm.synchronize();
  return output.cpu();
}

// First character of the text in which a rank reports an exception to the others.
constexpr char kUser = 'u', kInterrupt = 'i', kOther = 'o';

// Runs `body`. Returns "", or the kind and the message of its exception.
std::string run_and_report(Comm& comm, const std::function<void()>& body) {
  const auto operation = comm.long_operation();
  try {
    body();
    return "";
  } catch (const UserError& error) {
    return kUser + std::string(error.what());
  } catch (const Interrupted& stopped) {
    return kInterrupt + std::string(stopped.what());
  } catch (const std::exception& error) {
    return kOther + std::string(error.what());
  }
}

std::string next_line(std::istringstream& stream) {
  constexpr size_t kMaxShown = 120;
  std::string line;
  std::getline(stream, line);
  return line.size() <= kMaxShown ? line : line.substr(0, kMaxShown) + "..";
}

// Returns " ('seed = 2' where rank 0 has 'seed = 1')".
std::string first_difference(const std::string& first, const std::string& other) {
  std::istringstream expected_lines(first), found_lines(other);
  while (expected_lines || found_lines) {
    const std::string expected = next_line(expected_lines), found = next_line(found_lines);
    if (expected != found) {
      return fmt::format(" ('{}' where rank 0 has '{}')", found, expected);
    }
  }
  return "";
}

// Returns the `count` ranks first, first + stride, ...
std::vector<int64_t> ranks_from(int64_t first, int64_t stride, int64_t count) {
  std::vector<int64_t> ranks(count);
  std::generate(ranks.begin(), ranks.end(),
                [&, next = first]() mutable { return std::exchange(next, next + stride); });
  return ranks;
}

}  // namespace

std::unique_ptr<Transfer> Comm::start_all_gather(const Tensor& input, const Tensor& output) {
  all_gather(input, output);
  return std::make_unique<Transfer>();
}

std::unique_ptr<Comm> solo_comm(at::Device device) { return std::make_unique<Solo>(device); }

std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, const std::vector<int64_t>& values) {
  const Tensor gathered = gather_on_host(comm, at::tensor(values, at::kLong));
  std::vector<std::vector<int64_t>> all;
  const auto* next = gathered.const_data_ptr<int64_t>();
  for (int64_t rank = 0; rank < comm.size(); ++rank, next += values.size()) {
    all.emplace_back(next, next + values.size());
  }
  return all;
}

std::vector<std::string> gather_texts(Comm& comm, const std::string& text) {
  const auto lengths = gather_numbers(comm, {static_cast<int64_t>(text.size())});
  const Tensor padded =
      at::zeros({std::max_element(lengths.begin(), lengths.end())->front()}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  const Tensor gathered = gather_on_host(comm, padded);
  std::vector<std::string> all;
  const auto* next = static_cast<const char*>(gathered.const_data_ptr());
  for (int64_t rank = 0; rank < comm.size(); ++rank, next += padded.numel()) {
    all.emplace_back(next, static_cast<size_t>(lengths[rank].front()));
  }
  return all;
}

std::vector<double> sum_numbers(Comm& comm, const std::vector<double>& values) {
  const Tensor sums = at::tensor(values, at::kDouble).to(comm.device());
  comm.all_reduce(sums);
  comm.synchronize();
  const Tensor host = sums.cpu();
  const double* begin = host.const_data_ptr<double>();
  return {begin, begin + values.size()};
}

void on_all_ranks(Comm* ranks, const std::function<void()>& body) {
  if (ranks == nullptr || ranks->size() == 1) {
    return body();
  }
  const auto reports = gather_texts(*ranks, run_and_report(*ranks, body));
  for (const char kind : {kUser, kInterrupt, kOther}) {
    const auto found = std::find_if(reports.begin(), reports.end(),
                                    [&](const auto& report) { return report.starts_with(kind); });
    if (found == reports.end()) {
      continue;
    }
    const std::string message = found->substr(1);
    if (kind == kUser) {
      throw UserError("{}", message);
    }
    if (kind == kInterrupt) {
      throw Interrupted(message);
    }
    throw std::runtime_error(fmt::format("rank {}: {}", found - reports.begin(), message));
  }
}

bool any_rank(Comm* ranks, bool statement) {
  return ranks == nullptr || ranks->size() == 1
             ? statement
             : sum_numbers(*ranks, {statement ? 1.0 : 0.0}).front() > 0;
}

void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text) {
  constexpr size_t kMaxSent = 1 << 20;
  const auto hashes = gather_texts(ranks, sha256_hex(text));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const auto& hash) { return hash != hashes.front(); });
  if (other == hashes.end()) {
    return;
  }
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto texts = gather_texts(ranks, text.substr(0, kMaxSent));
  throw UserError("rank {} disagrees with rank 0 on {}{}; start all ranks with the same", rank,
                  what, first_difference(texts.front(), texts[rank]));
}

std::vector<int64_t> ranks_of_this_host(Comm& ranks) {
  const std::vector<std::string> machines = gather_texts(ranks, this_machine());
  std::vector<int64_t> same;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    if (machines[rank] == machines[ranks.rank()]) {
      same.push_back(rank);
    }
  }
  return same;
}

std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force) {
  if (ranks != nullptr && ranks->size() > 1) {
    need.processes = static_cast<int64_t>(ranks_of_this_host(*ranks).size());
  }
  std::optional<std::string> shortage;
  on_all_ranks(ranks, [&] { shortage = moe::check_memory(need, force); });
  return shortage;
}

Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts) {
  MOE_CHECK(rank >= 0 && rank < processes, "rank {} of {}", rank, processes);
  if (experts == 0) {
    if (replicas.value_or(processes) != processes) {
      throw UserError(
          "--replicas {}: a dense model has no experts to share out, each of the {} processes is a "
          "replica; leave out --replicas",
          *replicas, processes);
    }
    return {processes, rank, processes, 1, 1};
  }
  const Layout layout{processes, rank,
                      replicas.value_or(processes / std::gcd(processes, logical_ranks)),
                      logical_ranks, experts};
  if (layout.replicas < 1 || processes % layout.replicas != 0) {
    throw UserError("--replicas {} does not divide the {} processes; give a divisor of it",
                    layout.replicas, processes);
  }
  if (logical_ranks % layout.group() != 0) {
    throw UserError(
        "{} processes share the experts of a replica, and do not divide --ep-ranks {}; give other "
        "--ep-ranks, or more --replicas",
        layout.group(), logical_ranks);
  }
  if (experts % logical_ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; give a divisor of it",
                    logical_ranks, experts);
  }
  return layout;
}

std::string describe(const Layout& layout) {
  return fmt::format(
      "{} processes = {} replica{} x {} in an expert-parallel group; {} logical ranks, {} a "
      "process; {} experts, {} a process",
      layout.processes, layout.replicas, layout.replicas == 1 ? "" : "s", layout.group(),
      layout.logical_ranks, layout.local_logical_ranks(), layout.experts, layout.local_experts());
}

Part::Part(int64_t count, const Comm& comm)
    : length((count + comm.size() - 1) / comm.size()),
      begin(std::min(count, comm.rank() * length)),
      end(std::min(count, begin + length)) {}

World::World(Comm& all_ranks, const Layout& its_layout)
    : layout(its_layout),
      all(all_ranks),
      group(all_ranks.part("group",
                           ranks_from(layout.replica() * layout.group(), 1, layout.group()))),
      replicas(all_ranks.part("replicas",
                              ranks_from(layout.ep_rank(), layout.group(), layout.replicas))) {}

void World::set_trace(const TraceContext& trace) {
  all.trace = group->trace = replicas->trace = trace;
}

}  // namespace moe::distributed
