# core/base/page/page.{html,css,js} as one string in the binary (kPageTemplate of core/base/page/page.cpp).
set(moe_page_folder ${CMAKE_SOURCE_DIR}/core/base/page)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${moe_page_folder}/page.html ${moe_page_folder}/page.css ${moe_page_folder}/page.js)
file(READ ${moe_page_folder}/page.css moe_page_css)
file(READ ${moe_page_folder}/page.js moe_page_js)
file(READ ${moe_page_folder}/page.html moe_page_html)
string(REPLACE "{{style}}" "${moe_page_css}" moe_page_html "${moe_page_html}")
string(REPLACE "{{script}}" "${moe_page_js}" moe_page_html "${moe_page_html}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/page_template.cpp @ONLY CONTENT "#include <string_view>

namespace moe {

extern const std::string_view kPageTemplate;
const std::string_view kPageTemplate = R\"page(@moe_page_html@)page\";

}  // namespace moe
")
target_sources(moe_base PRIVATE ${CMAKE_BINARY_DIR}/page_template.cpp)
