# core/eval/tasks/known/*.toml as strings in the binary (core/eval/tasks/known_tasks.h).
file(GLOB moe_known_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/eval/tasks/known/*.toml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${moe_known_files})
set(moe_known_entries "")
foreach(file IN LISTS moe_known_files)
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  string(APPEND moe_known_entries "      {\"${name}\", R\"task(${text})task\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/known_files.cpp @ONLY CONTENT "#include \"core/eval/tasks/known_tasks.h\"

namespace moe::eval {

std::vector<KnownFile> known_files() {
  return {
@moe_known_entries@  };
}

}  // namespace moe::eval
")
target_sources(moe_eval PRIVATE ${CMAKE_BINARY_DIR}/known_files.cpp)
