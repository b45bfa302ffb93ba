#pragma once
// Ranks as threads of one process, also with several ranks on one GPU. Ranks read the tensors of
// the others directly.

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "core/base/error.h"
#include "core/distributed/comm.h"

namespace moe::test {
namespace rank_threads {

using at::Tensor;
using distributed::Comm;
using distributed::Transfer;

// The operands of a rank in a collective.
struct Operands {
  const char* operation = nullptr;
  Tensor tensor;
  std::vector<int64_t> rows;
};

// State shared by the ranks of one Comm.
class Meeting {
 public:
  explicit Meeting(size_t ranks) : shown_(ranks) {}

  // Publishes `own` and blocks until all ranks have called.
  void show(size_t rank, Operands own) {
    shown_[rank] = std::move(own);
    wait();
    for (const auto& other : shown_) {
      MOE_CHECK(std::string_view(other.operation) == shown_[rank].operation,
                "one rank calls {}, another {}", shown_[rank].operation, other.operation);
    }
  }
  const Operands& shown_by(size_t rank) const { return shown_[rank]; }

  // Blocks until all ranks have called.
  void wait() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == shown_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || broken_; });
    if (round_ == round) {
      throw std::runtime_error("another rank has failed");
    }
  }

  // Makes all waits throw, also those of subsets.
  void give_up() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
    for (const auto& [key, split] : splits_) {
      split->give_up();
    }
  }

  // Returns the state of the subset `members` in split `number`.
  std::shared_ptr<Meeting> split(int64_t number, at::IntArrayRef members) {
    const std::lock_guard lock(mutex_);
    auto& found = splits_[{number, members.front()}];
    if (!found) {
      found = std::make_shared<Meeting>(members.size());
      found->broken_ = broken_;
    }
    return found;
  }

 private:
  std::vector<Operands> shown_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
  bool broken_ = false;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<Meeting>> splits_;
};

class ThreadComm : public Comm {
 public:
  ThreadComm(std::shared_ptr<Meeting> meeting, int64_t rank, int64_t size, at::Device device)
      : Comm(device, rank, size), meeting_(std::move(meeting)) {}

  Transfer all_to_all(const Tensor& input, at::IntArrayRef input_rows, const Tensor& output,
                      at::IntArrayRef output_rows) override {
    show({"all_to_all", input, input_rows.vec()});
    int64_t to = 0;
    for (int64_t rank = 0; rank < size(); ++rank) {
      const Operands& other = meeting_->shown_by(rank);
      const auto before = other.rows.begin() + this->rank();
      MOE_CHECK(*before == output_rows[rank], "rank {} sends {} rows, rank {} expects {}", rank,
                *before, this->rank(), output_rows[rank]);
      const int64_t from = std::accumulate(other.rows.begin(), before, int64_t{0});
      output.narrow(0, to, *before).copy_(other.tensor.narrow(0, from, *before));
      to += *before;
    }
    finish();
    return Transfer();
  }

  void all_reduce(const Tensor& tensor) override {
    show({"all_reduce", tensor, {}});
    Tensor sum = meeting_->shown_by(0).tensor.clone();
    for (int64_t rank = 1; rank < size(); ++rank) {
      sum += meeting_->shown_by(rank).tensor;
    }
    meeting_->wait();  // all ranks have read before one writes
    tensor.copy_(sum);
    finish();
  }

  void reduce_scatter(const Tensor& input, const Tensor& output) override {
    show({"reduce_scatter", input, {}});
    const int64_t length = output.size(0);
    output.copy_(meeting_->shown_by(0).tensor.narrow(0, this->rank() * length, length));
    for (int64_t rank = 1; rank < size(); ++rank) {
      Tensor(output) += meeting_->shown_by(rank).tensor.narrow(0, this->rank() * length, length);
    }
    finish();
  }

  Transfer start_all_gather(const Tensor& input, const Tensor& output) override {
    show({"all_gather", input, {}});
    const int64_t length = input.size(0);
    for (int64_t rank = 0; rank < size(); ++rank) {
      const Tensor part = output.narrow(0, rank * length, length);
      const Tensor& theirs = meeting_->shown_by(rank).tensor;
      if (part.data_ptr() != theirs.data_ptr()) {
        part.copy_(theirs);
      }
    }
    finish();
    return Transfer();
  }

  void barrier() override { meeting_->wait(); }

  std::unique_ptr<Comm> split(at::IntArrayRef members) override {
    const auto own = std::find(members.begin(), members.end(), this->rank());
    MOE_CHECK(own != members.end(), "rank {} is not in its subset", this->rank());
    return std::make_unique<ThreadComm>(meeting_->split(num_splits_++, members),
                                        own - members.begin(), static_cast<int64_t>(members.size()),
                                        device());
  }

 private:
  void show(Operands own) { meeting_->show(static_cast<size_t>(this->rank()), std::move(own)); }
  void finish() {  // no rank frees its tensor before all have read
    wait_for_device();
    meeting_->wait();
  }
  void wait_for_device() const {
    if (!device().is_cpu()) {
      c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(device().index());
    }
  }

  std::shared_ptr<Meeting> meeting_;
  int64_t num_splits_ = 0;
};

}  // namespace rank_threads

// Runs `body` on each of `ranks` threads, with LibTorch's shared backward thread off: it would run
// the backward of all ranks, and a blocking exchange would deadlock. If a rank throws, the next
// collective of the others throws too, and the first exception is rethrown here.
inline void run_as_threads(int64_t ranks, const std::function<void(distributed::Comm&)>& body,
                           at::Device device = at::kCPU) {
  using namespace rank_threads;
  const auto meeting = std::make_shared<Meeting>(static_cast<size_t>(ranks));
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      try {
        ThreadComm comm(meeting, rank, ranks, device);
        body(comm);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) {
            first = std::current_exception();
          }
        }
        meeting->give_up();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace moe::test
