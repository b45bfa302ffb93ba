// Finds the table of CUDA functions: that of the library beside the binary, which is opened when
// somebody first asks for a GPU, so that all else starts without LibTorch's CUDA half. Or that
// which was linked in, of tests. Answers what can be asked about devices.

#include "kernels/ops/cuda_functions.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "kernels/ops/device.h"

// A weak reference is null where the program was linked without kernels/cuda/functions.cpp, as all
// but tests are.
extern "C" [[gnu::weak]] const moe::kernels::CudaFunctions* moe_cuda_functions();

namespace moe::kernels {

namespace {

struct CudaHalf {
  const CudaFunctions* functions = nullptr;
  std::string missing;  // why there are none, as the end of a sentence
};

CudaHalf refuse(std::string missing) { return {nullptr, std::move(missing)}; }

// Of dlopen's last failure.
CudaHalf refuse_library(const std::string& library) {
  const std::string error = ::dlerror();
  return refuse(error.find("cannot open shared object file") != std::string::npos
                    ? fmt::format("{} needs a library that is not here ({}); install LibTorch with "
                                  "CUDA",
                                  library, error)
                    : fmt::format("{} does not fit the LibTorch that is here ({}); build moe again",
                                  library, error));
}

CudaHalf open_library() {
  const std::string library =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("libmoe_cuda.so").string();
  if (!std::filesystem::exists(library)) {
    return refuse("this moe was built without CUDA, build it with preset gpu");
  }
  if (::dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    return refuse(fmt::format("no NVIDIA driver ({}); install one", ::dlerror()));
  }
  // Never closed; for all to see, as if it were linked: LibTorch's libraries open further ones.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    return refuse_library(library);
  }
  const auto version = reinterpret_cast<const char* (*)()>(::dlsym(handle, "moe_cuda_version"));
  const auto functions =
      reinterpret_cast<const CudaFunctions* (*)()>(::dlsym(handle, "moe_cuda_functions"));
  if (version == nullptr || functions == nullptr || std::string_view(version()) != MOE_VERSION) {
    return refuse(fmt::format("{} is of {}, this is moe {}; build moe again", library,
                              version == nullptr ? "another moe" : fmt::format("moe {}", version()),
                              MOE_VERSION));
  }
  return {functions(), ""};
}

// LibTorch asks once whether there is CUDA and remembers: what is to find it calls this first.
const CudaHalf& cuda_half() {
  static const CudaHalf half = [] {
    // cuDNN's attention compiles a kernel for every length of a sequence, which takes longer than
    // the attention of a whole batch of sequences.
    at::globalContext().setSDPUseCuDNN(false);
    return moe_cuda_functions == nullptr ? open_library() : CudaHalf{moe_cuda_functions(), ""};
  }();
  return half;
}

}  // namespace

const CudaFunctions& cuda_functions() {
  if (cuda_half().functions == nullptr) {
    throw std::logic_error("an operation on a CUDA tensor: " + cuda_half().missing);
  }
  return *cuda_half().functions;
}

int64_t gpu_count() {
  return cuda_half().functions == nullptr ? 0 : cuda_half().functions->gpu_count();
}

std::string why_no_gpu() {
  return cuda_half().functions == nullptr ? cuda_half().missing
                                          : "the driver shows no GPU, see what nvidia-smi says";
}

std::string gpu_name(int64_t gpu) { return cuda_functions().gpu_name(gpu); }

uint64_t gpu_peak_bytes(int64_t gpu) { return cuda_functions().gpu_peak_bytes(gpu); }

}  // namespace moe::kernels
