// Environment variables of launchers. tests/slow/ranks.sh runs torchrun and mpirun.

#include "core/base/error.h"
#include "core/distributed/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe;
using distributed::Variables;
using moe::test::contains_text;

namespace {

distributed::Environment read_environment(const Variables& variables) {
  return distributed::read_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Variables torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node7"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "run"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

Variables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "935002113"}};
}

Variables srun() {
  return {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "5"},
          {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_NODES", "1"}};
}

}  // namespace

TEST_CASE("without a launcher a process is alone") {
  const auto alone = read_environment({{"HOME", "/root"}, {"MASTER_ADDR", "elsewhere"}});
  CHECK((alone.is_alone() && alone.launcher.empty() && alone.rank == 0));
}

TEST_CASE("torchrun serves the store, and its restarts have keys of their own") {
  const auto there = read_environment(torchrun());
  CHECK((there.launcher == "torchrun" && there.rank == 3 && there.size == 4));
  CHECK((there.local_rank == 1 && there.has_agent_store));
  CHECK((there.store_host == "node7" && there.store_port == 29500));
  CHECK(there.run_name == "moe/run/2/");
  CHECK_FALSE(
      read_environment(without(torchrun(), "TORCHELASTIC_USE_AGENT_STORE")).has_agent_store);
}

TEST_CASE("mpirun on one host needs no address, and a port comes from the job") {
  const auto there = read_environment(open_mpi());
  CHECK((there.launcher == "mpirun" && there.rank == 1 && there.size == 2));
  CHECK((there.local_rank == 1 && there.store_host == "127.0.0.1" && !there.has_agent_store));
  CHECK((there.store_port >= 20000 && there.store_port < 32000));
  const auto other = read_environment(with(open_mpi(), {{"PMIX_NAMESPACE", "935002114"}}));
  CHECK(other.store_port != there.store_port);
  const auto same =
      read_environment(with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}));
  CHECK(same.store_port == there.store_port);
}

TEST_CASE("MPICH's mpirun is known too") {
  const auto there = read_environment({{"PMI_RANK", "0"},
                                       {"PMI_SIZE", "2"},
                                       {"MPI_LOCALRANKID", "0"},
                                       {"MPI_LOCALNRANKS", "2"},
                                       {"PMI_PORT", "host:1"}});
  CHECK((there.launcher == "mpirun" && there.size == 2));
}

TEST_CASE("srun gives rank, size and job") {
  const auto there = read_environment(srun());
  CHECK((there.launcher == "srun" && there.rank == 5 && there.size == 8));
  CHECK((there.local_rank == 5 && there.store_host == "127.0.0.1"));
  const auto second_step = read_environment(with(srun(), {{"SLURM_STEP_ID", "1"}}));
  CHECK(second_step.store_port != there.store_port);
}

TEST_CASE("the script of sbatch is no rank, nor is a shell of salloc") {
  CHECK(read_environment(without(srun(), "SLURM_STEP_ID")).is_alone());
  CHECK(read_environment({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}}).is_alone());
}

TEST_CASE("the innermost launcher counts") {
  CHECK(read_environment(with(srun(), open_mpi())).launcher == "mpirun");
  CHECK(read_environment(with(with(srun(), open_mpi()), torchrun())).launcher == "torchrun");
}

TEST_CASE("several hosts need the address of rank 0") {
  const auto two = with(srun(), {{"SLURM_STEP_NUM_NODES", "2"}});
  CHECK_THROWS_WITH(read_environment(two), contains_text("set MASTER_ADDR"));
  CHECK_THROWS_WITH(read_environment(without(two, "SLURM_STEP_NUM_NODES")),
                    contains_text("set MASTER_ADDR"));
  CHECK_THROWS_WITH(
      read_environment(with(open_mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})),
      contains_text("mpirun started 2 processes") && contains_text("set MASTER_ADDR"));
  CHECK_THROWS_WITH(read_environment(without(torchrun(), "MASTER_ADDR")) /* two hosts */,
                    contains_text("set MASTER_ADDR"));
  const auto there = read_environment(with(two, {{"MASTER_ADDR", "node1"}}));
  CHECK((there.store_host == "node1" && there.store_port >= 20000));
}

TEST_CASE("half an environment, or an impossible one, is refused by name") {
  CHECK_THROWS_WITH(read_environment({{"RANK", "0"}}), contains_text("RANK but no WORLD_SIZE"));
  CHECK_THROWS_WITH(read_environment({{"WORLD_SIZE", "2"}}),
                    contains_text("WORLD_SIZE but no RANK"));
  CHECK_THROWS_WITH(read_environment(without(srun(), "SLURM_NTASKS")),
                    contains_text("SLURM_PROCID but no SLURM_NTASKS"));
  CHECK_THROWS_WITH(read_environment(with(torchrun(), {{"RANK", "4"}})),
                    contains_text("RANK=4 of WORLD_SIZE=4; ranks count from 0"));
  CHECK_THROWS_WITH(read_environment(without(torchrun(), "MASTER_PORT")),
                    contains_text("no MASTER_PORT"));
  for (const char* word : {"", "two", "-1", "1e3", "99999999999999999999", " 1"}) {
    CHECK_THROWS_WITH(read_environment(with(torchrun(), {{"WORLD_SIZE", word}})),
                      contains_text("the environment says WORLD_SIZE='" + std::string(word) + "'"));
  }
  CHECK_THROWS_WITH(read_environment(with(torchrun(), {{"MASTER_PORT", "70000"}})),
                    contains_text("MASTER_PORT='70000'"));
}

TEST_CASE("the variables that moe sets for its ranks are read back, and name no port") {
  const auto there = read_environment(with(srun(), distributed::launched_variables(2, 3, 7)));
  CHECK((there.launcher == "moe" && there.rank == 2 && there.size == 3 && there.local_rank == 2));
  CHECK(there.inherited_store == 7);
  CHECK((there.store_port == 0 && there.store_host == "127.0.0.1"));
  CHECK(read_environment(srun()).inherited_store == -1);
  for (const char* word : {"2", "-1", "x", ""}) {  // 2: standard error
    CHECK_THROWS_WITH(read_environment(with(distributed::launched_variables(0, 2, 7),
                                            {{"MOE_STORE_DESCRIPTOR", word}})),
                      contains_text("MOE_STORE_DESCRIPTOR='" + std::string(word) + "'"));
  }
}

TEST_CASE("jobs that were given one port have keys of their own") {
  const Variables port = {{"MASTER_PORT", "29500"}};
  const auto first = read_environment(with(open_mpi(), port));
  const auto second = read_environment(with(with(open_mpi(), port), {{"PMIX_NAMESPACE", "7"}}));
  CHECK((first.store_port == second.store_port && first.run_name != second.run_name));
  CHECK(read_environment(with(srun(), {{"SLURM_STEP_ID", "1"}})).run_name !=
        read_environment(srun()).run_name);
}

TEST_CASE("a launcher of one process leaves it alone") {
  CHECK(read_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).is_alone());
}
