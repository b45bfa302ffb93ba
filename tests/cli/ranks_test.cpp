// `moe bench comm` on several ranks, started by --ranks or with the environment variables of a
// launcher such as torchrun. tests/core/distributed/session_test.cpp and tests/slow/ranks.sh test
// ranks that die or hang.

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/base/json.h"
#include "tests/cli/commands.h"
#include "tests/support/process.h"

using namespace moe;
using namespace moe::test;

namespace {

// Returns a port that depends on the process id, below the ephemeral ports of Linux.
std::string make_port(int offset) {
  return std::to_string(20000 + (getpid() * 4 + offset) % 12000);
}

// Returns the environment variables of one of two ranks on this host, as a prefix of a command.
std::string rank_variables(int rank, const std::string& port) {
  return "RANK=" + std::to_string(rank) +
         " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " OMP_NUM_THREADS=1";
}

// Runs two ranks with different flags. Returns the exit code of rank 0 and the output of both.
RunResult run_two_ranks(const std::string& first, const std::string& second,
                        const std::string& port) {
  const TempDir streams;
  const std::string moe = " " + shell_quote(moe_binary()) + " bench comm ";
  const std::string err = " 2>>" + shell_quote(streams / "err");
  const std::string command = "(" + rank_variables(1, port) + moe + second + err + " & " +
                              rank_variables(0, port) + moe + first + err +
                              "; code=$?; wait; exit $code) >" + shell_quote(streams / "out");
  const int status = std::system(command.c_str());  // NOLINT: command of the test
  return {WEXITSTATUS(status), read_file(streams / "out"), read_file(streams / "err")};
}

// Returns true if the process is stopped (SIGSTOP, SIGTSTP).
bool is_stopped(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.substr(name_end + 2, 1) == "T";
}

// Returns the targets of the open descriptors of a process: "socket:[123]", "/memfd:...".
std::map<fs::path, std::string> open_descriptors(pid_t pid) {
  std::map<fs::path, std::string> targets;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code closed_meanwhile;
    targets[entry.path()] = fs::read_symlink(entry, closed_meanwhile);
  }
  return targets;
}

// Returns the inode numbers of the open sockets of a process.
std::set<std::string> open_sockets(pid_t pid) {
  std::set<std::string> sockets;
  for (const auto& [descriptor, target] : open_descriptors(pid)) {
    if (target.starts_with("socket:[")) {
      sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  return sockets;
}

// Returns the total size of the memory files (memfd) that a process has open.
uint64_t bytes_in_memory_files(pid_t pid) {
  uint64_t bytes = 0;
  for (const auto& [descriptor, target] : open_descriptors(pid)) {
    bytes += target.starts_with("/memfd:moe") ? fs::file_size(descriptor) : 0;
  }
  return bytes;
}

// Returns the TCP addresses on which `sockets` listen, as in /proc/net/tcp: "0100007F:1234".
std::vector<std::string> listening_addresses(const std::set<std::string>& sockets) {
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(read_file(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream row(line);
      const std::vector<std::string> fields{std::istream_iterator<std::string>(row), {}};
      if (fields.size() > 9 && fields[3] == "0A" && sockets.count(fields[9]) > 0) {
        addresses.push_back(fields[1]);
      }
    }
  }
  return addresses;
}

// Returns true if each process listens on at least `count` addresses (Gloo, and the store).
bool is_listening(const std::vector<pid_t>& pids, size_t count) {
  return std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
    return listening_addresses(open_sockets(pid)).size() >= count;
  });
}

bool is_loopback(const std::string& address) { return address.rfind("0100007F:", 0) == 0; }

// Returns true if both ranks of a run with --ranks 2 listen.
bool has_started(const std::vector<pid_t>& ranks) {
  return ranks.size() == 2 && is_listening(ranks, 1);
}

// Returns the variables of one of two ranks on this host, for a Process.
std::map<std::string, std::string> rank_environment(int rank, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"OMP_NUM_THREADS", "1"}};
}

