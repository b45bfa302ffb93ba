# core/train/report.{html,css,js} as one string in the binary (core/train/observe/report_page.h).
set(moe_report_files ${CMAKE_SOURCE_DIR}/core/train/observe/report.html ${CMAKE_SOURCE_DIR}/core/train/observe/report.css
                     ${CMAKE_SOURCE_DIR}/core/train/observe/report.js)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${moe_report_files})
file(READ ${CMAKE_SOURCE_DIR}/core/train/observe/report.css moe_report_css)
file(READ ${CMAKE_SOURCE_DIR}/core/train/observe/report.js moe_report_js)
file(READ ${CMAKE_SOURCE_DIR}/core/train/observe/report.html moe_report_html)
string(REPLACE "{{style}}" "${moe_report_css}" moe_report_html "${moe_report_html}")
string(REPLACE "{{script}}" "${moe_report_js}" moe_report_html "${moe_report_html}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/report_page.cpp @ONLY CONTENT "#include \"core/train/observe/report_page.h\"

namespace moe::train {

const std::string_view kReportPage = R\"page(@moe_report_html@)page\";

}  // namespace moe::train
")
target_sources(moe_train PRIVATE ${CMAKE_BINARY_DIR}/report_page.cpp)
