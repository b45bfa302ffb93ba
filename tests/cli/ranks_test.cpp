// moe on several ranks as a user starts it: `moe bench comm` with --ranks, and as a process of a
// launcher that is played by its environment. What dies and hangs:
// tests/core/distributed/session_test.cpp and tests/slow/ranks.sh.

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/process.h"

using namespace moe;
using moe::test::contains_text;
using test::Process;
using test::run_moe;
using test::RunResult;
using test::wait_until;

namespace {

// A port of this test process's own, below those that Linux gives away.
std::string port(int offset) { return std::to_string(20000 + (getpid() * 4 + offset) % 12000); }

// The environment of a rank of two on this host.
std::string rank_of_two(int rank, const std::string& its_port) {
  return "RANK=" + std::to_string(rank) +
         " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + its_port + " OMP_NUM_THREADS=1";
}

// Two ranks with arguments of their own; what both say comes together.
RunResult run_two(const std::string& first, const std::string& second,
                  const std::string& its_port) {
  const test::TempDir streams;
  const std::string moe = " " + test::shell_quote(test::moe_binary()) + " bench comm ";
  const std::string err = " 2>>" + test::shell_quote(streams / "err");
  const std::string command = "(" + rank_of_two(1, its_port) + moe + second + err + " & " +
                              rank_of_two(0, its_port) + moe + first + err +
                              "; code=$?; wait; exit $code) >" + test::shell_quote(streams / "out");
  const int status = std::system(command.c_str());  // NOLINT: the test's own words
  return {WEXITSTATUS(status), test::read_file(streams / "out"), test::read_file(streams / "err")};
}

// Returns true if the process is stopped (SIGSTOP, SIGTSTP).
bool is_stopped(pid_t pid) {
  const std::string line = test::read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line.substr(name_end + 2, 1) == "T";
}

// The kernel's numbers of the sockets that a process has open.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> sockets;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code closed_meanwhile;
    const std::string target = std::filesystem::read_symlink(entry, closed_meanwhile);
    if (target.rfind("socket:[", 0) == 0) {
      sockets.insert(target.substr(8, target.size() - 9));
    }
  }
  return sockets;
}

// Of the files in memory that a process has open.
uint64_t bytes_in_memory_files(pid_t pid) {
  uint64_t bytes = 0;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code closed_meanwhile;
    const std::string target = std::filesystem::read_symlink(entry, closed_meanwhile);
    if (target.rfind("/memfd:moe", 0) == 0) {
      bytes += std::filesystem::file_size(entry);
    }
  }
  return bytes;
}

// Of `sockets`, the TCP addresses where one waits for connections, as the kernel writes them:
// "0100007F:1234".
std::vector<std::string> listening(const std::set<std::string>& sockets) {
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(test::read_file(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
      if (fields.size() > 9 && fields[3] == "0A" && sockets.count(fields[9]) > 0) {
        addresses.push_back(fields[1]);
      }
    }
  }
  return addresses;
}

// Returns true once each process listens at `count` addresses: of Gloo, and of the store.
bool is_listening(const std::vector<pid_t>& pids, size_t count) {
  return std::all_of(pids.begin(), pids.end(),
                     [&](pid_t pid) { return listening(sockets_of(pid)).size() >= count; });
}

bool is_loopback(const std::string& address) { return address.rfind("0100007F:", 0) == 0; }

// Returns true once all ranks of a run under --ranks listen.
bool has_started(const std::vector<pid_t>& ranks) {
  return ranks.size() == 2 && is_listening(ranks, 1);
}

