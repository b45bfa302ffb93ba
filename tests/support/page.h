#pragma once
// Reads the pages of core/base/page.

#include <string>
#include <vector>

#include "core/base/json.h"
#include "tests/support/catch.h"

namespace moe::test {

// Returns the JSON that the script of the page draws: {"x", "sections"}.
inline Json drawn_data(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return parse_json(page.substr(begin, page.find("</script>", begin) - begin), "data of the page");
}

// Returns the titles of all panels, in order.
inline std::vector<std::string> panel_titles(const Json& data) {
  std::vector<std::string> titles;
  for (const auto& section : data["sections"]) {
    for (const auto& panel : section["panels"]) {
      titles.push_back(panel["title"]);
    }
  }
  return titles;
}

// Returns the first panel with a title.
inline Json panel_of(const Json& data, const std::string& title) {
  for (const auto& section : data["sections"]) {
    for (const auto& panel : section["panels"]) {
      if (panel["title"] == title) {
        return panel;
      }
    }
  }
  FAIL("no panel " << title);
  return {};
}

// Returns the number of occurrences of `part` in `text`.
inline size_t count_of(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace moe::test
