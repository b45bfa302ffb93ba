// A CUDA device for LibTorch on machines without one. The host cannot access the memory of its
// tensors (memory.h), operations of LibTorch run as CPU kernels on copies, and our kernels run on
// the emulator. An operation with tensors of both devices is refused as in LibTorch for CUDA, and a
// pointer that the host dereferences is a fault. The device is synchronous and slow, and does not
// reproduce the rounding of LibTorch's CUDA kernels.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <cmath>
#include <memory>

#include "detour.h"
#include "kernels/ops/cuda_functions.h"
#include "memory.h"

namespace emulated {

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

const c10::Device kGpu(c10::kCUDA, 0);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return kGpu; }
  c10::Device getDevice() const override { return kGpu; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device /*device*/) const override {
    return c10::Stream(c10::Stream::DEFAULT, kGpu);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(c10::DeviceIndex /*device*/) const override {}
  // There is one stream, which is always idle. The clock of its events runs a thousand times as
  // fast as that of the host, so that a test can tell which clock was used.
  void record(void** event, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = std::make_unique<Clock::time_point>().release();
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex /*device*/) const override {
    const std::chrono::duration<double, std::milli> host =
        *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(begin);
    return 1000 * host.count();
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    const std::unique_ptr<Clock::time_point> owned(static_cast<Clock::time_point*>(event));
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = take_memory(bytes);
    return {memory, memory, &give_back_memory, kGpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Awake awake;
    default_copy_data(to, from, bytes);
  }
};

// Page-locked memory is ordinary memory.
struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override { return host().allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return host().raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void* /*memory*/, void* /*context*/, c10::Stream /*stream*/) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static c10::Allocator& host() { return *c10::GetAllocator(c10::kCPU); }
};

HostAllocator* host_allocator() {
  static HostAllocator one;
  return &one;
}

const at::HostAllocatorRegistry<c10::kCUDA> kHostAllocator(host_allocator());

c10::Allocator* allocator() {
  static Allocator one;
  return &one;
}

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
             std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
             std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
                     std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

// Returns a view for the host, valid while an Awake exists.
Tensor host_view(const Tensor& tensor) {
  return tensor.is_cuda() ? at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                          at::TensorOptions(tensor.scalar_type()))
                          : tensor;
}

Tensor& copy(Tensor& to, const Tensor& from, bool /*non_blocking*/) {
  if (from.is_cuda() && to.is_cpu()) {
    note_read("aten::copy_ to the host");
  }
  const Awake awake;
  const at::AutoDispatchBelowAutograd below;
  host_view(to).copy_(host_view(from));
  return to;
}

const Tensor& resize(const Tensor& tensor, at::IntArrayRef size,
                     std::optional<at::MemoryFormat> /*format*/) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(size)) * tensor.element_size();
  if (bytes > tensor.storage().nbytes()) {
    impl->unsafe_storage().set_data_ptr_noswap(allocator()->allocate(bytes));
    impl->unsafe_storage().set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return tensor;
}

// Implements set_().
Tensor& set_memory(Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef size,
                   at::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

Tensor copy_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  Tensor into = to;
  return into.copy_(from);
}

at::Scalar number(const Tensor& tensor) {
  note_read("aten::_local_scalar_dense");
  const Awake awake;
  return host_view(tensor).item();
}

// Throws as LibTorch for CUDA does if tensors of both devices are given, except numbers and
// indices.
void refuse_both_devices(const c10::OperatorHandle& operation, const torch::jit::Stack& stack) {
  const std::string& name = operation.schema().name();
  if (name == "aten::index" || name.find("index_put") != std::string::npos) {
    return;
  }
  bool has_host = false, has_gpu = false;
  const size_t count = operation.schema().arguments().size();
  const auto see = [&](const Tensor& tensor) {
    has_gpu = has_gpu || tensor.is_cuda();
    has_host = has_host || (tensor.defined() && tensor.is_cpu() && tensor.dim() > 0);
  };
  for (const auto& value : torch::jit::last(stack, count)) {
    if (value.isTensor()) {
      see(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorList()) {
        see(tensor);
      }
    }
  }
  TORCH_CHECK(!has_host || !has_gpu, name, ": tensors on the host and on the GPU");
}

// Returns true for operations whose result has a size that the host reads from the GPU.
bool asks_for_size(const std::string& name) {
  return name == "aten::nonzero" || name == "aten::masked_select" || name == "aten::bincount" ||
         name == "aten::equal" || name == "aten::repeat_interleave" ||
         name.find("aten::_unique") == 0;
}

void fall_back(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  refuse_both_devices(operation, *stack);
  if (asks_for_size(operation.schema().name())) {
    note_read(operation.schema().name());
  }
  const Detour detour;
  at::native::cpu_fallback(operation, stack);
}

// Products of bf16 that give f32; LibTorch has them on CUDA only.
Tensor product_to(const Tensor& left, const Tensor& right, at::ScalarType type) {
  const Detour detour;
  return at::mm(left.to(type), right.to(type));
}

Tensor& product_to_out(const Tensor& left, const Tensor& right, at::ScalarType type, Tensor& out) {
  const Detour detour;
  return out.copy_(product_to(left, right, type));
}

// Adds to `self` without temporary memory.
Tensor& add_product_to_out(const Tensor& self, const Tensor& left, const Tensor& right,
                           at::ScalarType type, const at::Scalar& beta, const at::Scalar& alpha,
                           Tensor& out) {
  const Awake awake;
  const at::AutoDispatchBelowAutograd below;
  host_view(out).copy_(at::addmm(host_view(self).to(type), host_view(left).to(type),
                                 host_view(right).to(type), beta, alpha));
  return out;
}

// On GPUs from sm90 on the host reads nothing; LibTorch for CPU reads the ends.
Tensor grouped_matmul(const Tensor& left, const Tensor& right, const std::optional<Tensor>& ends,
                      const std::optional<Tensor>& /*bias*/,
                      std::optional<at::ScalarType> /*type*/) {
  const Detour detour;
  return at::_grouped_mm(left.cpu(), right.cpu(), ends->cpu()).to(kGpu);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& mask, double dropout, bool is_causal,
                 std::optional<double> scale, bool gqa) {
  std::optional<Tensor> added = mask;  // to the scores
  if (mask && mask->scalar_type() == at::kBool) {
    added = at::zeros(mask->sizes(), query.options()).masked_fill(mask->logical_not(), -INFINITY);
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, added, dropout,
                                                            is_causal, {}, scale, gqa));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("resize_", &resize);
  library.impl("_copy_from_and_resize", &copy_and_resize);
  library.impl("set_.source_Storage_storage_offset", &set_memory);
  library.impl("_local_scalar_dense", &number);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("mm.dtype", &product_to);
  library.impl("mm.dtype_out", &product_to_out);
  library.impl("addmm.dtype_out", &add_product_to_out);
  library.impl("_grouped_mm", &grouped_matmul);
  library.impl("scaled_dot_product_attention", &attention);
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("scaled_dot_product_attention", &attention);
}

}  // namespace emulated

// Required by LibTorch's autograd.
namespace at {

namespace {

struct CUDAHooks final : CUDAHooksInterface {  // the name that LibTorch looks for
  explicit CUDAHooks(CUDAHooksArgs /*none*/) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  Allocator* getPinnedMemoryAllocator() const override { return getHostAllocator(kCUDA); }
};

}  // namespace

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at
