#include "core/distributed/rendezvous.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe::distributed {
namespace {

constexpr int kKeepFile = -1;  // FileStore: number of processes after which it removes its file

using Bytes = std::vector<uint8_t>;

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const Bytes& bytes) {
  return {bytes.begin(), bytes.begin() + std::min(bytes.size(), Store::kMaxValueBytes)};
}

std::chrono::milliseconds to_milliseconds(Seconds timeout) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
}

std::shared_ptr<c10d::Store> share(c10::intrusive_ptr<c10d::Store> store) {
  c10d::Store* const pointer = store.get();
  return {pointer, [held = std::move(store)](c10d::Store* /*pointer*/) {}};
}

Store with_prefix(const c10::intrusive_ptr<c10d::TCPStore>& store, const std::string& prefix,
                  Seconds timeout) {
  return {share(c10::make_intrusive<c10d::PrefixStore>(prefix, store)), timeout / 2};
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = sizeof(bytes);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  std::string numeric() {
    std::array<char, NI_MAXHOST> text{};
    getnameinfo(get(), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    return text.data();
  }
};

// Returns at least one address.
std::vector<Address> resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &list);
  if (error != 0) {
    throw UserError("MASTER_ADDR '{}' is not a known host ({}); use an address", host,
                    gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (const addrinfo* next = list; next != nullptr; next = next->ai_next) {
    std::memcpy(&addresses.emplace_back().bytes, next->ai_addr, next->ai_addrlen);
    addresses.back().length = next->ai_addrlen;
  }
  freeaddrinfo(list);
  if (const std::string first = addresses.front().numeric(); first == "0.0.0.0" || first == "::") {
    throw UserError(
        "MASTER_ADDR '{}' stands for every interface, not for a host; set it to the address of "
        "rank 0's host (127.0.0.1 if all ranks are on one host)",
        host);
  }
  return addresses;
}

// Returns the local address of packets to `target`, "" if there is no route. Connecting a datagram
// socket sends nothing.
std::string route_to(Address& target) {
  const Descriptor probe(socket(target.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address own;
  const bool has_route = connect(probe.get(), target.get(), target.length) == 0 &&
                         getsockname(probe.get(), own.get(), &own.length) == 0;
  return has_route ? own.numeric() : "";
}

[[noreturn]] void throw_no_route(const std::string& host, Address& address) {
  const std::string numeric = address.numeric();
  if (numeric.starts_with("127.") || numeric == "::1") {
    throw UserError(
        "the loopback interface of this host is down, and ranks on one host connect through it; "
        "bring it up (ip link set lo up)");
  }
  throw UserError("no network interface of this host routes to MASTER_ADDR '{}'; correct it", host);
}

// Returns a closed descriptor if `address` is not an address of this host.
Descriptor listen_at(Address& address, uint16_t port) {
  Descriptor listening(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listening.get(), address.get(), address.length) == 0 &&
      listen(listening.get(), SOMAXCONN) == 0) {
    return listening;
  }
  if (errno == EADDRINUSE || errno == EACCES) {
    throw UserError("rank 0 cannot listen on port {}, {}", port,
                    errno == EACCES
                        ? "which needs the rights of root; set MASTER_PORT to a port above 1023"
                        : "which another program uses; set MASTER_PORT to a free port");
  }
  return {};
}

c10d::TCPStoreOptions tcp_options(uint16_t port, Seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = to_milliseconds(timeout);
  return options;
}

constexpr const char* kSource = "the store of the run";  // in messages about its contents
constexpr const char* kVerdict = "verdict";
constexpr std::chrono::milliseconds kJoinPoll{20};
constexpr size_t kMaxText = 4096, kMaxListed = 8;

std::string ending_key(int64_t rank) { return fmt::format("ending/{}", rank); }
std::string member_key(int64_t rank) { return fmt::format("member/{}", rank); }

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string to_record(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string get_text(const Json& record, const std::string& key) {
  return printable(get_string(record, key, kSource), kMaxText);
}

Ending parse_ending(const std::string& text) {
  try {
    const Json record = parse_json(text, kSource);
    return {std::clamp<int64_t>(get_int(record, "rank", kSource), -1, kMaxRanks),
            static_cast<int>(std::clamp<int64_t>(get_int(record, "exit_code", kSource), 1, 130)),
            get_text(record, "text")};
  } catch (const UserError& error) {
    return {-1, 1, error.what()};
  }
}

std::string to_record(const Ending& ending) {
  return to_record({{"rank", ending.rank}, {"exit_code", ending.exit_code}, {"text", ending.text}});
}

// Returns "ranks 1, 2, 3 and 2 more of 8 did not join".
std::string describe_missing(std::vector<int64_t> missing, int64_t size) {
  const size_t shown = std::min(missing.size(), kMaxListed), hidden = missing.size() - shown;
  missing.resize(shown);
  return fmt::format("{} {}{} of {} did not join", shown == 1 ? "rank" : "ranks",
                     fmt::join(missing, ", "),
                     hidden == 0 ? "" : fmt::format(" and {} more", hidden), size);
}

}  // namespace

Seconds WaitClock::elapsed() {
  constexpr Seconds kStopped{0.7}, kUsualGap{0.25};
  const auto now = std::chrono::steady_clock::now();
  const Seconds gap = now - last_;
  waited_ += gap > kStopped ? kUsualGap : gap;
  last_ = now;
  return waited_;
}

// c10d's client waits without a limit for an answer (a broken network) and for a file lock (a
// stopped process). It runs in a thread that is left behind if the limit passes.
template <typename Work>
auto Store::within_limit(Work work) const {
  const auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
  auto answer = task->get_future();
  if (answer_limit_ == Seconds{0}) {
    (*task)();
  } else {
    std::thread([task] { (*task)(); }).detach();
  }
  WaitClock clock;
  while (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    if (clock.elapsed() > answer_limit_) {
      throw std::runtime_error(kNoAnswer);
    }
  }
  try {
    return answer.get();
  } catch (const std::exception&) {  // c10d's message has a stack trace
    throw std::runtime_error("the store of the run is gone");
  }
}

void Store::set(const std::string& key, const std::string& value) {
  within_limit([store = store_, key, value] { store->set(key, to_bytes(value)); });
}

std::string Store::set_once(const std::string& key, const std::string& value) {
  return within_limit([store = store_, key, value] {
    return to_text(store->compareSet(key, Bytes(), to_bytes(value)));
  });
}

int64_t Store::add(const std::string& key, int64_t count) {
  return within_limit([store = store_, key, count] { return store->add(key, count); });
}

std::optional<std::string> Store::read(const std::string& key) {
  return within_limit([store = store_, key]() -> std::optional<std::string> {
    return store->check({key}) ? std::optional(to_text(store->get(key))) : std::nullopt;
  });
}

Store Store::connect_again() const { return {share(store_->clone()), answer_limit_}; }

Store open_inherited_store(const Descriptor& file, Seconds timeout) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_uid != geteuid() ||
      fcntl(file.get(), F_GET_SEALS) < 0) {  // fails for all but memory files
    throw UserError("descriptor {} is not the store of a run that moe --ranks started", file.get());
  }
  // FileStore opens its file by name for every operation, the last time in its destructor: this
  // descriptor is left open until the process ends.
  const int held = fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  auto store =
      c10::make_intrusive<c10d::FileStore>(fmt::format("/proc/self/fd/{}", held), kKeepFile);
  store->setTimeout(to_milliseconds(timeout));
  return {share(std::move(store)), timeout / 2};
}

