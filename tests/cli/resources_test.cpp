// tests/kernels/resources.sh with a fake compiler: its registers and spills are compared with a
// table, registers only with a table of the same compiler.

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

class Compiler {
 public:
  Compiler() {
    write_file(folder_ / "kernel.cu", "");
    write_file(folder_ / "nvcc", R"(#!/bin/bash
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

  // Compares the output of the compiler with a table.
  RunResult compare(const std::string& table, int registers = 40, int spilled = 0) const {
    write_file(folder_ / "table.txt", table);
    return run_program(
        "bash",
        {(source_folder() / "tests/kernels/resources.sh").string(),
         (folder_ / "kernel.cu").string()},
        fmt::format("MOE_NVCC={0}/nvcc MOE_RESOURCES={0}/table.txt SPILLED={1} REGISTERS={2}",
                    folder_.path().string(), spilled, registers));
  }

  // 40 registers of 32 lanes are 1280: 12 warps per scheduler, 48 per multiprocessor of 64. 3
  // blocks of 512 threads, 6 of 256.
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
  TempDir folder_;
};

}  // namespace

TEST_CASE("kernels that are equal to the table pass; other registers, new and missing ones fail",
          "[cli][resources]") {
  const Compiler compiler;
  const std::string version = "# nvcc 13.0.88\n", wide = compiler.row("sm_80", "wide");
  RunResult result = compiler.compare(version + compiler.rows());
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  check_has(result.out, {"4 passed, 0 failed, 0 skipped\n"});

  result = compiler.compare(version + compiler.rows(), /*registers=*/41);
  CHECK(result.exit_code == 1);
  check_has(result.out,
            {"(the table has: " + wide.substr(0, wide.size() - 1),
             "`tests/kernels/resources.sh --renew` writes", "0 passed, 4 failed, 0 skipped\n"});

  result = compiler.compare(version + wide + compiler.row("sm_80", "gone"));
  CHECK(result.exit_code == 1);
  check_has(result.out, {"(the table has: nothing)", "the table has a kernel that is not there: ",
                         "1 passed, 4 failed, 0 skipped\n"});
}

TEST_CASE("only spills count against the table of another compiler", "[cli][resources]") {
  const Compiler compiler;
  RunResult result = compiler.compare("# nvcc 12.4.1\n");
  CHECK(result.exit_code == 0);
  check_has(result.out, {"is of nvcc 12.4.1, this is 13.0.88: registers are not compared",
                         "4 passed, 0 failed, 1 skipped\n"});
  result = compiler.compare("# nvcc 12.4.1\n", 40, /*spilled=*/8);
  CHECK(result.exit_code == 1);
  check_has(result.out, {"(spills)"});
}
