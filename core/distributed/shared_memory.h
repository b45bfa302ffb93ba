#pragma once
// Memory that the processes of one machine have in common, without a name in any file system: what
// a killed run leaves behind is nothing. It is sealed at its size: who could shorten it under a
// process that has it mapped would end that process (SIGBUS).
//
// Ranks that `moe --ranks` started inherit one large piece and take their parts from it. Ranks of
// other launchers hand descriptors to each other (descriptor_passing.h).

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/base/descriptor.h"
#include "core/distributed/store.h"

namespace moe::distributed {

// A file in memory (base/descriptor.h) of `bytes` zeros that can neither shrink nor grow. Memory is
// taken as it is written.
Descriptor make_sealed_memory(size_t bytes);

// The size of what another process handed over. std::runtime_error unless it is sealed memory of
// this user.
size_t sealed_memory_bytes(const Descriptor& memory);

// Bytes mapped for reading and writing.
class Mapping {
 public:
  Mapping(const Descriptor& memory, size_t offset, size_t bytes);  // offset: of whole pages
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// The piece that the ranks of one launcher inherit.
class MemoryPool {
 public:
  // In the launcher: room for `bytes` in all, and for `reserved` bytes that are there from the
  // beginning, for all ranks.
  static Descriptor make(size_t bytes, size_t reserved = 0);

  // In a rank. std::runtime_error: it is no such memory.
  explicit MemoryPool(Descriptor memory);

  // The offset of `bytes` that are free, and from now on taken; any rank may ask.
  // std::runtime_error: there is no room left.
  size_t take(size_t bytes);
  // `bytes` of zeros at an offset that a rank took. std::runtime_error: that lies outside the pool.
  Mapping map(size_t offset, size_t bytes) const;
  // The first `bytes` of those that the launcher reserved.
  Mapping map_reserved(size_t bytes) const;

 private:
  Descriptor memory_;
  size_t bytes_;
  Mapping header_;
};

// How ranks come to memory in common.
struct MemoryMeeting {
  Store& store;
  std::string key;  // where the first of them says how the others come to it
  int64_t rank = 0, size = 1;
  MemoryPool* pool = nullptr;  // null: descriptors are handed over
  Seconds timeout{0};
  // Called now and then while one waits for the others; what it throws ends the wait.
  std::function<void()> look;
};

// `bytes` of zeros in common. std::runtime_error: the others do not come within `timeout`, or what
// they hand over is not what was agreed on.
Mapping share_memory(const MemoryMeeting& meeting, size_t bytes);

}  // namespace moe::distributed
