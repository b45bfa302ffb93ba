#include "core/base/html.h"

#include "tests/support/catch.h"

using namespace moe;

TEST_CASE("text becomes HTML that cannot be markup", "[base]") {
  CHECK(html("a<b> & \"c\" 'd'") == "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  CHECK(html("h\u00e9 \n\t") == "h\u00e9 \n\t");
  CHECK(html(std::string("\x1b[31m\x7f") + '\0') == "\uFFFD[31m\uFFFD\uFFFD");
  CHECK(html("a\xff\xfe") == "a\uFFFD\uFFFD");
  CHECK(json_in_script(R"({"a":"</script><!--"})") == R"({"a":"\u003c/script>\u003c!--"})");
  CHECK((grouped(0) == "0" && grouped(999) == "999" && grouped(1000) == "1,000"));
  CHECK((grouped(-1234567) == "-1,234,567" && grouped(-999) == "-999"));
}
