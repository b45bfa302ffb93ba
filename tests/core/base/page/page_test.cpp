#include "core/base/page/page.h"

#include "core/base/error.h"
#include "tests/support/page.h"

using namespace moe;
using namespace moe::test;

namespace {

OrderedJson lines(const std::string& text) {
  return {{"kind", "lines"},
          {"title", text},
          {"series", Json::array({{{"name", text}, {"x", {1, 2}}, {"y", {0.5, 1.5}}}})}};
}

OrderedJson section(const std::string& text, const OrderedJson& panel) {
  return {{"id", text},
          {"title", text},
          {"note", text},
          {"panels", panel.is_null() ? OrderedJson::array() : OrderedJson::array({panel})}};
}

// Returns a page with every key and every kind of panel, in which every text is `text`.
OrderedJson page_of(const std::string& text) {
  const OrderedJson heat_map = {{"kind", "heat map"},
                                {"title", text},
                                {"x", {{"label", text}, {"names", {text, "b"}}}},
                                {"y", {{"label", text}, {"names", {text}}}},
                                {"values", {100, 50}}};
  const OrderedJson row = {{"name", text}, {"cells", {text}}, {"text", text}};
  const OrderedJson table = {{"kind", "table"}, {"columns", {text, text}}, {"rows", {row, row}}};
  const OrderedJson fields = {{"kind", "fields"}, {"rows", {row, row}}};
  const OrderedJson texts = {{"kind", "texts"}, {"title", text}, {"texts", {row, row}}};
  return {{"program", text},
          {"state", text},
          {"title", text},
          {"facts", OrderedJson::array({{{"name", text}, {"value", text}, {"note", text}}})},
          {"notes", OrderedJson::array({{{"text", text}, {"is_warning", true}}})},
          {"x", {{"label", text}}},
          {"sections",
           {section(text, lines(text)), section(text, heat_map), section(text, table),
            section(text, fields), section(text, texts),
            section(text, {{"kind", "text"}, {"text", text}}), section(text, nullptr)}},
          {"footer", text}};
}

}  // namespace

TEST_CASE("Tables and texts are HTML, drawn panels are JSON", "[base]") {
  const std::string page = make_page(page_of("plain"));
  CHECK(count_of(page, "<section id=\"plain\" class=\"drawn\"></section>") == 2);
  CHECK(count_of(page, "<section") == 6);  // the empty one is left out
  CHECK(count_of(page, "<h2>plain</h2>") == 4);
  CHECK(count_of(page, "<th scope=\"col\">plain</th><th scope=\"col\">plain</th>") == 1);
  CHECK(count_of(page, "<tr><th scope=\"row\">plain</th><td>plain</td></tr>") == 4);
  CHECK(count_of(page, "<div><dt>plain</dt><dd>plain <small>plain</small></dd></div>") == 1);
  CHECK(count_of(page, "<div><dt>plain</dt><dd>plain</dd></div>") == 2);
  CHECK(count_of(page, "<li class=\"warn\">plain</li>") == 1);
  CHECK(count_of(page, "<pre tabindex=\"0\">plain</pre>") == 1);
  CHECK(count_of(page, "<a href=\"#plain\">the tables</a>") == 1);
  const Json data = drawn_data(page);
  REQUIRE(data["sections"].size() == 2);
  CHECK(data["x"]["label"] == "plain");
  CHECK(data["sections"][0]["panels"][0]["series"][0]["y"][1] == 1.5);
  CHECK(data["sections"][1]["panels"][0]["values"][1] == 50);
}

TEST_CASE("Keys that have defaults may be omitted", "[base]") {
  const std::string page =
      make_page({{"program", "moe"}, {"title", "t"}, {"sections", OrderedJson::array()}});
  CHECK(page.find("<h1>t</h1>") != std::string::npos);
  for (const char* part : {"<dl", "<ul", "<noscript", "class=\"state\"", "<section", "{{"}) {
    CHECK(page.find(part) == std::string::npos);
  }
}

TEST_CASE("No text becomes markup of a page", "[base]") {
  const std::string hostile = "</script></pre>'\"><script>alert(1)</script>{{data}}<img src=x>\xff";
  const std::string page = make_page(page_of(hostile));
  CHECK(count_of(page, "alert(1)") ==
        count_of(make_page(page_of("plain")), "plain") - count_of(make_page(page_of("")), "plain"));
  CHECK(count_of(page, "<script>alert") == 0);
  CHECK(count_of(page, "<img") == 0);
  CHECK(count_of(page, "<script") == 2);  // the data and the page's script
  CHECK(count_of(page, "</script>") == 2);
  CHECK(count_of(page, "id=\"&lt;") == 6);
  const std::string title = drawn_data(page)["sections"][0]["panels"][0]["title"];
  CHECK(title.starts_with(hostile.substr(0, hostile.size() - 1)));
}

TEST_CASE("A page loads nothing from elsewhere", "[base]") {
  const std::string page = make_page(page_of("plain"));
  CHECK(count_of(page, "default-src 'none'") == 1);
  CHECK(count_of(page, "http") - count_of(page, "http-equiv") == 1);  // the namespace of SVG
  CHECK(count_of(page, "url(") == count_of(page, "url(#clip"));
  CHECK(count_of(page, "@import") == 0);
  CHECK(count_of(page, "prefers-color-scheme: dark") >= 1);
}

TEST_CASE("Text is escaped, and control characters are replaced", "[base]") {
  const std::string page = make_page(page_of("a<b> & \"c\" 'd' \xC3\xA9\t\x1b[31m\x7f"));
  CHECK(count_of(
            page,
            "<h2>a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; \xC3\xA9\t\uFFFD[31m\uFFFD</h2>") == 4);
}

TEST_CASE("A section that is drawn only in part is a logic error", "[base]") {
  OrderedJson page = page_of("plain");
  page["sections"][0]["panels"].push_back({{"kind", "text"}, {"text", "plain"}});
  CHECK_THROWS_AS(make_page(page), std::logic_error);
  page["sections"][0]["panels"][1] = {{"kind", "pie"}};
  CHECK_THROWS_AS(make_page(page), UserError);
}

TEST_CASE("Points are rounded to the resolution of a screen", "[base]") {
  CHECK(Json(round_for_screen(1.23456789)).dump() == "1.2346");
  CHECK(Json(round_for_screen(0.1 + 0.2)).dump() == "0.3");
}
