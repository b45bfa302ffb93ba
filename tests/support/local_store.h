#pragma once
// Store for ranks that are threads of one process.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/distributed/rendezvous.h"

namespace moe::test {

inline distributed::Store make_local_store() {
  return {c10::make_intrusive<c10d::HashStore>(), distributed::Seconds{10}};
}

}  // namespace moe::test
