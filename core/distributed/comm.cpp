#include "core/distributed/comm.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {
namespace {

using at::Tensor;

// Gathers a tensor of equal shape on all ranks. Returns [size, ...] on the host.
Tensor gather_on_host(Comm& comm, const Tensor& values) {
  const Tensor output =
      at::empty({comm.size(), values.numel()}, values.options().device(comm.device()));
  comm.all_gather(values.to(comm.device()), output.view({-1}));
  comm.synchronize();
  return output.cpu();
}

// Returns " ('seed = 2' where rank 0 has 'seed = 1')" for the first lines that differ.
std::string first_difference(const std::string& first, const std::string& other) {
  std::istringstream expected_lines(first), found_lines(other);
  std::string expected, found;
  while (expected == found && (expected_lines || found_lines)) {
    expected = found = "";
    std::getline(expected_lines, expected);
    std::getline(found_lines, found);
  }
  return expected == found
             ? ""
             : fmt::format(" ('{}' where rank 0 has '{}')", printable(found), printable(expected));
}

// Returns `count` ranks: first, first + stride, ...
std::vector<int64_t> ranks_from(int64_t first, int64_t stride, int64_t count) {
  std::vector<int64_t> ranks(count);
  for (int64_t& rank : ranks) {
    rank = std::exchange(first, first + stride);
  }
  return ranks;
}

}  // namespace

Transfer Comm::all_to_all(const Tensor& input, at::IntArrayRef /*input_rows*/, const Tensor& output,
                          at::IntArrayRef /*output_rows*/) {
  return start_all_gather(input, output);
}

void Comm::reduce_scatter(const Tensor& input, const Tensor& output) { output.copy_(input); }

Transfer Comm::start_all_gather(const Tensor& input, const Tensor& output) {
  output.copy_(input);
  return Transfer();
}

std::unique_ptr<Comm> Comm::split(at::IntArrayRef /*members*/) { return solo_comm(device_); }

std::vector<std::vector<int64_t>> gather_numbers(Comm& comm, at::IntArrayRef values) {
  std::vector<std::vector<int64_t>> all;
  for (const Tensor& row : gather_on_host(comm, at::tensor(values, at::kLong)).unbind()) {
    const auto* begin = row.const_data_ptr<int64_t>();
    all.emplace_back(begin, begin + values.size());
  }
  return all;
}

std::vector<std::string> gather_texts(Comm& comm, const std::string& text) {
  const auto lengths = gather_numbers(comm, {std::ssize(text)});
  const Tensor padded =
      at::zeros({std::max_element(lengths.begin(), lengths.end())->front()}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  std::vector<std::string> all;
  for (const Tensor& row : gather_on_host(comm, padded).unbind()) {
    all.emplace_back(static_cast<const char*>(row.const_data_ptr()), lengths[all.size()].front());
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
  std::string report;  // exit code and message
  try {
    const auto operation = ranks->long_operation();
    body();
  } catch (...) {
    const ExitReason reason = describe_exception(ranks->rank());
    report = static_cast<char>(reason.exit_code) + reason.text;
  }
  const auto reports = gather_texts(*ranks, report);
  for (const int exit_code : {kUserError, kInterrupted, kFailed}) {
    const auto found = std::ranges::find_if(
        reports, [&](const auto& text) { return text.starts_with(static_cast<char>(exit_code)); });
    if (found != reports.end()) {
      throw_reason({found - reports.begin(), exit_code, found->substr(1)});
    }
  }
}

bool any_rank(Comm* ranks, bool statement) {
  return ranks == nullptr || ranks->size() == 1
             ? statement
             : sum_numbers(*ranks, {statement ? 1.0 : 0.0}).front() > 0;
}

void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text) {
  constexpr size_t kMaxSent = 1 << 20;  // bytes; the text has a line per tensor
  const auto hashes = gather_texts(ranks, sha256_hex(text));
  const auto other = std::ranges::find_if(hashes, [&](const auto& h) { return h != hashes[0]; });
  if (other == hashes.end()) {
    return;
  }
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const auto texts = gather_texts(ranks, text.substr(0, kMaxSent));
  throw UserError("rank {} disagrees with rank 0 on {}{}; start all ranks with the same", rank,
                  what, first_difference(texts[0], texts[rank]));
}

std::vector<int64_t> same_host_ranks(Comm& ranks) {
  const std::vector<std::string> machines = gather_texts(ranks, this_machine());
  std::vector<int64_t> same = ranks_from(0, 1, ranks.size());
  std::erase_if(same, [&](int64_t rank) { return machines[rank] != machines[ranks.rank()]; });
  return same;
}

std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force) {
  if (ranks != nullptr && ranks->size() > 1) {
    need.processes = static_cast<int64_t>(same_host_ranks(*ranks).size());
  }
  std::optional<std::string> shortage;
  on_all_ranks(ranks, [&] { shortage = moe::check_memory(need, force); });
  return shortage;
}

Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts) {
  MOE_CHECK(rank >= 0 && rank < processes, "rank {} of {}", rank, processes);
  if (experts == 0) {
    USER_ERROR_IF(replicas.value_or(processes) != processes,
                  "--replicas {}: a dense model has no experts to share out, each of the {} "
                  "processes is a replica; leave out --replicas",
                  *replicas, processes);
    return {processes, rank, processes, 1, 1};
  }
  const Layout layout{processes, rank,
                      replicas.value_or(processes / std::gcd(processes, logical_ranks)),
                      logical_ranks, experts};
  USER_ERROR_IF(layout.replicas < 1 || processes % layout.replicas != 0,
                "--replicas {} does not divide the {} processes; give a divisor", layout.replicas,
                processes);
  USER_ERROR_IF(logical_ranks % layout.group() != 0,
                "{} processes share the experts of a replica, and do not divide --ep-ranks {}; "
                "give other --ep-ranks, or more --replicas",
                layout.group(), logical_ranks);
  USER_ERROR_IF(experts % logical_ranks != 0,
                "--ep-ranks {} does not divide the {} experts; give a divisor", logical_ranks,
                experts);
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
      group(all_ranks.split(ranks_from(layout.replica() * layout.group(), 1, layout.group()))),
      replicas(all_ranks.split(ranks_from(layout.ep_rank(), layout.group(), layout.replicas))) {}

}  // namespace moe::distributed
