# The wheel, included where scikit-build-core builds (pyproject.toml): one folder of site-packages that is laid out as a checkout
# is, the binary beside recipes/, with the libraries that a bare machine lacks in lib/. LibTorch is that of the torch package
# beside it, of the version that the binary was linked with.
set(moe_package moe_upcycle)

file(STRINGS ${CMAKE_SOURCE_DIR}/pyproject.toml moe_wanted_torch REGEX "torch==[0-9.]+")
string(REGEX REPLACE ".*torch==([0-9.]+).*" "\\1" moe_wanted_torch "${moe_wanted_torch}")
file(STRINGS ${MOE_TORCH_ROOT}/version.py moe_found_torch REGEX "^__version__ = ")
if(NOT moe_found_torch MATCHES "'${moe_wanted_torch}[+']")
  message(FATAL_ERROR "the wheel is for torch==${moe_wanted_torch}; ${MOE_TORCH_ROOT}/version.py says: ${moe_found_torch}. "
                      "Install that version first: pip install torch==${moe_wanted_torch}")
endif()

# RPATH and not RUNPATH: it holds for the libraries of lib/ as well, some of which need others of them.
set(moe_rpath "$ORIGIN" "$ORIGIN/lib" "$ORIGIN/../torch/lib")
foreach(folder IN LISTS moe_torch_neighbours)
  file(RELATIVE_PATH folder ${MOE_TORCH_ROOT} ${folder})
  list(APPEND moe_rpath "$ORIGIN/${folder}")
endforeach()
set(moe_binaries moe moe_kernels)
if(MOE_CUDA)
  list(APPEND moe_binaries moe_cuda)
endif()
foreach(binary IN LISTS moe_binaries)
  set_target_properties(${binary} PROPERTIES BUILD_WITH_INSTALL_RPATH TRUE INSTALL_RPATH "${moe_rpath}")
  target_link_options(${binary} PRIVATE -Wl,--disable-new-dtags)
endforeach()

configure_file(${CMAKE_SOURCE_DIR}/cli/launcher.py ${CMAKE_BINARY_DIR}/launcher.py @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/launcher.py DESTINATION ${moe_package} RENAME __init__.py)
install(TARGETS ${moe_binaries} RUNTIME DESTINATION ${moe_package} LIBRARY DESTINATION ${moe_package})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes DESTINATION ${moe_package} USE_SOURCE_PERMISSIONS
        PATTERN setup.sh EXCLUDE PATTERN libtorch.txt EXCLUDE PATTERN cuda_libraries.txt EXCLUDE PATTERN parquet.txt EXCLUDE
        PATTERN results EXCLUDE PATTERN __pycache__ EXCLUDE)

# Each under the name by which it is asked for: a wheel has no links.
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES $<TARGET_FILE:moe> LIBRARIES $<TARGET_FILE:moe_kernels> RESOLVED_DEPENDENCIES_VAR libraries
       PRE_EXCLUDE_REGEXES [[^lib(c|m|dl|rt|pthread|util|gcc_s|stdc\\+\\+)\\.so]] [[^ld-linux]] [[^lib(torch|c10|gomp|moe_ops)]]
                           [[^lib(cu|nccl|nv)]])
  foreach(library IN LISTS libraries)
    get_filename_component(name \${library} NAME)
    get_filename_component(file \${library} REALPATH)
    file(INSTALL \${file} DESTINATION \${CMAKE_INSTALL_PREFIX}/${moe_package}/lib RENAME \${name})
  endforeach()
")