const Args kLong = {"bench", "comm", "--bytes", "4KiB", "--repeats", "1000000"};

}  // namespace

TEST_CASE("ranks listen on loopback only, Gloo threads block SIGPIPE, the store does not grow") {
  const Process run(joined(kLong, {"--ranks", "2", "--comm-timeout", "1"}));
  REQUIRE(wait_until([&] { return has_started(run.children()); }));
  CHECK(open_sockets(run.pid()).empty());
  for (const pid_t rank : run.children()) {
    for (const std::string& address : listening_addresses(open_sockets(rank))) {
      INFO(address);
      CHECK(is_loopback(address));
    }
  }
  // Gloo writes to sockets of ranks that may have exited. Unblocked, SIGPIPE would end the process.
  const pid_t rank = run.children().front();
  const auto blocks_sigpipe = [](const fs::path& thread) {
    const std::string status = read_file(thread / "status");
    const size_t mask = status.find("SigBlk:") + 7;
    return (std::stoull(status.substr(mask, 17), nullptr, 16) >> (SIGPIPE - 1) & 1) != 0;
  };
  const fs::path threads = "/proc/" + std::to_string(rank) + "/task";
  CHECK_FALSE(blocks_sigpipe(threads / std::to_string(rank)));
  CHECK(wait_until([&] {  // the receiving and the sending thread
    return std::count_if(fs::directory_iterator(threads), {},
                         [&](const auto& thread) { return blocks_sigpipe(thread); }) >= 2;
  }));
  // The store is a memory file.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const uint64_t bytes = bytes_in_memory_files(run.pid());
  CHECK(bytes > 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than --comm-timeout
  CHECK(bytes_in_memory_files(run.pid()) == bytes);
}

TEST_CASE("ranks of another launcher listen only on the interface that reaches MASTER_ADDR") {
  const std::string port = make_port(3);
  const Process first(kLong, rank_environment(0, port)), second(kLong, rank_environment(1, port));
  REQUIRE(wait_until(
      [&] { return is_listening({first.pid()}, 2) && is_listening({second.pid()}, 1); }));
  const auto addresses = listening_addresses(open_sockets(first.pid()));
  char store[32];
  std::snprintf(store, sizeof(store), "0100007F:%04X", std::stoi(port));
  CHECK(std::count(addresses.begin(), addresses.end(), store) == 1);
  CHECK(std::all_of(addresses.begin(), addresses.end(), is_loopback));
  const auto others = listening_addresses(open_sockets(second.pid()));
  CHECK(std::all_of(others.begin(), others.end(), is_loopback));
}

TEST_CASE("a second run on the port of another is refused and does not disturb it") {
  const std::string port = make_port(1);
  const Args few = {"bench", "comm", "--bytes", "64", "--repeats", "300"};
  Process first(few, rank_environment(0, port)), second(few, rank_environment(1, port));
  REQUIRE(wait_until(
      [&] { return is_listening({first.pid()}, 2) && is_listening({second.pid()}, 1); }));
  kill(second.pid(), SIGSTOP);  // keeps the first run alive
  check_refused(run_moe({"bench", "comm"}, rank_variables(1, port)),
                "same MASTER_ADDR and MASTER_PORT");
  check_refused(run_moe({"bench", "comm"}, rank_variables(0, port)), "cannot listen on port");
  kill(second.pid(), SIGCONT);
  CHECK((first.result().exit_code == 0 && second.result().exit_code == 0));
  CHECK(first.result().err.empty());
}

TEST_CASE("Ctrl-Z stops the launcher and all ranks, and fg continues them") {
  Process run({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "500",
               "--comm-timeout", "2"});
  const auto ranks = [&] { return run.children(); };
  REQUIRE(wait_until([&] { return has_started(ranks()); }));
  for (int stop = 0; stop < 2; ++stop) {
    kill(-run.pid(), SIGTSTP);  // as a terminal does
    REQUIRE(wait_until([&] {
      return is_stopped(run.pid()) && is_stopped(ranks().front()) && is_stopped(ranks().back());
    }));
    std::this_thread::sleep_for(std::chrono::seconds(3));  // longer than --comm-timeout
    kill(-run.pid(), SIGCONT);
    REQUIRE(
        wait_until([&] { return !is_stopped(ranks().front()) && !is_stopped(ranks().back()); }));
  }
  const RunResult result = run.result();
  INFO(result.err);
  CHECK((result.exit_code == 0 && result.err.empty()));
  CHECK_THAT(result.out, contains_text("all reduce"));
}

TEST_CASE("signals that are ignored when moe starts are not handled on any rank") {
  for (const int ignored : {SIGHUP, SIGTSTP}) {
    INFO("signal " << ignored);
    Process run({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "20"}, {}, ignored);
    REQUIRE(wait_until([&] { return run.children().size() == 2; }));
    kill(run.pid(), ignored);
    CHECK(run.exit_code() == 0);
  }
}

TEST_CASE("moe bench comm measures the links between its ranks") {
  const RunResult result =
      succeed({"bench", "comm", "--ranks", "2", "--bytes", "4KiB", "--repeats", "2", "--json"});
  CHECK(result.err.empty());
  const Json json = parse_json(result.out, "the report");
  CHECK((json.at("ranks") == 2 && json.at("hosts") == 1));
  CHECK(json.at("rows").size() == 4 * 3);  // operations; 64, 512 and 4096 bytes
  for (const auto& row : json.at("rows")) {
    CHECK(row.at("bytes_per_second").get<double>() > 0);
  }
  CHECK(json.at("within_host").at("latency_s").get<double>() > 0);
  CHECK_FALSE(json.contains("between_hosts"));
}

TEST_CASE("an invalid number of ranks, size or launcher is refused") {
  check_refused({"bench", "comm"}, "there is one; give --ranks N, or start it with torchrun");
  check_refused_each(
      {"bench", "comm", "--ranks"},
      {{{"2", "--bytes", "10"}, "--bytes: the smallest tensor measured has 64 bytes"},
       {{"0"}, "--ranks"},
       {{"5000"}, "--ranks"},
       {{"2", "--comm-timeout", "0"}, "--comm-timeout"}});
  check_refused(run_moe({"bench", "comm", "--ranks", "3"}, rank_variables(0, make_port(0))),
                "--ranks 3, but torchrun has started 2 processes");
}

TEST_CASE("ranks of a launcher connect, or name the missing rank") {
  const RunResult two =
      run_two_ranks("--bytes 64 --repeats 1", "--bytes 64 --repeats 1", make_port(0));
  CHECK(two.exit_code == 0);
  check_contains(two.out, {"within host", "all to all 64"});

  const Args alone = {"bench", "comm", "--comm-timeout", "1"};
  const RunResult first = run_moe(alone, rank_variables(0, make_port(1)));
  CHECK(first.exit_code == 1);
  CHECK_THAT(first.err, contains_text("rank 1 of 2 did not join within 1 s"));
  check_refused(run_moe(alone, rank_variables(1, make_port(2))),
                "no answer from 127.0.0.1 port " + make_port(2) + " within 1 s");
}

TEST_CASE("a port in use by another program is named") {
  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t length = sizeof(any);
  REQUIRE(bind(taken, reinterpret_cast<sockaddr*>(&any), length) == 0);
  REQUIRE(listen(taken, 1) == 0);
  REQUIRE(getsockname(taken, reinterpret_cast<sockaddr*>(&any), &length) == 0);
  const std::string port = std::to_string(ntohs(any.sin6_port));
  const RunResult result = run_moe({"bench", "comm"}, rank_variables(0, port));
  close(taken);
  check_refused(result, "rank 0 cannot listen on port " + port);
}

TEST_CASE("ranks with different flags are refused, and rank 0 names the difference") {
  const RunResult two =
      run_two_ranks("--bytes 64 --repeats 2", "--bytes 64 --repeats 3", make_port(3));
  check_refused(two,
                "rank 1 disagrees with rank 0 on the sizes ('repeats 3' where rank 0 has "
                "'repeats 2')");
}
