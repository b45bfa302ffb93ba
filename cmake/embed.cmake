# moe_embed(TARGET HEADER TYPE FUNCTION PATTERN): generates FUNCTION(), declared in HEADER, which returns a vector of TYPE {name, text}
# with the files of PATTERN; a name is without its extension. TYPE and FUNCTION are in the namespace of the target's folder.
function(moe_embed target header type function pattern)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${pattern})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  string(REPLACE moe_ moe:: namespace ${target})
  set(entries "")
  foreach(file IN LISTS files)
    file(READ ${file} text)
    get_filename_component(name ${file} NAME_WE)
    string(APPEND entries "      {\"${name}\", R\"embedded(${text})embedded\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${function}.cpp @ONLY CONTENT "#include \"${header}\"

std::vector<@namespace@::@type@> @namespace@::@function@() {
  return {
@entries@  };
}
")
  target_sources(${target} PRIVATE ${CMAKE_BINARY_DIR}/${function}.cpp)
endfunction()

moe_embed(moe_data core/data/chat_template.h Form forms core/data/forms/*.jinja)
moe_embed(moe_eval core/eval/tasks/task.h KnownFile known_files core/eval/tasks/known/*.toml)
