# libmoe_parquet.so beside the binary, which core/data/records.cpp loads for the first Parquet file. Included with MOE_PARQUET.
# Arrow's headers and libraries are those inside the pyarrow wheel (recipes/parquet.txt); only this shared object links them.
set(MOE_PYARROW "" CACHE PATH "the pyarrow folder of a site-packages; empty = that of .venv")
if(NOT MOE_PYARROW)
  file(GLOB moe_pyarrow ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
else()
  set(moe_pyarrow ${MOE_PYARROW})
endif()
file(GLOB moe_arrow_libraries ${moe_pyarrow}/libarrow.so.*00 ${moe_pyarrow}/libparquet.so.*00)
list(LENGTH moe_arrow_libraries moe_arrow_count)
if(NOT moe_arrow_count EQUAL 2)
  message(FATAL_ERROR "MOE_PARQUET needs pyarrow: recipes/setup.sh --python recipes/parquet.txt --no-build")
endif()

add_library(moe_parquet SHARED ${CMAKE_SOURCE_DIR}/core/data/parquet.cpp)
target_include_directories(moe_parquet SYSTEM PRIVATE ${moe_pyarrow}/include)
target_link_libraries(moe_parquet PRIVATE moe_flags fmt::fmt nlohmann_json::nlohmann_json ${moe_arrow_libraries})
set_target_properties(moe_parquet PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_dependencies(moe_data moe_parquet)
