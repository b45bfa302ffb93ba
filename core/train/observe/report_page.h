#pragma once
// The page that report.cpp fills in, made at build time of the files beside this one: report.html
// with report.css and report.js in their places. {{name}} is where a part goes.

#include <string_view>

namespace moe::train {

extern const std::string_view kReportPage;

}  // namespace moe::train
