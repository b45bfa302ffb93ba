#pragma once
// Where this process stands in a run, read from what its launcher left in the environment: moe
// itself and torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...), mpirun (OMPI_COMM_WORLD_RANK, PMI_RANK,
// ...), srun (SLURM_PROCID, ...). A pure function of the variables, so that a launcher is tested
// without being there.

#include <cstdint>
#include <map>
#include <string>

namespace moe::distributed {

using Variables = std::map<std::string, std::string>;

// Numbers of the descriptors that `moe --ranks` leaves to its ranks; -1: none.
struct Inherited {
  int store = -1;   // inherited_store()
  int memory = -1;  // MemoryPool
};

inline constexpr int64_t kMostRanks = 1 << 20;

struct Environment {
  std::string launcher;  // "moe", "torchrun", "mpirun" or "srun"; "" = this process is alone
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  // among the processes of its host
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  bool store_is_served = false;  // by the launcher; else rank 0 serves it
  std::string run_name;          // before our keys in a store that others use too
  Inherited inherited;           // from the launcher of --ranks, whose store is no port
  std::string interface;         // GLOO_SOCKET_IFNAME; "" = the one that leads to store_host

  bool is_alone() const { return size == 1; }
};

// A launcher that says half of it, ranks beyond the size, words for numbers, several hosts without
// MASTER_ADDR: UserError.
Environment read_environment(const Variables& variables);

// Those of this process.
Variables process_variables();

// What `moe --ranks` gives rank `rank` of `size` local processes, for read_environment there.
Variables launched_variables(int64_t rank, int64_t size, const Inherited& inherited);

}  // namespace moe::distributed
