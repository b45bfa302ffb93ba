#pragma once
// Memory that the processes of one machine have in common, without a name in any file system: what
// a killed run leaves behind is nothing.

#include <cstddef>
#include <functional>
#include <string>

#include "core/dist/store.h"

namespace moe::dist {

class SharedMemory {
 public:
  // Zeroed. The first of `size` ranks makes it and says in the store, under `key`, where it is; the
  // others find it there. `look` is called now and then while one waits for them; what it throws
  // ends the wait. std::runtime_error: they do not come within `timeout`, or have no way to each
  // other's memory.
  SharedMemory(Store& store, const std::string& key, int64_t rank, int64_t size, size_t bytes,
               Seconds timeout, const std::function<void()>& look);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moe::dist
