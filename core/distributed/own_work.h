#pragma once
// What one rank does on its own while the others may already wait for it: writing its part of a
// checkpoint, reading a model from a slow disk. That may take longer than ranks wait for each other
// (--comm-timeout); so a rank at such work says again and again that it is, and is waited for as
// long as it does. Processes that die meanwhile are found as ever; one that stands still says
// nothing any more, and is given up after two time limits.

#include <memory>

#include "core/distributed/comm.h"

namespace moe::distributed {

class OwnWork {
 public:
  virtual ~OwnWork() = default;
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 protected:
  OwnWork() = default;
};

// A Comm whose ranks lose patience.
class Impatient {
 public:
  virtual ~Impatient() = default;
  virtual std::unique_ptr<OwnWork> own_work() = 0;

 protected:
  Impatient() = default;
  Impatient(const Impatient&) = default;
  Impatient& operator=(const Impatient&) = default;
};

// From now to the end of the result this rank is at work on its own. Null where ranks wait for ever
// (threads) or there is but one.
std::unique_ptr<OwnWork> own_work(Comm& comm);

class RollCall;

// Tells the roll once a `pause_s`, from a thread of its own; `roll` outlives it.
std::unique_ptr<OwnWork> tell_of_own_work(RollCall& roll, double pause_s);

}  // namespace moe::distributed