Store serve_store(const std::string& host, uint16_t port, const std::string& prefix,
                  Seconds timeout) {
  std::vector<Address> candidates = resolve(host, port);
  for (size_t i = 0, count = candidates.size(); i < count; ++i) {
    if (const std::string local = route_to(candidates[i]); !local.empty()) {
      candidates.push_back(resolve(local, port).front());
    }
  }
  for (Address& candidate : candidates) {
    Descriptor listening = listen_at(candidate, port);
    if (!listening.is_open()) {
      continue;
    }
    c10d::TCPStoreOptions options = tcp_options(port, timeout);
    options.isServer = true;
    options.masterListenFd = listening.release();
    // The server's thread inherits the mask: a client that hung up must not end the process.
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    const auto store = c10::make_intrusive<c10d::TCPStore>(candidate.numeric(), options);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return with_prefix(store, prefix, timeout);
  }
  throw_no_route(host, candidates.front());
}

Store connect_store(const std::string& host, uint16_t port, const std::string& prefix,
                    Seconds timeout) {
  try {
    return with_prefix(c10::make_intrusive<c10d::TCPStore>(host, tcp_options(port, timeout)),
                       prefix, timeout);
  } catch (const std::exception&) {
    throw UserError(
        "no answer from {} port {} within {:g} s; check that rank 0 runs there, and MASTER_ADDR "
        "and MASTER_PORT",
        host, port, timeout.count());
  }
}

