#pragma once
// The clock of every measurement here: with one thread the process's CPU seconds, which a busy
// machine does not stretch; with more the wall's.

namespace moe::bench {

bool times_cpu();      // one thread
double clock_now_s();  // differences of it are seconds

}  // namespace moe::bench
