#include <unistd.h>

#include <charconv>

#include "core/base/error.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {
namespace {

// Variable of our own launcher, and its range: descriptors above the standard streams.
constexpr const char* kInheritedStore = "MOE_STORE_DESCRIPTOR";
constexpr int64_t kFirstDescriptor = 3, kMaxDescriptor = 1 << 20;

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  bool has(const std::string& name) const { return variables_.contains(name); }
  std::string text(const std::string& name) const { return has(name) ? variables_.at(name) : ""; }

  int64_t number(const std::string& name, int64_t min, int64_t max) const {
    const std::string value = text(name);
    const char* const last = value.data() + value.size();
    int64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), last, parsed);
    if (error != std::errc() || end != last || parsed < min || parsed > max) {
      throw UserError("the environment says {}='{}', which is no whole number from {} to {}", name,
                      value, min, max);
    }
    return parsed;
  }
  std::optional<int64_t> maybe(const std::string& name, int64_t min, int64_t max) const {
    return has(name) ? std::optional(number(name, min, max)) : std::nullopt;
  }

 private:
  const Variables& variables_;
};

// Names of the variables of a launcher.
struct VariableNames {
  const char *launcher, *rank, *size, *local_rank;
  const char* local_size;  // processes on this host
  const char* job;         // differs between runs
};

// The innermost launcher first: torchrun and mpirun may run under srun.
constexpr VariableNames kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_PORT"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID"}};
constexpr const VariableNames &kTorchrun = kLaunchers[0], &kSlurm = kLaunchers[3];

const VariableNames* find_launcher(const Reader& reader) {
  for (const VariableNames& names : kLaunchers) {
    if (&names == &kSlurm) {
      // An sbatch script has a rank and a size too; only the processes of srun are ranks.
      const bool is_batch = !reader.has("SLURM_STEP_ID") && reader.has("SLURMD_NODENAME");
      return reader.has(names.rank) && !is_batch ? &names : nullptr;
    }
    if (reader.has(names.rank) || reader.has(names.size)) {
      return &names;
    }
  }
  return nullptr;
}

void read_rank(const Reader& reader, const VariableNames& names, Environment& environment) {
  if (reader.has(names.rank) != reader.has(names.size)) {
    const auto [given, missing] = reader.has(names.rank) ? std::pair(names.rank, names.size)
                                                         : std::pair(names.size, names.rank);
    throw UserError(
        "the environment has {} but no {}; set both, as torchrun, mpirun and srun do, or unset {}",
        given, missing, given);
  }
  environment.size = reader.number(names.size, 1, kMaxRanks);
  environment.rank = reader.number(names.rank, 0, kMaxRanks);
  if (environment.rank >= environment.size) {
    throw UserError("the environment says {}={} of {}={}; ranks count from 0", names.rank,
                    environment.rank, names.size, environment.size);
  }
  environment.local_rank = reader.maybe(names.local_rank, 0, kMaxRanks).value_or(environment.rank);
}

// Returns true if the launcher says that all processes are on one host.
bool is_one_host(const Reader& reader, const VariableNames& names, int64_t size) {
  if (names.local_size != nullptr) {
    return reader.maybe(names.local_size, 1, kMaxRanks) == size;
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

// Returns the same port in every process of the run, below the range of ports that Linux gives to
// clients (FNV-1a of the job's name).
uint16_t job_port(const std::string& job) {
  constexpr uint32_t kFirstPort = 20000, kPorts = 12000;
  uint32_t hash = 2166136261U;
  for (const unsigned char byte : job) {
    hash = (hash ^ byte) * 16777619U;
  }
  return static_cast<uint16_t>(kFirstPort + hash % kPorts);
}

void read_store(const Reader& reader, const VariableNames& names, Environment& environment) {
  const bool is_torchrun = &names == &kTorchrun;
  const std::string job =
      reader.text(names.job) + (is_torchrun ? "" : "." + reader.text("SLURM_STEP_ID"));
  if (const std::string host = reader.text("MASTER_ADDR"); !host.empty()) {
    environment.store_host = host;
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
  environment.store_port = port ? static_cast<uint16_t>(*port) : job_port(job);
  const std::string served = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  environment.store_is_served = served == "True" || served == "true" || served == "1";
  // Separates a restarted run from the one before in the agent's store, and jobs with equal ports.
  environment.run_name = fmt::format("moe/{}/{}/", job, reader.text("TORCHELASTIC_RESTART_COUNT"));
}

}  // namespace

Environment read_environment(const Variables& variables) {
  const Reader reader(variables);
  Environment environment;
  const VariableNames* const names = find_launcher(reader);
  if (names == nullptr) {
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
    if (const size_t equals = text.find('='); equals != std::string::npos) {
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
