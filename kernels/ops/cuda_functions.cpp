// Opens libmoe_cuda.so next to the binary when a GPU is first requested, so that other programs
// start without LibTorch's CUDA libraries. Tests link the functions in instead. Implements
// device.h.

#include "kernels/ops/cuda_functions.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>
#include <string_view>

#include "kernels/ops/device.h"

// Null unless kernels/cuda/functions.cpp is linked in (tests).
extern "C" [[gnu::weak]] const moe::kernels::CudaFunctions* moe_cuda_functions();

namespace moe::kernels {

namespace {

struct CudaLibrary {
  const CudaFunctions* functions = nullptr;
  std::string reason;  // why there are none, as the end of a sentence
};

CudaLibrary open_library() {
  const std::string library =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("libmoe_cuda.so").string();
  if (!std::filesystem::exists(library)) {
    return {nullptr, "this moe was built without CUDA, build it with preset gpu"};
  }
  if (::dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    return {nullptr, fmt::format("no NVIDIA driver ({}); install one", ::dlerror())};
  }
  // Never closed. RTLD_GLOBAL, because LibTorch's libraries open further ones.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const std::string error = ::dlerror();
    const bool is_installed = error.find("cannot open shared object file") == std::string::npos;
    return {nullptr,
            is_installed
                ? fmt::format("{} does not match the installed LibTorch ({}); rebuild moe", library,
                              error)
                : fmt::format("{} requires a library that is not installed ({}); install LibTorch "
                              "with CUDA",
                              library, error)};
  }
  const auto version = reinterpret_cast<const char* (*)()>(::dlsym(handle, "moe_cuda_version"));
  const auto functions =
      reinterpret_cast<const CudaFunctions* (*)()>(::dlsym(handle, "moe_cuda_functions"));
  if (version == nullptr || functions == nullptr || std::string_view(version()) != MOE_VERSION) {
    return {nullptr,
            fmt::format("{} is of {}, this is moe {}; rebuild moe", library,
                        version == nullptr ? "another moe" : fmt::format("moe {}", version()),
                        MOE_VERSION)};
  }
  return {functions(), ""};
}

// Must be called before LibTorch checks for CUDA, because LibTorch caches the result.
const CudaLibrary& cuda_library() {
  static const CudaLibrary library = [] {
    // cuDNN's attention compiles a kernel for each sequence length, which takes longer than the
    // attention of a batch.
    at::globalContext().setSDPUseCuDNN(false);
    return moe_cuda_functions == nullptr ? open_library() : CudaLibrary{moe_cuda_functions(), ""};
  }();
  return library;
}

}  // namespace

const CudaFunctions& cuda_functions() {
  if (cuda_library().functions == nullptr) {
    throw std::logic_error("CUDA functions: " + cuda_library().reason);
  }
  return *cuda_library().functions;
}

int64_t gpu_count() {
  return cuda_library().functions == nullptr ? 0 : cuda_library().functions->gpu_count();
}

std::string why_no_gpu() {
  return cuda_library().functions == nullptr ? cuda_library().reason
                                             : "the driver shows no GPU; run nvidia-smi";
}

std::string gpu_name(int64_t gpu) { return cuda_functions().gpu_name(gpu); }

uint64_t gpu_peak_bytes(int64_t gpu) { return cuda_functions().gpu_peak_bytes(gpu); }

std::optional<uint64_t> device_peak_bytes(c10::Device device) {
  return device_traits(device).has_host_memory ? std::nullopt
                                               : std::optional(gpu_peak_bytes(device.index()));
}

DeviceTraits device_traits(c10::Device device) {
  const bool is_host = device.is_cpu();
  return {.has_host_memory = is_host,
          .has_streams = !is_host,
          .has_tensor_cores = !is_host,
          .is_row_invariant = is_host,
          .elementwise_numel = int64_t{1} << (is_host ? 18 : 25)};  // CPU: 2 MB of moments
}

HostCopy::HostCopy(const at::Tensor& tensor) : host_(tensor) {
  if (device_traits(tensor.device()).has_host_memory) {
    return;
  }
  host_ = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  arrived_.emplace(tensor.device().type());
  arrived_->record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

const at::Tensor& HostCopy::get() {
  if (arrived_) {
    arrived_->synchronize();
    arrived_.reset();
  }
  return host_;
}

}  // namespace moe::kernels
