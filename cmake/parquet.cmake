# libmoe_parquet.so beside the binary, which core/data/records.cpp loads for the first Parquet file. Included unless MOE_PARQUET is
# OFF. Arrow's headers and libraries are those inside the pyarrow wheel (recipes/parquet.txt); only this shared object links them. AUTO
# leaves it out of a wheel, which would be bound to the pyarrow that it is built beside, and of other processors' binaries.
set(MOE_PYARROW "" CACHE PATH "the pyarrow folder of a site-packages; empty = that of .venv")
set(moe_pyarrow ${MOE_PYARROW})
if(NOT MOE_PYARROW AND (MOE_PARQUET STREQUAL ON OR NOT (SKBUILD OR CMAKE_CROSSCOMPILING)))
  file(GLOB moe_pyarrow ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
endif()
file(GLOB moe_arrow_libraries ${moe_pyarrow}/libarrow.so.*00 ${moe_pyarrow}/libparquet.so.*00)
list(LENGTH moe_arrow_libraries moe_arrow_count)
if(NOT moe_arrow_count EQUAL 2 AND MOE_PARQUET STREQUAL ON)
  message(FATAL_ERROR "MOE_PARQUET needs pyarrow: recipes/setup.sh --no-build installs it into .venv; or pass -DMOE_PYARROW=<pyarrow>")
elseif(NOT moe_arrow_count EQUAL 2)
  message(STATUS "Parquet files cannot be read: no pyarrow in .venv; recipes/setup.sh --no-build installs it")
  return()
endif()
message(STATUS "Parquet: ${moe_pyarrow}")

add_library(moe_parquet SHARED ${CMAKE_SOURCE_DIR}/core/data/parquet.cpp)
target_include_directories(moe_parquet SYSTEM PRIVATE ${moe_pyarrow}/include)
target_link_libraries(moe_parquet PRIVATE moe_flags fmt::fmt nlohmann_json::nlohmann_json ${moe_arrow_libraries})
set_target_properties(moe_parquet PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_dependencies(moe_data moe_parquet)
