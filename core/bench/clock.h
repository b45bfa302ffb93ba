#pragma once
// The clock of every measurement here: with one thread the process's CPU seconds, which a busy
// machine does not stretch; with more the wall's.

#include <c10/core/Device.h>

namespace moe::bench {

bool times_cpu();      // one thread
double clock_now_s();  // differences of it are seconds
// The same of work on `device`: of a card the wall's, once all that was launched is done.
double clock_now_s(c10::Device device);

}  // namespace moe::bench
