#include "core/distributed/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/distributed/addresses.h"
#include "core/distributed/c10d_store.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

constexpr int kNeverRemoved = -1;  // FileStore's number of processes, the last removes the file
constexpr std::chrono::milliseconds kClockGlance{100};  // between looks at the clock

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::chrono::milliseconds whole(Seconds timeout) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
}

c10d::TCPStoreOptions options_of(uint16_t port, Seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = whole(timeout);
  return options;
}

std::shared_ptr<Store> prefixed(const c10::intrusive_ptr<c10d::TCPStore>& store,
                                const std::string& prefix, Seconds limit) {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, store), false,
                                     limit);
}

// Threads that are made meanwhile do not end the process when they write to a peer that hung up, as
// the server's thread would: it writes by libuv, which leaves SIGPIPE to the program.
class NoSigpipeInNewThreads {
 public:
  NoSigpipeInNewThreads() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~NoSigpipeInNewThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSigpipeInNewThreads(const NoSigpipeInNewThreads&) = delete;
  NoSigpipeInNewThreads& operator=(const NoSigpipeInNewThreads&) = delete;

 private:
  sigset_t before_ = {};
};

struct HeldFile {
  Descriptor file;
};

// c10d opens its file by name again for every operation, and once more in its destructor, which may
// run last in a thread that was left behind. So the store holds a descriptor of its own: bases are
// destroyed in reverse order, the file after the store.
class InheritedFileStore : private HeldFile, public c10d::FileStore {
 public:
  explicit InheritedFileStore(Descriptor held)
      : HeldFile{std::move(held)},
        c10d::FileStore(fmt::format("/proc/self/fd/{}", file.get()), kNeverRemoved) {}
};

}  // namespace

// c10d's client waits for an answer as long as TCP does, which is a quarter of an hour on a cut
// line, and for a file's lock as long as another rank that was stopped holds it: it waits in a
// thread that is left behind when it takes too long.
template <typename Work>
auto C10dStore::ask(Work work) {
  if (limit_ == Seconds{0}) {
    return work();
  }
  using Answer = decltype(work());
  const auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(work));
  auto answer = task->get_future();
  if (!is_silent_) {
    std::thread([task] { (*task)(); }).detach();
    WaitClock clock;
    while (answer.wait_for(kClockGlance) != std::future_status::ready && !is_silent_) {
      is_silent_ = clock.look() > limit_;
    }
  }
  if (is_silent_) {
    throw StoreIsSilent("the store of the run does not answer");
  }
  return answer.get();
}

void C10dStore::set(const std::string& key, const std::string& text) {
  ask([store = store_, key, text] { store->set(key, bytes_of(text)); });
}

void C10dStore::append(const std::string& key, const std::string& text) {
  ask([store = store_, key, text] { store->append(key, bytes_of(text)); });
}

std::optional<std::string> C10dStore::read(const std::string& key) {
  return ask([store = store_, key]() -> std::optional<std::string> {
    if (!store->check({key})) {
      return std::nullopt;
    }
    const std::vector<uint8_t> bytes = store->get(key);
    return std::string(bytes.begin(), bytes.begin() + std::min(bytes.size(), kMostBytes));
  });
}

std::shared_ptr<Store> inherited_store(const Descriptor& file, Seconds timeout) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_uid != geteuid() ||
      fcntl(file.get(), F_GET_SEALS) < 0) {  // which only files in memory have
    throw UserError("descriptor {} is not the store of a run that moe --ranks started", file.get());
  }
  auto store = c10::make_intrusive<InheritedFileStore>(
      Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1)));
  store->setTimeout(whole(timeout));
  return std::make_shared<C10dStore>(std::move(store), true, timeout / 2);
}

std::shared_ptr<Store> serve_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout) {
  Listening listening = listen_towards(host, port);
  c10d::TCPStoreOptions options = options_of(port, timeout);
  options.isServer = true;
  options.masterListenFd = listening.socket.release();
  const NoSigpipeInNewThreads while_it_starts;
  return prefixed(c10::make_intrusive<c10d::TCPStore>(listening.address, options), prefix,
                  Seconds{0});
}

std::shared_ptr<Store> reach_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout) {
  try {
    return prefixed(c10::make_intrusive<c10d::TCPStore>(host, options_of(port, timeout)), prefix,
                    timeout / 2);
  } catch (const std::exception& error) {
    throw UserError(
        "nobody answers at {} port {} for {:g} s; is rank 0 running there, and are MASTER_ADDR and "
        "MASTER_PORT right?",
        host, port, timeout.count());
  }
}

std::shared_ptr<Store> local_store() {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::HashStore>(), true, Seconds{0});
}

}  // namespace moe::distributed
