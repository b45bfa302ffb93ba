#include "core/dist/store.h"

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/error.h"
#include "core/dist/c10d_store.h"

namespace moe::dist {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

c10d::TCPStoreOptions options_of(uint16_t port, bool is_server, Seconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  return options;
}

std::shared_ptr<Store> prefixed(const c10::intrusive_ptr<c10d::TCPStore>& store,
                                const std::string& prefix, Seconds patience) {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, store),
                                     store->getPort(), patience);
}

}  // namespace

// c10d's client waits for an answer as long as TCP does, which is a quarter of an hour on a cut
// line: it waits in a thread that is left behind when it takes too long.
template <typename Work>
auto C10dStore::ask(Work work) {
  if (patience_ == Seconds{0}) {
    return work();
  }
  using Answer = decltype(work());
  const auto task = std::make_shared<std::packaged_task<Answer()>>(std::move(work));
  auto answer = task->get_future();
  if (!is_silent_) {
    std::thread([task] { (*task)(); }).detach();
    is_silent_ = answer.wait_for(patience_) != std::future_status::ready;
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
    return std::string(bytes.begin(), bytes.end());
  });
}

std::shared_ptr<Store> serve_store(uint16_t port, const std::string& prefix, Seconds timeout) {
  try {
    return prefixed(
        c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options_of(port, true, timeout)), prefix,
        Seconds{0});
  } catch (const std::exception& error) {
    throw UserError(
        "rank 0 cannot listen on port {}, another program has it; set MASTER_PORT to a free one",
        port);
  }
}

std::shared_ptr<Store> reach_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout) {
  try {
    return prefixed(c10::make_intrusive<c10d::TCPStore>(host, options_of(port, false, timeout)),
                    prefix, timeout / 2);
  } catch (const std::exception& error) {
    throw UserError(
        "nobody answers at {} port {} for {:g} s; is rank 0 running there, and are MASTER_ADDR and "
        "MASTER_PORT right?",
        host, port, timeout.count());
  }
}

std::shared_ptr<Store> local_store() {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::HashStore>(), uint16_t{0},
                                     Seconds{0});
}

}  // namespace moe::dist