const std::vector<std::string> kLong = {"bench", "comm", "--bytes", "4KiB", "--repeats", "1000000"};
std::vector<std::string> with(std::vector<std::string> arguments,
                              const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("a run that moe starts listens on the loopback interface only") {
  const Process run(with(kLong, {"--ranks", "2"}));
  REQUIRE(wait_until([&] { return has_started(run.children()); }));
  CHECK(sockets_of(run.pid()).empty());
  for (const pid_t rank : run.children()) {
    for (const std::string& address : listening(sockets_of(rank))) {
      INFO(address);
      CHECK(is_loopback(address));
    }
  }
}

// Gloo writes to sockets of ranks that may be gone: by default SIGPIPE would end its process.
TEST_CASE("threads of Gloo block SIGPIPE, and the main thread does not") {
  const Process run(with(kLong, {"--ranks", "2"}));
  REQUIRE(wait_until([&] { return has_started(run.children()); }));
  const pid_t rank = run.children().front();
  const auto blocks_sigpipe = [](const std::filesystem::path& thread) {
    const std::string status = test::read_file(thread / "status");
    const size_t mask = status.find("SigBlk:") + 7;
    return (std::stoull(status.substr(mask, 17), nullptr, 16) >> (SIGPIPE - 1) & 1) != 0;
  };
  const std::filesystem::path threads = "/proc/" + std::to_string(rank) + "/task";
  CHECK_FALSE(blocks_sigpipe(threads / std::to_string(rank)));
  CHECK(wait_until([&] {  // the one that receives and the one that sends
    return std::count_if(std::filesystem::directory_iterator(threads), {},
                         [&](const auto& thread) { return blocks_sigpipe(thread); }) >= 2;
  }));
}

// The store of such a run is a file that keeps every value that was set.
TEST_CASE("the store of a long run does not grow") {
  const Process run(with(kLong, {"--ranks", "2", "--comm-timeout", "2"}));
  REQUIRE(wait_until([&] { return has_started(run.children()); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const uint64_t bytes = bytes_in_memory_files(run.pid());
  CHECK(bytes > 0);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  CHECK(bytes_in_memory_files(run.pid()) == bytes);
}

TEST_CASE("ranks of another launcher listen at addresses that lead to MASTER_ADDR only") {
  const std::string its_port = port(3);
  const auto variables = [&](const char* rank) -> std::map<std::string, std::string> {
    return {{"RANK", rank},
            {"WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", its_port}};
  };
  const Process first(kLong, variables("0")), second(kLong, variables("1"));
  REQUIRE(wait_until(
      [&] { return is_listening({first.pid()}, 2) && is_listening({second.pid()}, 1); }));
  const auto addresses = listening(sockets_of(first.pid()));
  char store[32];
  std::snprintf(store, sizeof(store), "0100007F:%04X", std::stoi(its_port));
  CHECK(std::count(addresses.begin(), addresses.end(), store) == 1);
  CHECK(std::all_of(addresses.begin(), addresses.end(), is_loopback));
  const auto others = listening(sockets_of(second.pid()));
  CHECK(std::all_of(others.begin(), others.end(), is_loopback));
}

TEST_CASE("a second run on the port of a healthy one is told, and the healthy one ends well") {
  const std::string its_port = port(1);
  const auto variables = [&](const char* rank) -> std::map<std::string, std::string> {
    return {{"RANK", rank},
            {"WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", its_port},
            {"OMP_NUM_THREADS", "1"}};
  };
  const std::vector<std::string> few = {"bench", "comm", "--bytes", "64", "--repeats", "1000"};
  Process first(few, variables("0")), second(few, variables("1"));
  REQUIRE(wait_until(
      [&] { return is_listening({first.pid()}, 2) && is_listening({second.pid()}, 1); }));
  kill(second.pid(), SIGSTOP);  // so that the run lasts as long as the others
  const RunResult stranger = run_moe({"bench", "comm"}, rank_of_two(1, its_port));
  CHECK(stranger.exit_code == 2);
  CHECK_THAT(stranger.err, contains_text("same MASTER_ADDR and MASTER_PORT"));
  const RunResult server = run_moe({"bench", "comm"}, rank_of_two(0, its_port));
  CHECK((server.exit_code == 2 && server.err.find("cannot listen on port") != std::string::npos));
  kill(second.pid(), SIGCONT);
  REQUIRE(wait_until([&] { return first.has_ended() && second.has_ended(); }));
  CHECK((first.result().exit_code == 0 && second.result().exit_code == 0));
  CHECK(first.result().err.empty());
}

TEST_CASE("MASTER_ADDR=0.0.0.0 is refused") {
  for (const int rank : {0, 1}) {
    const RunResult result =
        run_moe({"bench", "comm"}, "RANK=" + std::to_string(rank) +
                                       " WORLD_SIZE=2 MASTER_ADDR=0.0.0.0 MASTER_PORT=" + port(0));
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, contains_text("MASTER_ADDR '0.0.0.0' stands for every interface"));
  }
}

// Longer than ranks wait for each other.
TEST_CASE("Ctrl-Z stops ranks with their launcher, and fg lets all of them go on") {
  Process run({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "1500",
               "--comm-timeout", "2"});
  const auto ranks = [&] { return run.children(); };
  REQUIRE(wait_until([&] { return has_started(ranks()); }));
  for (int stop = 0; stop < 3; ++stop) {
    kill(-run.pid(), SIGTSTP);  // as a terminal does
    REQUIRE(wait_until([&] {
      return is_stopped(run.pid()) && is_stopped(ranks().front()) && is_stopped(ranks().back());
    }));
    std::this_thread::sleep_for(std::chrono::seconds(3));
    kill(-run.pid(), SIGCONT);
    REQUIRE(
        wait_until([&] { return !is_stopped(ranks().front()) && !is_stopped(ranks().back()); }));
  }
  REQUIRE(wait_until([&] { return run.has_ended(); }));
  const RunResult result = run.result();
  INFO(result.err);
  CHECK((result.exit_code == 0 && result.err.empty()));
  CHECK_THAT(result.out, contains_text("all reduce"));
}

TEST_CASE("signals that a run was told to ignore change nothing") {
  for (const int ignored : {SIGCHLD, SIGHUP, SIGTSTP}) {
    INFO("signal " << ignored);
    Process run({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "500"}, {},
                ignored);
    REQUIRE(wait_until([&] { return run.children().size() == 2; }));
    kill(run.pid(), ignored);
    REQUIRE(wait_until([&] { return run.has_ended(); }));
    CHECK(run.result().exit_code == 0);
  }
}

TEST_CASE("links are measured between ranks that moe starts") {
  const RunResult result =
      run_moe({"bench", "comm", "--ranks", "2", "--bytes", "4KiB", "--repeats", "2", "--json"});
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  const Json json = parse_json(result.out, "the report");
  CHECK((json.at("ranks") == 2 && json.at("hosts") == 1));
  CHECK(json.at("rows").size() == 4 * 3);  // operations; 64, 512 and 4096 bytes
  for (const auto& row : json.at("rows")) {
    CHECK(row.at("bytes_per_second").get<double>() > 0);
  }
  CHECK(json.at("within_host").at("latency_s").get<double>() > 0);
  CHECK_FALSE(json.contains("between_hosts"));

  const RunResult table =
      run_moe({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "1"});
  CHECK_THAT(table.out, contains_text("within host") && contains_text("all to all 64"));
}

TEST_CASE("what cannot be is refused in a sentence, said once") {
  const RunResult alone = run_moe({"bench", "comm"});
  CHECK(alone.exit_code == 2);
  CHECK_THAT(alone.err,
             contains_text("and there is one; give --ranks N, or start it with torchrun"));
  const RunResult small = run_moe({"bench", "comm", "--ranks", "2", "--bytes", "10"});
  CHECK((small.exit_code == 2 &&
         small.err == "moe: --bytes: the smallest tensor measured has 64 bytes; give more\n"));
  for (const char* ranks : {"0", "-1", "two", "5000"}) {
    const RunResult result = run_moe({"bench", "comm", "--ranks", ranks});
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, contains_text("--ranks"));
  }
  CHECK(run_moe({"bench", "comm", "--ranks", "2", "--comm-timeout", "0"}).exit_code == 2);
  const RunResult half = run_moe({"bench", "comm"}, "RANK=0");
  CHECK((half.exit_code == 2 && half.err.find("RANK but no WORLD_SIZE") != std::string::npos));
  const RunResult other = run_moe({"bench", "comm", "--ranks", "3"}, rank_of_two(0, port(0)));
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err,
             contains_text("--ranks 3, but torchrun has started 2 processes; leave out --ranks"));
}

TEST_CASE("ranks that a launcher starts find each other, or say who is missing") {
  const RunResult two = run_two("--bytes 64 --repeats 1", "--bytes 64 --repeats 1", port(0));
  CHECK(two.exit_code == 0);
  CHECK_THAT(two.out, contains_text("within host"));

  const RunResult first =
      run_moe({"bench", "comm", "--comm-timeout", "1"}, rank_of_two(0, port(1)));
  CHECK(first.exit_code == 1);
  CHECK(first.err == "moe: rank 1 of 2 did not join within 1 s of the start\n");
  const RunResult second =
      run_moe({"bench", "comm", "--comm-timeout", "1"}, rank_of_two(1, port(2)));
  CHECK(second.exit_code == 2);
  CHECK_THAT(second.err, contains_text("no answer from 127.0.0.1 port " + port(2) + " within 1 s"));
}

TEST_CASE("a port that another program has is named") {
  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t length = sizeof(any);
  REQUIRE(bind(taken, reinterpret_cast<sockaddr*>(&any), length) == 0);
  REQUIRE(listen(taken, 1) == 0);
  REQUIRE(getsockname(taken, reinterpret_cast<sockaddr*>(&any), &length) == 0);
  const std::string its_port = std::to_string(ntohs(any.sin6_port));
  const RunResult result = run_moe({"bench", "comm"}, rank_of_two(0, its_port));
  close(taken);
  CHECK(result.exit_code == 2);
  CHECK(result.err == "moe: rank 0 cannot listen on port " + its_port +
                          " (Address already in use); set MASTER_PORT to a free port\n");
}

TEST_CASE("ranks that were told different things are refused, and rank 0 says it") {
  const RunResult two = run_two("--bytes 64 --repeats 2", "--bytes 64 --repeats 3", port(3));
  CHECK(two.exit_code == 2);
  CHECK(two.err ==
        "moe: rank 1 disagrees with rank 0 on the sizes ('repeats 3' where rank 0 has 'repeats "
        "2'); start all ranks with the same\n");
}
