# The CUDA half, included with MOE_CUDA: kernels/cuda and LibTorch's CUDA libraries.
# Machine code for A100 and for H100/H200 (90a: all of Hopper's instructions), and PTX that the driver of any later GPU
# compiles.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB moe_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
set(moe_cuda_host_sources ${CMAKE_SOURCE_DIR}/kernels/cuda/device.cpp ${CMAKE_SOURCE_DIR}/kernels/cuda/graph.cpp)
target_sources(moe_kernels PRIVATE ${moe_cuda_sources} ${moe_cuda_host_sources} ${CMAKE_SOURCE_DIR}/kernels/cuda/functions.cpp)
# The table of CUDA functions is asked for by a weak name (kernels/ops/cuda_functions.cpp), which alone would leave it out.
target_link_options(moe_kernels INTERFACE -Wl,--undefined=moe_cuda_functions)
target_sources(moe_distributed PRIVATE ${CMAKE_SOURCE_DIR}/core/distributed/backend_nccl.cpp)
# CMake 3.25 knows no CUDA 20; the kernels need nothing newer than 17.
set_target_properties(moe_kernels PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                                             CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
# Relaxed constexpr: what CPU and GPU must compute alike is one constexpr function, called on both.
target_compile_options(moe_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall>)
# Only these C++ files see the toolkit: all others compile as in the cpu preset, and the compiler's cache serves both.
set_source_files_properties(${moe_cuda_host_sources} ${CMAKE_SOURCE_DIR}/core/distributed/backend_nccl.cpp
                            PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
target_link_libraries(moe_kernels PUBLIC $<LINK_ONLY:CUDA::cudart>)
# --no-as-needed: LibTorch's CUDA backend registers itself when it is loaded, nothing of ours names its symbols.
target_link_libraries(moe_torch INTERFACE -Wl,--no-as-needed ${MOE_TORCH_ROOT}/lib/libtorch_cuda.so
                                          ${MOE_TORCH_ROOT}/lib/libc10_cuda.so -Wl,--as-needed)
target_link_options(moe_torch INTERFACE -Wl,-rpath-link,${CUDAToolkit_LIBRARY_DIR})
