// Environment variables of launchers. tests/slow/ranks.sh runs torchrun and mpirun.

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/distributed/rendezvous.h"
#include "tests/support/matchers.h"
#include "tests/support/rank_threads.h"

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

// Returns the message of each of three ranks when rank r runs body(r).
std::vector<std::string> messages_of_ranks(const std::function<void(int64_t)>& body) {
  std::vector<std::string> messages(3);
  test::run_as_threads(3, [&](distributed::Comm& comm) {
    try {
      distributed::on_all_ranks(&comm, [&] { body(comm.rank()); });
    } catch (const UserError& error) {
      messages[comm.rank()] = "user: " + std::string(error.what());
    } catch (const std::exception& error) {
      messages[comm.rank()] = error.what();
    }
  });
  return messages;
}

}  // namespace

TEST_CASE("a process without a launcher, or with a launcher of one process, is alone") {
  const auto alone = read_environment({{"HOME", "/root"}, {"MASTER_ADDR", "elsewhere"}});
  CHECK((alone.is_alone() && alone.launcher.empty() && alone.rank == 0));
  CHECK(read_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).is_alone());
  // The script of sbatch and a shell of salloc are no ranks.
  CHECK(read_environment(without(srun(), "SLURM_STEP_ID")).is_alone());
  CHECK(read_environment({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}}).is_alone());
}

TEST_CASE("rank, size and store come from the variables of the innermost launcher") {
  const Variables mpich = {{"PMI_RANK", "0"},
                           {"PMI_SIZE", "2"},
                           {"MPI_LOCALRANKID", "0"},
                           {"MPI_LOCALNRANKS", "2"},
                           {"PMI_PORT", "host:1"}};
  struct Case {
    Variables variables;
    const char* launcher;
    int64_t rank, size, local_rank;
    const char* store_host;
  };
  for (const auto& [variables, launcher, rank, size, local_rank, store_host] : std::vector<Case>{
           {torchrun(), "torchrun", 3, 4, 1, "node7"},
           {open_mpi(), "mpirun", 1, 2, 1, "127.0.0.1"},
           {mpich, "mpirun", 0, 2, 0, "127.0.0.1"},
           {srun(), "srun", 5, 8, 5, "127.0.0.1"},
           {with(srun(), open_mpi()), "mpirun", 1, 2, 1, "127.0.0.1"},
           {with(with(srun(), open_mpi()), torchrun()), "torchrun", 3, 4, 1, "node7"}}) {
    const auto environment = read_environment(variables);
    CAPTURE(launcher);
    CHECK(
        (environment.launcher == launcher && environment.rank == rank && environment.size == size));
    CHECK((environment.local_rank == local_rank && environment.store_host == store_host));
    const bool is_torchrun = environment.launcher == "torchrun";
    CHECK(environment.has_agent_store == is_torchrun);
    CHECK((is_torchrun ? environment.store_port == 29500
                       : environment.store_port >= 20000 && environment.store_port < 32000));
  }
  CHECK(read_environment(torchrun()).run_name == "moe/run/2/");
  CHECK_FALSE(
      read_environment(without(torchrun(), "TORCHELASTIC_USE_AGENT_STORE")).has_agent_store);
}

TEST_CASE("the port is the same for all ranks of a job and differs between jobs") {
  const auto port = [](const Variables& variables) {
    return read_environment(variables).store_port;
  };
  CHECK(port(open_mpi()) ==
        port(with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}})));
  CHECK(port(open_mpi()) != port(with(open_mpi(), {{"PMIX_NAMESPACE", "935002114"}})));
  CHECK(port(srun()) != port(with(srun(), {{"SLURM_STEP_ID", "1"}})));
  // Jobs with one port have different keys.
  const Variables given = with(open_mpi(), {{"MASTER_PORT", "29500"}});
  const auto first = read_environment(given);
  const auto second = read_environment(with(given, {{"PMIX_NAMESPACE", "7"}}));
  CHECK((first.store_port == second.store_port && first.run_name != second.run_name));
}

