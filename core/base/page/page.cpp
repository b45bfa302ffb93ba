#include "core/base/page/page.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <string_view>

#include "core/base/error.h"
#include "core/base/html.h"
#include "core/base/page/template.h"

namespace moe {

namespace {

std::string text_at(const OrderedJson& json, const char* key) {
  return json.value(key, std::string());
}

std::string html_at(const OrderedJson& json, const char* key) { return html(text_at(json, key)); }

std::string facts_html(const OrderedJson& page) {
  std::string out;
  for (const auto& fact : page.value("facts", OrderedJson::array())) {
    const std::string note = html_at(fact, "note");
    out += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", html_at(fact, "name"),
                       html_at(fact, "value"), note.empty() ? "" : " <small>" + note + "</small>");
  }
  return out.empty() ? "" : "<dl class=\"facts\">\n" + out + "</dl>\n";
}

std::string notes_html(const OrderedJson& page) {
  std::string out;
  for (const auto& note : page.value("notes", OrderedJson::array())) {
    out += fmt::format("<li{}>{}</li>\n", note.value("is_warning", false) ? " class=\"warn\"" : "",
                       html_at(note, "text"));
  }
  return out.empty() ? "" : "<ul class=\"notes\">\n" + out + "</ul>\n";
}

std::string row_html(const std::string& cells) { return "<tr>" + cells + "</tr>\n"; }

std::string cell_html(const char* tag, const std::string& text) {
  return fmt::format("<{}>{}</{:.2}>", tag, html(text), tag);  // the tag without its attributes
}

std::string scroll_html(const std::string& table) {
  return "<div class=\"scroll\" tabindex=\"0\">" + table + "</div>\n";
}

std::string table_html(const OrderedJson& panel) {
  std::string head, body;
  for (const auto& column : panel.at("columns")) {
    head += cell_html("th scope=\"col\"", column);
  }
  for (const auto& row : panel.at("rows")) {
    std::string cells = cell_html("th scope=\"row\"", row.at("name"));
    for (const auto& cell : row.at("cells")) {
      cells += cell_html("td", cell);
    }
    body += row_html(cells);
  }
  return scroll_html("<table>\n<thead>" + row_html(head) + "</thead>\n<tbody>\n" + body +
                     "</tbody></table>");
}

std::string fields_html(const OrderedJson& panel) {
  std::string body;
  for (const auto& row : panel.at("rows")) {
    body +=
        row_html(cell_html("th scope=\"row\"", row.at("name")) + cell_html("td", row.at("text")));
  }
  return scroll_html("<table class=\"fields\"><tbody>\n" + body + "</tbody></table>");
}

std::string texts_html(const OrderedJson& panel) {
  std::string texts;
  for (const auto& text : panel.at("texts")) {
    const std::string words = html_at(text, "text");
    texts += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_at(text, "name"),
                         words.empty() ? "<i>nothing</i>" : words);
  }
  return "<article class=\"texts\"><p class=\"prompt\">" + html_at(panel, "title") +
         "</p>\n<dl>\n" + texts + "</dl></article>\n";
}

std::string text_html(const OrderedJson& panel) {
  return "<pre tabindex=\"0\">" + html_at(panel, "text") + "</pre>\n";
}

struct Kind {
  // The panel as HTML; none where the page's script draws it.
  std::string (*to_html)(const OrderedJson& panel);
};

const Kind& kind_of(const OrderedJson& panel) {
  static const std::map<std::string, Kind> kinds = {
      {"lines", {nullptr}},    {"bars", {nullptr}},       {"heat map", {nullptr}},
      {"table", {table_html}}, {"fields", {fields_html}}, {"texts", {texts_html}},
      {"text", {text_html}}};
  const auto kind = kinds.find(panel.at("kind"));
  MOE_CHECK(kind != kinds.end(), "{}", panel.at("kind").dump());
  return kind->second;
}

bool is_drawn(const OrderedJson& panel) { return kind_of(panel).to_html == nullptr; }

// The page's sections as HTML. Of those that the script draws there are only their places, which it
// fills with `drawn`, one after the other; they are moved there.
std::string sections_html(OrderedJson& sections, OrderedJson& drawn) {
  std::string out;
  for (auto& section : sections) {
    const OrderedJson& panels = section.at("panels");
    if (panels.empty()) {
      continue;
    }
    const bool is_first_drawn = is_drawn(panels.front());
    for (const auto& panel : panels) {
      MOE_CHECK(is_drawn(panel) == is_first_drawn, "{}", panel.at("kind").dump());
    }
    const std::string id = text_at(section, "id");
    out += id.empty() ? "<section" : "<section id=\"" + html(id) + "\"";
    if (is_first_drawn) {
      drawn.push_back(std::move(section));
      out += " class=\"drawn\"></section>\n";
      continue;
    }
    out += "><h2>" + html_at(section, "title") + "</h2>\n";
    const std::string note = html_at(section, "note");
    out += note.empty() ? "" : "<p class=\"key\">" + note + "</p>\n";
    for (const auto& panel : panels) {
      out += kind_of(panel).to_html(panel);
    }
    out += "</section>\n";
  }
  return out;
}

// Where a page says in words what is not drawn.
std::string noscript_html(const OrderedJson& sections) {
  for (const auto& section : sections) {
    const OrderedJson& panels = section.at("panels");
    if (!panels.empty() && panels.front().at("kind") == "table") {
      return fmt::format(
          "<noscript><p class=\"plain\">Curves are drawn by this page's own script, which is "
          "switched off; <a href=\"#{}\">the tables</a> say the same in numbers.</p></noscript>\n",
          html_at(section, "id"));
    }
  }
  return "";
}

// Puts parts into their {{places}}, one pass: what a part holds is never a place.
std::string fill(std::string_view page,
                 const std::map<std::string, std::string, std::less<>>& parts) {
  std::string out;
  for (size_t at = page.find("{{"); at != std::string_view::npos; at = page.find("{{")) {
    const size_t end = page.find("}}", at);
    const auto part = parts.find(page.substr(at + 2, end - at - 2));
    MOE_CHECK(end != std::string_view::npos && part != parts.end());
    out += page.substr(0, at);
    out += part->second;
    page.remove_prefix(end + 2);
  }
  return out + std::string(page);
}

}  // namespace

std::string make_page(OrderedJson page) {
  OrderedJson drawn = OrderedJson::array();
  OrderedJson& sections = page.at("sections");
  const std::string noscript = noscript_html(sections);
  const std::string state = html_at(page, "state"), footer = html_at(page, "footer");
  const std::string parts = sections_html(sections, drawn);
  const bool is_drawn = !drawn.empty();
  const OrderedJson data = {{"x", page.value("x", OrderedJson::object())},
                            {"sections", std::move(drawn)}};
  return fill(
      kPageTemplate,
      {{"title", html_at(page, "title")},
       {"program", html_at(page, "program")},
       {"state", state.empty() ? "" : " <span class=\"state\">" + state + "</span>"},
       {"facts", facts_html(page)},
       {"notes", notes_html(page)},
       {"noscript", is_drawn ? noscript : ""},
       {"sections", parts},
       {"footer", footer.empty() ? "" : footer + " "},
       {"data", json_in_script(data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace))}});
}

double rounded_for_screen(double value) {
  return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr);
}

}  // namespace moe
