// tests/kernels/resources.sh by a compiler that is made up: what it says of kernels is compared
// with a table, and a table of another compiler is not.

#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"

using moe::test::contains_text;
using moe::test::RunResult;

namespace {

class Compiler {
 public:
  Compiler() {
    moe::test::write_file(folder_ / "kernel.cu", "");
    moe::test::write_file(folder_ / "nvcc", R"(#!/bin/bash
if [ "$1" = --version ]; then echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit; fi
keep=$(sed 's/.*--keep-dir \([^ ]*\).*/\1/' <<<"$*")
printf '.visible .entry wide(\n.maxntid 512\n.visible .entry narrow(\n' >"$keep/kernel.ptx"
for kernel in wide narrow; do
  echo "ptxas info    : Compiling entry function '$kernel' for 'sm_80'"
  echo "    0 bytes stack frame, $SPILLED bytes spill stores, 0 bytes spill loads"
  echo "ptxas info    : Used $REGISTERS registers, used 1 barriers, 1024 bytes smem"
done >&2
)");
    std::filesystem::permissions(folder_ / "nvcc", std::filesystem::perms::all);
  }

  RunResult run(const std::string& arguments, int registers = 40, int spilled = 0) const {
    const std::string script = (moe::test::source_folder() / "tests/kernels/resources.sh").string();
    return moe::test::run_program("bash", {"-c", "MOE_NVCC=" + (folder_ / "nvcc").string() +
                                                     " MOE_RESOURCES=" + table().string() +
                                                     " SPILLED=" + std::to_string(spilled) +
                                                     " REGISTERS=" + std::to_string(registers) +
                                                     " bash " + script + " " + arguments});
  }
  RunResult compare(int registers = 40, int spilled = 0) const {
    return run((folder_ / "kernel.cu").string(), registers, spilled);
  }

  std::filesystem::path table() const { return folder_ / "table.txt"; }

  // 40 registers of 32 lanes are 1280: twelve warps a part, of 64. Three blocks of 512 threads, six
  // of 256.
  std::string row(const std::string& gpu, const std::string& kernel) const {
    return (folder_ / "kernel.cu").string() + " " + gpu +
           (kernel == "wide" ? " 512 threads " : " 256 threads ") +
           "40 registers 1024 shared 0 stack 0 spilled 75 % " + kernel + "\n";
  }
  std::string rows() const {
    return row("sm_80", "narrow") + row("sm_80", "wide") + row("sm_90a", "narrow") +
           row("sm_90a", "wide");
  }

 private:
  moe::test::TempDir folder_;
};

}  // namespace

TEST_CASE("kernels that are as the table has them pass", "[cli][resources]") {
  const Compiler compiler;
  moe::test::write_file(compiler.table(), "# nvcc 13.0.88\n" + compiler.rows());
  const RunResult result = compiler.compare();
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, contains_text("4 passed, 0 failed, 0 skipped\n"));
}

TEST_CASE("another number of registers, a new kernel and one that is gone fail, with what to do",
          "[cli][resources]") {
  const Compiler compiler;
  moe::test::write_file(compiler.table(), "# nvcc 13.0.88\n" + compiler.rows());
  RunResult result = compiler.compare(/*registers=*/41);
  CHECK(result.exit_code == 1);
  CHECK_THAT(
      result.out,
      contains_text(
          "(the table has: " +
          (compiler.row("sm_80", "wide")).substr(0, compiler.row("sm_80", "wide").size() - 1)));
  CHECK_THAT(result.out, contains_text("`tests/kernels/resources.sh --renew` writes"));
  CHECK_THAT(result.out, contains_text("0 passed, 4 failed, 0 skipped\n"));

  moe::test::write_file(compiler.table(), "# nvcc 13.0.88\n" + compiler.row("sm_80", "wide") +
                                              compiler.row("sm_80", "gone"));
  result = compiler.compare();
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, contains_text("(the table has: nothing)"));
  CHECK_THAT(result.out, contains_text("the table has a kernel that is not there: "));
  CHECK_THAT(result.out, contains_text("1 passed, 4 failed, 0 skipped\n"));
}

TEST_CASE("of another compiler's table only spills count", "[cli][resources]") {
  const Compiler compiler;
  moe::test::write_file(compiler.table(), "# nvcc 12.4.1\n");
  RunResult result = compiler.compare();
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out,
             contains_text("is of nvcc 12.4.1, this is 13.0.88: registers are not compared"));
  CHECK_THAT(result.out, contains_text("4 passed, 0 failed, 1 skipped\n"));
  result = compiler.compare(40, /*spilled=*/8);
  CHECK(result.exit_code == 1);
  CHECK_THAT(result.out, contains_text("(spills)"));
}