Store make_local_store() { return {share(c10::make_intrusive<c10d::HashStore>()), Seconds{0}}; }

std::string address_towards(const std::string& host, uint16_t port) {
  std::vector<Address> addresses = resolve(host, port);
  for (Address& address : addresses) {
    if (std::string local = route_to(address); !local.empty()) {
      return local;
    }
  }
  throw_no_route(host, addresses.front());
}

const std::string& this_machine() {
  static const std::string machine = [] {
    std::error_code ignored;
    const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored);
    return first_line("/proc/sys/kernel/random/boot_id") + " " + space.string();
  }();
  return machine;
}

Member this_member(const std::string& address) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return {name.data(), address, this_machine(), getpid()};
}

ProcessState process_state(const Member& member) {
  if (member.machine != this_machine()) {
    return ProcessState::kUnknown;
  }
  // "pid (name) state ...". The name may contain ')'.
  const std::string line = first_line(fmt::format("/proc/{}/stat", member.pid));
  const size_t end = line.rfind(')');
  const char state = end == std::string::npos || end + 2 >= line.size() ? 'X' : line[end + 2];
  return state == 'Z' || state == 'X'   ? ProcessState::kGone
         : state == 'T' || state == 't' ? ProcessState::kStopped
                                        : ProcessState::kAlive;
}

std::string describe(int64_t rank, const Member& member) {
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

void claim_rank(Store& store, int64_t rank) {
  if (store.add(fmt::format("claims/{}", rank), 1) > 1) {
    throw UserError(
        "another process is rank {} of a run with the same MASTER_ADDR and MASTER_PORT; give each "
        "run a port of its own",
        rank);
  }
}

std::vector<Member> join(Store& store, int64_t rank, int64_t size, const Member& member,
                         const std::string& version, Seconds timeout) {
  store.set(member_key(rank), to_record({{"host", member.host},
                                         {"address", member.address},
                                         {"machine", member.machine},
                                         {"pid", member.pid},
                                         {"version", version},
                                         {"size", size}}));
  std::vector<Member> members(size);
  std::set<int64_t> missing;
  for (int64_t other = 0; other < size; ++other) {
    missing.insert(other);
  }
  for (WaitClock clock; !missing.empty(); std::this_thread::sleep_for(kJoinPoll)) {
    for (auto next = missing.begin(); next != missing.end();) {
      const auto text = store.read(member_key(*next));
      if (!text) {
        ++next;
        continue;
      }
      const Json record = parse_json(*text, kSource);
      members[*next] = {get_text(record, "host"), get_text(record, "address"),
                        get_text(record, "machine"), get_int(record, "pid", kSource)};
      const std::string its_version = get_text(record, "version");
      const int64_t its_size = get_int(record, "size", kSource);
      if (its_version != version || its_size != size) {
        throw UserError(
            "{} runs {} in a run of {} ranks, rank {} runs {} in a run of {}; start the same "
            "binary with the same number of ranks everywhere",
            describe(*next, members[*next]), its_version, its_size, rank, version, size);
      }
      next = missing.erase(next);
    }
    if (const auto verdict = read_verdict(store)) {
      throw std::runtime_error(verdict->text + ": before all ranks had joined");
    }
    if (!missing.empty() && clock.elapsed() > timeout) {
      throw std::runtime_error(fmt::format("{} within {:g} s of the start",
                                           describe_missing({missing.begin(), missing.end()}, size),
                                           timeout.count()));
    }
  }
  return members;
}

Ending set_verdict(Store& store, const Ending& verdict) {
  return parse_ending(store.set_once(kVerdict, to_record(verdict)));
}

std::optional<Ending> read_verdict(Store& store) {
  const auto text = store.read(kVerdict);
  return text ? std::optional(parse_ending(*text)) : std::nullopt;
}

void write_ending(Store& store, const Ending& ending) {
  store.set(ending_key(ending.rank), to_record(ending));
}

std::optional<Ending> read_ending(Store& store, int64_t rank) {
  const auto text = store.read(ending_key(rank));
  return text ? std::optional(parse_ending(*text)) : std::nullopt;
}

}  // namespace moe::distributed