TEST_CASE("an incomplete or invalid environment is refused by variable") {
  const auto two_hosts = with(srun(), {{"SLURM_STEP_NUM_NODES", "2"}});
  const auto two_open_mpi_hosts = with(open_mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  for (const auto& [variables, fact] : std::vector<std::pair<Variables, std::string>>{
           {Variables{{"RANK", "0"}}, "RANK but no WORLD_SIZE"},
           {Variables{{"WORLD_SIZE", "2"}}, "WORLD_SIZE but no RANK"},
           {without(srun(), "SLURM_NTASKS"), "SLURM_PROCID but no SLURM_NTASKS"},
           {with(torchrun(), {{"RANK", "4"}}), "RANK=4 of WORLD_SIZE=4; ranks count from 0"},
           {without(torchrun(), "MASTER_PORT"), "no MASTER_PORT"},
           {with(torchrun(), {{"MASTER_PORT", "70000"}}), "MASTER_PORT='70000'"},
           {without(torchrun(), "MASTER_ADDR"), "set MASTER_ADDR"},  // two hosts
           {two_hosts, "set MASTER_ADDR"},
           {without(two_hosts, "SLURM_STEP_NUM_NODES"), "set MASTER_ADDR"},
           {two_open_mpi_hosts, "set MASTER_ADDR"},
           {two_open_mpi_hosts, "mpirun started 2 processes"}}) {
    CHECK_THROWS_WITH(read_environment(variables), contains_text(fact));
  }
  for (const char* word : {"", "two", "-1", "1e3", "99999999999999999999", " 1"}) {
    CHECK_THROWS_WITH(read_environment(with(torchrun(), {{"WORLD_SIZE", word}})),
                      contains_text("the environment says WORLD_SIZE='" + std::string(word) + "'"));
  }
  const auto environment = read_environment(with(two_hosts, {{"MASTER_ADDR", "node1"}}));
  CHECK((environment.store_host == "node1" && environment.store_port >= 20000));
}

TEST_CASE("the variables that moe sets for its ranks are parsed, and have no port") {
  const auto environment = read_environment(with(srun(), distributed::launched_variables(2, 3, 7)));
  CHECK((environment.launcher == "moe" && environment.rank == 2 && environment.size == 3 &&
         environment.local_rank == 2));
  CHECK(environment.inherited_store == 7);
  CHECK((environment.store_port == 0 && environment.store_host == "127.0.0.1"));
  CHECK(read_environment(srun()).inherited_store == -1);
  for (const char* word : {"2", "-1", "x", ""}) {  // 2: standard error
    CHECK_THROWS_WITH(read_environment(with(distributed::launched_variables(0, 2, 7),
                                            {{"MOE_STORE_DESCRIPTOR", word}})),
                      contains_text("MOE_STORE_DESCRIPTOR='" + std::string(word) + "'"));
  }
}

TEST_CASE("an error of one rank is thrown on all ranks") {
  CHECK(messages_of_ranks([](int64_t) {}) == std::vector<std::string>(3));
  CHECK(messages_of_ranks([](int64_t rank) {
          if (rank == 2) {
            throw UserError("no such folder");
          }
        }) == std::vector<std::string>(3, "user: no such folder"));
  CHECK(messages_of_ranks([](int64_t rank) {
          if (rank == 1) {
            throw std::runtime_error("disk broken");
          }
        }) == std::vector<std::string>(3, distributed::describe(1, distributed::this_member()) +
                                              " failed (disk broken)"));
  // A UserError has precedence over the errors that it causes.
  CHECK(messages_of_ranks([](int64_t rank) {
          if (rank == 0) {
            throw std::runtime_error("broken");
          }
          throw UserError("rank {} has no file", rank);
        }) == std::vector<std::string>(3, "user: rank 1 has no file"));
}

TEST_CASE("a single rank throws its own exception") {
  const auto alone = distributed::solo_comm();
  for (distributed::Comm* comm : {alone.get(), static_cast<distributed::Comm*>(nullptr)}) {
    CHECK_THROWS_AS(distributed::on_all_ranks(comm, [] { throw UserError("wrong"); }), UserError);
    CHECK(distributed::any_rank(comm, true));
    CHECK_FALSE(distributed::any_rank(comm, false));
  }
}

TEST_CASE("a single rank keeps its values") {
  const auto comm = distributed::solo_comm();
  const at::Tensor rows = at::arange(6, at::kFloat).view({3, 2}), output = at::empty_like(rows);
  comm->all_to_all(rows, {3}, output, {3}).wait();
  CHECK(at::equal(rows, output));
  comm->all_reduce(output);
  CHECK(at::equal(rows, output));
  CHECK(comm->split({0})->size() == 1);
}

TEST_CASE("a condition that is true on any rank is returned on all") {
  for (const int64_t where : {-1, 0, 2}) {
    std::vector<int> found(3, -1);
    test::run_as_threads(3, [&](distributed::Comm& comm) {
      found[comm.rank()] = distributed::any_rank(&comm, comm.rank() == where) ? 1 : 0;
    });
    CHECK(found == std::vector<int>(3, where >= 0 ? 1 : 0));
  }
}

TEST_CASE("ranks of one process are on one host") {
  test::run_as_threads(3, [](distributed::Comm& comm) {
    if (distributed::same_host_ranks(comm) != std::vector<int64_t>{0, 1, 2}) {
      throw std::runtime_error("the ranks of this host are others");
    }
  });
  CHECK(distributed::same_host_ranks(*distributed::solo_comm()) == std::vector<int64_t>{0});
}

TEST_CASE("a memory shortage of the ranks of a host is thrown on all of them") {
  // The need of one rank fits, that of two does not: 3/4 of the free memory each.
  uint64_t left = UINT64_MAX;
  for (const auto& limit : memory_limits()) {
    left = std::min(left, limit.is_shared ? limit.left : UINT64_MAX);
  }
  REQUIRE(left < UINT64_MAX);
  const MemoryNeed need{left / 4 * 3, 1, "it", "less"};
  CHECK_FALSE(distributed::check_memory(nullptr, need, false));
  CHECK_THROWS_WITH(
      test::run_as_threads(
          2, [&](distributed::Comm& comm) { distributed::check_memory(&comm, need, false); }),
      test::contains_text("of memory in 2 processes"));
  test::run_as_threads(2, [&](distributed::Comm& comm) {
    if (!distributed::check_memory(&comm, need, true)) {
      throw std::runtime_error("nothing was returned");
    }
  });
}

TEST_CASE("by default expert parallelism spans as many processes as W allows") {
  CHECK(distributed::make_layout(1, 0, {}, 8, 8).group() == 1);
  CHECK(distributed::make_layout(4, 0, {}, 8, 8).group() == 4);
  CHECK(distributed::make_layout(4, 0, {}, 2, 8).group() == 2);
  CHECK(distributed::make_layout(4, 0, 4, 8, 8).group() == 1);
  const distributed::Layout dense = distributed::make_layout(3, 2, {}, 1, 0);
  CHECK((dense.replicas == 3 && dense.replica() == 2 && dense.ep_rank() == 0));
}

TEST_CASE("a layout gives the experts, logical ranks and rows of a process") {
  const distributed::Layout layout = distributed::make_layout(4, 3, 2, 4, 8);  // replica 1, place 1
  CHECK((layout.replica() == 1 && layout.ep_rank() == 1));
  CHECK((layout.first_expert() == 4 && layout.local_experts() == 4));
  CHECK(layout.local_logical_ranks() == 2);
  CHECK(
      (layout.first_row(5, 0) == 0 && layout.first_row(5, 1) == 2 && layout.first_row(5, 2) == 5));
  CHECK(distributed::describe(layout) ==
        "4 processes = 2 replicas x 2 in an expert-parallel group; 4 logical ranks, 2 a process; "
        "8 experts, 4 a process");
}

TEST_CASE("an invalid layout is refused") {
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 3, 8, 8),
                    contains_text("--replicas 3 does not divide"));
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 1, 2, 8),
                    contains_text("do not divide --ep-ranks 2"));
  CHECK_THROWS_WITH(distributed::make_layout(2, 0, {}, 3, 8),
                    contains_text("--ep-ranks 3 does not divide"));
  CHECK_THROWS_WITH(distributed::make_layout(4, 0, 2, 1, 0), contains_text("dense model"));
}

TEST_CASE("groups and replicas are the rows and columns of the processes") {
  std::vector<std::vector<int64_t>> seen(4);
  test::run_as_threads(4, [&](distributed::Comm& comm) {
    distributed::World world(comm, distributed::make_layout(4, comm.rank(), 2, 8, 8));
    std::vector<int64_t> sums{world.group->size(), world.replicas->size()};
    for (distributed::Comm* part : {world.group.get(), world.replicas.get()}) {
      sums.push_back(static_cast<int64_t>(
          distributed::sum_numbers(*part, {static_cast<double>(comm.rank())}).front()));
    }
    seen[comm.rank()] = sums;
  });
  CHECK(seen ==
        std::vector<std::vector<int64_t>>{{2, 2, 1, 2}, {2, 2, 1, 4}, {2, 2, 5, 2}, {2, 2, 5, 4}});
}
