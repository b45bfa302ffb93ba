// Prompt templates with placeholders.
#include "core/eval/tasks/prompt_template.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::user_error_of;

const OrderedJson kDocument = {{"q", " Why? "},
                               {"n", 7},
                               {"b", true},
                               {"none", nullptr},
                               {"choices", {{"text", {"x", "y"}}, {"label", {"A", "B"}}}},
                               {"key", "B"},
                               {"my field", "z"}};

std::string fill(const std::string& text) { return PromptTemplate(text)(kDocument); }

TEST_CASE("placeholders are fields, entries and members, with numbers as in Python", "[eval]") {
  CHECK(fill("Q:{{q}}A") == "Q: Why? A");
  CHECK(fill("{{ q.strip() }}|{{q.lstrip()}}|{{q.rstrip()}}") == "Why?|Why? | Why?");
  CHECK(fill("{{n}} {{b}} {{none}}") == "7 True None");
  CHECK(fill("{{choices.text[1]}}{{choices['label'][0]}}") == "yA");
  CHECK(fill("{{choices.label.index(key)}}") == "1");
  CHECK(fill("{{q.strip().lower().capitalize()}}") == "Why?");
  CHECK(fill("no hole { } }}") == "no hole { } }}");
  CHECK(fill("").empty());
}

TEST_CASE("a template of one placeholder has its value, not its text", "[eval]") {
  CHECK(PromptTemplate("{{choices.text}}").value(kDocument) == OrderedJson({"x", "y"}));
  CHECK(PromptTemplate("{{n}}").value(kDocument) == 7);
  CHECK(PromptTemplate("a{{n}}").value(kDocument) == "a7");
}

TEST_CASE("an invalid placeholder is refused when the template is parsed", "[eval]") {
  for (const char* text : {"a {{q", "{{}}", "{{q.}}", "{{q[}}", "{{q[x]}}", "{{q['x}}",
                           "{{q.eval()}}", "{{q | upper}}", "{{q.index(}}", "{{q[9999999]}}"}) {
    CAPTURE(text);
    CHECK_FALSE(user_error_of([&] { PromptTemplate{text}; }).empty());
  }
}

TEST_CASE("a missing field, entry or value is named with its placeholder", "[eval]") {
  for (const auto& [hole, fact] :
       {std::pair("{{goal}}", "'goal'; it has q, n, b"),
        std::pair("{{choices.text[2]}}", "no entry 2 (2 "), std::pair("{{q[0]}}", "no entry 0"),
        std::pair("{{choices}}", "an object"),
        std::pair("{{choices.label.index(q)}}", R"(in ["A","B"])")}) {
    const std::string message = user_error_of([text = hole] { fill(text); });
    CHECK(message.starts_with(hole));
    CHECK_THAT(message, test::contains_text(fact));
  }
}

TEST_CASE("the nesting of functions is bounded", "[eval]") {
  const auto nested = [](int depth) {
    std::string hole = "{{";
    for (int i = 0; i < depth; ++i) {
      hole += "a.index(";
    }
    return hole + "a" + std::string(static_cast<size_t>(depth), ')') + "}}";
  };
  PromptTemplate(nested(8));
  for (const int depth : {9, 20000}) {
    CHECK_THAT(user_error_of([&] { PromptTemplate(nested(depth)); }),
               test::contains_text("more than 8 .index("));
  }
  PromptTemplate(
      "{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}"
      "{{a.index(b).index(c).index(d).index(e).index(f).index(g).index(h).index(i).index(j)}}");
}

}  // namespace
}  // namespace moe::eval
