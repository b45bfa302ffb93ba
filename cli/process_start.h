#pragma once
// Process-wide settings at start and exit: standard streams and signals.

namespace moe::cli {

// Prepares standard streams and signals. Called first in main(), before any file is opened and any
// thread started.
//   - Opens /dev/null in place of standard descriptors (0, 1, 2) that are closed, so that no other
//     file gets their number. Writes to a standard output that was closed fail.
//   - Makes writes to `stderr` never fail: text that cannot be written (full disk, closed terminal)
//     is dropped and the run continues.
//   - Ignores SIGXFSZ: a write beyond the file size limit (ulimit -f) then fails with EFBIG.
void prepare_process();

// Flushes standard output. Throws UserError if any of it could not be written (for example, a full
// disk); `error` is the errno of an earlier write that failed, 0 if there was none. Returns false,
// and prints nothing, if standard output is a pipe that the reader has closed.
bool finish_output(int error = 0);

}  // namespace moe::cli
