// Prompts with holes.
#include "core/eval/tasks/prompt_template.h"

#include "tests/support/catch.h"
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

TEST_CASE("holes are fields, entries and members, numbers as Python prints them", "[eval]") {
  CHECK(fill("Q:{{q}}A") == "Q: Why? A");
  CHECK(fill("{{ q.strip() }}|{{q.lstrip()}}|{{q.rstrip()}}") == "Why?|Why? | Why?");
  CHECK(fill("{{n}} {{b}} {{none}}") == "7 True None");
  CHECK(fill("{{choices.text[1]}}{{choices['label'][0]}}") == "yA");
  CHECK(fill("{{choices.label.index(key)}}") == "1");
  CHECK(fill("{{q.strip().lower().capitalize()}}") == "Why?");
  CHECK(fill("no hole { } }}") == "no hole { } }}");
  CHECK(fill("").empty());
}

TEST_CASE("a template that is one hole has that value, not its text", "[eval]") {
  CHECK(PromptTemplate("{{choices.text}}").value(kDocument) == OrderedJson({"x", "y"}));
  CHECK(PromptTemplate("{{n}}").value(kDocument) == 7);
  CHECK(PromptTemplate("a{{n}}").value(kDocument) == "a7");
}

TEST_CASE("broken holes are told when the template is read", "[eval]") {
  CHECK(user_error_of([] { PromptTemplate("a {{q"); }) == "'a {{q': {{ without }} after it");
  for (const char* text : {"{{}}", "{{q.}}", "{{q[}}", "{{q[x]}}", "{{q['x}}", "{{q.eval()}}",
                           "{{q | upper}}", "{{q.index(}}", "{{q[9999999]}}"}) {
    CAPTURE(text);
    CHECK(user_error_of([&] {
            PromptTemplate{text};
          }).find("is not understood; a hole is a field") != std::string::npos);
  }
}

TEST_CASE("what a document lacks is named", "[eval]") {
  CHECK(user_error_of([] { fill("{{goal}}"); }) ==
        "{{goal}}: the document has no 'goal'; it has q, n, b, none, choices, key, my field");
  CHECK(user_error_of([] { fill("{{choices.text[2]}}"); }) ==
        "{{choices.text[2]}}: there is no entry 2 (2 are there)");
  CHECK(user_error_of([] { fill("{{q[0]}}"); }) ==
        "{{q[0]}}: there is no entry 0 (this is no list)");
  CHECK(user_error_of([] { fill("{{choices}}"); }) ==
        "{{choices}} is no text but an object; name one entry of it");
  CHECK(user_error_of([] { fill("{{choices.label.index(q)}}"); }) ==
        R"({{choices.label.index(q)}}: " Why? " is not in ["A","B"])");
}

TEST_CASE("functions inside each other are bounded: no template overflows the stack", "[eval]") {
  const auto nested = [](int depth) {
    std::string hole = "{{";
    for (int i = 0; i < depth; ++i) {
      hole += "a.index(";
    }
    return hole + "a" + std::string(static_cast<size_t>(depth), ')') + "}}";
  };
  PromptTemplate(nested(8));
  CHECK(user_error_of([&] {
          PromptTemplate(nested(9));
        }).ends_with("more than 8 .index( inside each other; write it in fewer"));
  CHECK(user_error_of([&] {
          PromptTemplate(nested(20000));
        }).ends_with("more than 8 .index( inside each other; write it in fewer"));
  PromptTemplate(
      "{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}{{a.index(b)}}"
      "{{a.index(b).index(c).index(d).index(e).index(f).index(g).index(h).index(i).index(j)}}");
}

}  // namespace
}  // namespace moe::eval
