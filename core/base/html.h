#pragma once
// Text as HTML, whoever wrote it.

#include <string>
#include <string_view>

namespace moe {

// As text between tags or in a quoted attribute: markup is escaped, invalid UTF-8 and control
// characters become U+FFFD.
std::string html(std::string_view text);

// JSON as it may stand in a <script>: without a '<', which JSON only has inside strings.
std::string json_in_script(std::string json);

// "1234567" -> "1,234,567".
std::string grouped(int64_t number);

}  // namespace moe
