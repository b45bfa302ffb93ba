# Target moe_torch: LibTorch's CPU half. find_package(Torch) is not used: without a CUDA
# toolkit it stops, with one it wants an architecture list. The folder is the first that exists of Torch_DIR (its
# share/cmake/Torch), CMAKE_PREFIX_PATH (for a wheel, the environment that it is built in), and the project's .venv.
set(moe_torch_candidates "")
if(Torch_DIR)
  get_filename_component(moe_torch_root "${Torch_DIR}/../../.." ABSOLUTE)
  list(APPEND moe_torch_candidates ${moe_torch_root})
endif()
foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND moe_torch_candidates ${prefix} ${prefix}/torch)
endforeach()
file(GLOB moe_venv_torch ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
list(APPEND moe_torch_candidates ${moe_venv_torch})

foreach(candidate IN LISTS moe_torch_candidates)
  if(EXISTS ${candidate}/lib/libtorch_cpu.so)
    set(MOE_TORCH_ROOT ${candidate})
    break()
  endif()
endforeach()
if(NOT MOE_TORCH_ROOT)
  message(FATAL_ERROR "LibTorch not found: run recipes/setup.sh; for a wheel, install torch where it is to go; or pass "
                      "-DTorch_DIR=<torch>/share/cmake/Torch")
endif()
message(STATUS "LibTorch: ${MOE_TORCH_ROOT}")

add_library(moe_torch INTERFACE)
# After the system's own headers: LibTorch brings a copy of fmt, and ours must be the one we link.
target_compile_options(moe_torch INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${MOE_TORCH_ROOT}/include\">"
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${MOE_TORCH_ROOT}/include/torch/csrc/api/include\">")
target_link_libraries(moe_torch INTERFACE ${MOE_TORCH_ROOT}/lib/libtorch_cpu.so ${MOE_TORCH_ROOT}/lib/libc10.so)

# The wheel's libraries find each other in the wheels beside them.
file(GLOB moe_torch_neighbours ${MOE_TORCH_ROOT}/../nvidia/*/lib)
foreach(folder IN LISTS moe_torch_neighbours)
  target_link_options(moe_torch INTERFACE -Wl,-rpath-link,${folder})
endforeach()
if(NOT SKBUILD) # a wheel is used elsewhere than it is built
  foreach(folder IN LISTS moe_torch_neighbours ITEMS ${MOE_TORCH_ROOT}/lib)
    target_link_options(moe_torch INTERFACE -Wl,-rpath,${folder})
  endforeach()
endif()
