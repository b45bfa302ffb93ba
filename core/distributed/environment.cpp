#include "core/distributed/environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

// Of our own launcher.
constexpr const char* kInheritedStore = "MOE_STORE_DESCRIPTOR";
constexpr int64_t kFirstDescriptor = 3, kMaxDescriptor = 1 << 20;  // 0 to 2: standard streams
// Below 32768, where Linux begins to give ports to whoever asks.
constexpr uint32_t kFirstPort = 20000, kPorts = 12000;

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const std::string& name) const { return variables_.count(name) > 0; }
  std::string text(const std::string& name) const { return has(name) ? variables_.at(name) : ""; }

  int64_t number(const std::string& name, int64_t least, int64_t most) const {
    const std::string value = text(name);
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error != std::errc() || end != value.data() + value.size() || value.empty() ||
        parsed < least || parsed > most) {
      throw UserError("the environment says {}='{}', which is no whole number from {} to {}", name,
                      value, least, most);
    }
    return parsed;
  }

  std::optional<int64_t> maybe(const std::string& name, int64_t least, int64_t most) const {
    return has(name) ? std::optional(number(name, least, most)) : std::nullopt;
  }

 private:
  const Variables& variables_;
};

// What a launcher calls things.
struct VariableNames {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // processes on this host
  const char* job;         // a text of its own for each run
};

constexpr VariableNames kTorchrun = {
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
constexpr VariableNames kOpenMpi = {"mpirun",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE"};
constexpr VariableNames kMpich = {"mpirun",          "PMI_RANK",        "PMI_SIZE",
                                  "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_PORT"};
constexpr VariableNames kSlurm = {"srun",          "SLURM_PROCID", "SLURM_NTASKS",
                                  "SLURM_LOCALID", nullptr,        "SLURM_JOB_ID"};

// The script of sbatch is told of a rank and a size too; only the processes of srun are ranks.
bool is_batch_script(const Reader& reader) {
  return !reader.has("SLURM_STEP_ID") && reader.has("SLURMD_NODENAME");
}

// The innermost launcher first: torchrun and mpirun may run under srun.
std::optional<VariableNames> find_launcher(const Reader& reader) {
  for (const VariableNames& names : {kTorchrun, kOpenMpi, kMpich}) {
    if (reader.has(names.rank) || reader.has(names.size)) {
      return names;
    }
  }
  if (reader.has(kSlurm.rank) && !is_batch_script(reader)) {
    return kSlurm;
  }
  return std::nullopt;
}

void read_rank(const Reader& reader, const VariableNames& names, Environment& environment) {
  for (const auto& [given, missing] :
       {std::pair(names.rank, names.size), std::pair(names.size, names.rank)}) {
    if (reader.has(given) && !reader.has(missing)) {
      throw UserError(
          "the environment has {} but no {}; set both, as torchrun, mpirun and srun do, or unset "
          "{}",
          given, missing, given);
    }
  }
  environment.size = reader.number(names.size, 1, kMaxRanks);
  environment.rank = reader.number(names.rank, 0, kMaxRanks);
  if (environment.rank >= environment.size) {
    throw UserError("the environment says {}={} of {}={}; ranks count from 0", names.rank,
                    environment.rank, names.size, environment.size);
  }
  environment.local_rank = reader.maybe(names.local_rank, 0, kMaxRanks).value_or(environment.rank);
}

// On one host, as far as the launcher says.
bool is_one_host(const Reader& reader, const VariableNames& names, int64_t size) {
  if (names.local_size != nullptr) {
    const auto local = reader.maybe(names.local_size, 1, kMaxRanks);
    return local && *local == size;
  }
  for (const char* nodes : {"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    if (reader.has(nodes)) {
      return reader.number(nodes, 1, kMaxRanks) == 1;
    }
  }
  // "node[1-4]", "a,b": several.
  const std::string list = reader.text("SLURM_NODELIST") + reader.text("SLURM_JOB_NODELIST");
  return !list.empty() && list.find_first_of("[,") == std::string::npos;
}

// FNV-1a: the same in every process of the run, spread over the ports.
uint16_t port_of_job(const std::string& job) {
  uint32_t hash = 2166136261U;
  for (const unsigned char byte : job) {
    hash = (hash ^ byte) * 16777619U;
  }
  return static_cast<uint16_t>(kFirstPort + hash % kPorts);
}

void read_store(const Reader& reader, const VariableNames& names, Environment& environment) {
  const bool is_torchrun = names.rank == kTorchrun.rank;
  const std::string job =
      reader.text(names.job) + (is_torchrun ? "" : "." + reader.text("SLURM_STEP_ID"));
  const bool is_given = reader.has("MASTER_ADDR") && !reader.text("MASTER_ADDR").empty();
  if (is_given) {
    environment.store_host = reader.text("MASTER_ADDR");
  } else if (!is_one_host(reader, names, environment.size)) {
    throw UserError(
        "{} started {} processes and says not that one host has them all; set MASTER_ADDR to the "
        "name or address of rank 0's host",
        environment.launcher, environment.size);
  }
  const auto port = reader.maybe("MASTER_PORT", 1, 65535);
  if (!port && is_torchrun) {
    throw UserError(
        "the environment has RANK but no MASTER_PORT; set it to a port that is free on rank 0's "
        "host, the same for all ranks");
  }
  environment.store_port = port ? static_cast<uint16_t>(*port) : port_of_job(job);
  const std::string served = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  environment.store_is_served = served == "True" || served == "true" || served == "1";
  // A restarted run must not read what the one before left in the agent's store, and another job
  // that was given the same port must not be taken for this one.
  environment.run_name = fmt::format("moe/{}/{}/", job, reader.text("TORCHELASTIC_RESTART_COUNT"));
}

}  // namespace

Environment read_environment(const Variables& variables) {
  const Reader reader(variables);
  Environment environment;
  const auto names = find_launcher(reader);
  if (!names) {
    return environment;
  }
  const bool is_ours = reader.has(kInheritedStore);
  environment.launcher = is_ours ? "moe" : names->launcher;
  read_rank(reader, *names, environment);
  if (is_ours) {
    environment.inherited_store =
        static_cast<int>(reader.number(kInheritedStore, kFirstDescriptor, kMaxDescriptor));
  } else if (!environment.is_alone()) {
    environment.interface = reader.text("GLOO_SOCKET_IFNAME");
    read_store(reader, *names, environment);
  }
  return environment;
}

Variables process_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return variables;
}

Variables launched_variables(int64_t rank, int64_t size, int inherited_store) {
  return {{kInheritedStore, fmt::format("{}", inherited_store)},
          {kTorchrun.rank, fmt::format("{}", rank)},
          {kTorchrun.size, fmt::format("{}", size)},
          {kTorchrun.local_rank, fmt::format("{}", rank)},
          {kTorchrun.local_size, fmt::format("{}", size)}};
}

}  // namespace moe::distributed
