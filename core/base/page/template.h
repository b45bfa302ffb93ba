#pragma once
// The page that page.cpp fills in, made at build time of the files beside this one: page.html with
// page.css and page.js in their places. {{name}} is where a part goes.

#include <string_view>

namespace moe {

extern const std::string_view kPageTemplate;

}  // namespace moe
