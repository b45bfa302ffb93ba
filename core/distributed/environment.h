#pragma once
// Rank, size and store of this process, from the environment variables that a launcher sets: moe
// itself and torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...), mpirun (OMPI_COMM_WORLD_RANK, PMI_RANK,
// ...), srun (SLURM_PROCID, ...). A pure function of the variables, so that tests need no launcher.

#include <cstdint>
#include <map>
#include <string>

namespace moe::distributed {

using Variables = std::map<std::string, std::string>;

inline constexpr int64_t kMaxRanks = 1 << 20;

struct Environment {
  std::string launcher;  // "moe", "torchrun", "mpirun" or "srun"; "": none, a single process
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  // among the processes of this host
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  bool store_is_served = false;  // by the launcher; else by rank 0
  std::string run_name;          // prefix of the keys, in a store that others may use
  int inherited_store = -1;      // descriptor from the launcher of --ranks; -1: a TCP store
  std::string interface;         // GLOO_SOCKET_IFNAME; "": the one that routes to store_host

  bool is_alone() const { return size == 1; }
};

// Throws UserError if variables are missing, are not numbers or contradict each other, or if
// several hosts have no MASTER_ADDR.
Environment read_environment(const Variables& variables);

// Returns the variables of this process.
Variables process_variables();

// Returns the variables that `moe --ranks` sets for rank `rank` of `size` local processes.
Variables launched_variables(int64_t rank, int64_t size, int inherited_store);

}  // namespace moe::distributed
