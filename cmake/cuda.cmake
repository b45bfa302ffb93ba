# The CUDA half, included with MOE_CUDA: kernels/cuda and LibTorch's CUDA libraries as libmoe_cuda.so, which the binary opens
# when a GPU is asked for (kernels/ops/cuda_functions.cpp). Nothing else is compiled or linked otherwise than without it.
# Machine code for A100 and for H100/H200 (90a: all of Hopper's instructions), and PTX that the driver of any later GPU
# compiles.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB moe_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cpp)
add_library(moe_cuda SHARED ${moe_cuda_sources})
target_compile_definitions(moe_cuda PRIVATE MOE_VERSION="${PROJECT_VERSION}")
# CMake 3.25 knows no CUDA 20; the kernels need nothing newer than 17.
set_target_properties(moe_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                                          CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}"
                                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
# Relaxed constexpr: what CPU and GPU must compute alike is one constexpr function, called on both.
target_compile_options(moe_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --expt-relaxed-constexpr -Xcompiler=-Wall>)
target_include_directories(moe_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# --no-as-needed: LibTorch's CUDA backend registers itself when it is loaded; --no-undefined: nothing is left to the binary.
target_link_libraries(moe_cuda PRIVATE moe_flags moe_torch CUDA::cudart -Wl,--no-as-needed ${MOE_TORCH_ROOT}/lib/libtorch_cuda.so
                                       ${MOE_TORCH_ROOT}/lib/libc10_cuda.so -Wl,--as-needed)
target_link_options(moe_cuda PRIVATE -Wl,--no-undefined -Wl,-rpath-link,${CUDAToolkit_LIBRARY_DIR})
add_dependencies(moe_kernels moe_cuda)
