// Messages of --device cuda if libmoe_cuda.so is missing or cannot be used. The tests replace it by
// small libraries that they compile, so that every message is tested on any machine.

#include "tests/cli/commands.h"

using namespace moe::test;

namespace {

// Compiles C source to a shared library.
void make_library(const fs::path& file, const std::string& source,
                  std::vector<std::string> flags = {}) {
  write_file(file.string() + ".c", source);
  flags.insert(flags.begin(), {"-shared", "-fPIC", "-o", file.string(), file.string() + ".c"});
  const RunResult compiled = run_program("gcc", flags);
  INFO(compiled.err);
  REQUIRE(compiled.exit_code == 0);
}

// A copy of the binary without libmoe_cuda.so, next to an empty driver library.
class BinaryCopy {
 public:
  BinaryCopy() {
    const fs::path binary = moe_binary();
    fs::copy_file(binary, folder_ / "moe");
    fs::copy_file(binary.parent_path() / "libmoe_ops.so", folder_ / "libmoe_ops.so");
    fs::create_directory(folder_ / "driver");
    make_library(folder_ / "driver/libcuda.so.1", "");
  }

  void put_library(const std::string& source, const std::vector<std::string>& flags = {}) const {
    make_library(folder_ / "libmoe_cuda.so", source, flags);
  }

  RunResult run_on_cuda(const std::string& libraries) const {
    return run_program((folder_ / "moe").string(),
                       {"generate", "no-such-model", "--prompt", "x", "--device", "cuda"},
                       "LD_LIBRARY_PATH=" + libraries);
  }
  RunResult run_on_cuda() const { return run_on_cuda((folder_ / "driver").string()); }

  const TempDir& folder() const { return folder_; }

 private:
  TempDir folder_;
};

// Returns the source of a libmoe_cuda.so that finds no GPU.
std::string library_source(const std::string& version) {
  return "static long none(void) { return 0; }\n"
         "static long (*functions[64])(void) = {none};\n"
         "void* moe_cuda_functions(void) { return functions; }\n"
         "const char* moe_cuda_version(void) { return \"" +
         version + "\"; }\n";
}

std::string own_version() {
  const std::string version = run_moe({"--version"}).out;  // "moe 0.1.0\n"
  return version.substr(4, version.size() - 5);
}

}  // namespace

TEST_CASE("the message of --device cuda names the missing component and the remedy", "[cli]") {
  const BinaryCopy moe;
  check_refused(moe.run_on_cuda(), "this moe was built without CUDA, build it with preset gpu");

  moe.put_library(library_source(own_version()));
  check_refused(moe.run_on_cuda(), "the driver shows no GPU");
  if (run_program("sh", {"-c", "ldconfig -p | grep libcuda.so.1"}).exit_code != 0) {
    check_refused(moe.run_on_cuda("/nowhere"), "no NVIDIA driver (libcuda.so.1: ");
  }

  moe.put_library(library_source("0.0.1"));
  check_refused(moe.run_on_cuda(), "is of moe 0.0.1, this is moe " + own_version());
  moe.put_library("");
  check_refused(moe.run_on_cuda(), "is of another moe, this is moe ");

  moe.put_library("int of_another_torch(void); int f(void) { return of_another_torch(); }");
  check_refused(moe.run_on_cuda(), "does not match the installed LibTorch (");

  make_library(moe.folder() / "libtorch_cuda_half.so", "");
  moe.put_library(library_source(own_version()),
                  {"-Wl,--no-as-needed", moe.folder() / "libtorch_cuda_half.so"});
  fs::remove(moe.folder() / "libtorch_cuda_half.so");
  check_refused(moe.run_on_cuda(), "requires a library that is not installed (");
}

TEST_CASE("the binary does not need LibTorch's CUDA libraries", "[cli]") {
  const auto libraries = run_program("ldd", {moe_binary()});
  REQUIRE(libraries.exit_code == 0);
  CHECK(says(libraries.out, "libtorch_cpu.so"));
  for (const char* library : {"libtorch_cuda", "libc10_cuda", "libmoe_cuda", "libnccl"}) {
    CAPTURE(library);
    CHECK(libraries.out.find(library) == std::string::npos);
  }
}
