# Two precompiled headers, moe_pch_plain and moe_pch_torch: LibTorch's headers cost 17 s a file without one and 2 s with it, so
# a file takes them only if it or what it includes names LibTorch.

# moe_precompiled(NAME HEADER deps...): a library whose one use is its precompiled header.
function(moe_precompiled name header)
  add_library(${name} STATIC cmake/pch.cpp)
  target_link_libraries(${name} PUBLIC moe_flags fmt::fmt nlohmann_json::nlohmann_json ${ARGN})
  if(MOE_TIDY)
    return()
  endif()
  target_precompile_headers(${name} PRIVATE <${header}>) # by name, not by place: a cache can share it
  # GCC writes other bytes each time; ccache takes this sum in place of them.
  file(SHA256 ${CMAKE_SOURCE_DIR}/cmake/pch_plain.h plain)
  file(SHA256 ${CMAKE_SOURCE_DIR}/cmake/pch_torch.h torch)
  file(READ ${MOE_TORCH_ROOT}/version.py torch_version)
  set(tsan "")
  if(MOE_TSAN)
    set(tsan " tsan")
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.gch.sum @ONLY
       CONTENT "${plain} ${torch} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${MOE_ASAN}${tsan} ${torch_version}")
endfunction()

# moe_speaks_torch(FILE VARIABLE): whether a file of ours includes LibTorch, itself or through others of ours.
function(moe_speaks_torch file variable)
  get_property(answer GLOBAL PROPERTY moe_speaks_torch_${file})
  if("${answer}" STREQUAL "")
    set(answer FALSE)
    file(STRINGS ${file} lines REGEX "^#include")
    foreach(line IN LISTS lines)
      if(line MATCHES "<(ATen|c10|torch)/")
        set(answer TRUE)
      elseif(NOT answer AND line MATCHES "\"(.*)\"" AND EXISTS ${CMAKE_SOURCE_DIR}/${CMAKE_MATCH_1})
        moe_speaks_torch(${CMAKE_SOURCE_DIR}/${CMAKE_MATCH_1} answer)
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY moe_speaks_torch_${file} ${answer})
  endif()
  set(${variable} ${answer} PARENT_SCOPE)
endfunction()

# moe_reuse_precompiled(TARGET SPEAKS_TORCH): for a target whose files all do, or all do not.
function(moe_reuse_precompiled target speaks_torch)
  if(MOE_TIDY)
    return()
  elseif(speaks_torch)
    target_precompile_headers(${target} REUSE_FROM moe_pch_torch)
  else()
    target_precompile_headers(${target} REUSE_FROM moe_pch_plain)
  endif()
endfunction()

moe_precompiled(moe_pch_plain cmake/pch_plain.h)
moe_precompiled(moe_pch_torch cmake/pch_torch.h moe_torch)
