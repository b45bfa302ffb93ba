#include "core/jinja/template.h"

#include <fmt/ranges.h>

#include "core/base/json.h"
#include "tests/support/user_error.h"

// Values are those of jinja2 3.1; tests/interop/jinja_parity.py compares with it at random.

using namespace moe;
using namespace moe::jinja;
using namespace moe::test;

namespace {

const OrderedJson kContext = {
    {"s", "Hello World"},
    {"n", 7},
    {"f", 0.1},
    {"xs", {"b", "A", "a"}},
    {"d", {{"a", 1}, {"items", "x"}}},
    {"messages",
     {{{"role", "user"}, {"content", "hé"}}, {{"role", "assistant"}, {"content", nullptr}}}}};

std::string render(const std::string& source, Dialect dialect = Dialect::kChat) {
  const Value context = make_value(kContext, 1);
  return Template(source, "t", dialect).render(*context.dict()).text;
}

using Pairs = std::vector<std::pair<const char*, const char*>>;

void check_all(const Pairs& pairs) {
  for (const auto& [source, expected] : pairs) {
    CAPTURE(source);
    CHECK(render(source) == expected);
  }
}

}  // namespace

TEST_CASE("Statements: loops, conditions, macros, blocks and their scopes", "[jinja]") {
  check_all({
      {"{% for x in [1,2] %}{{ x }}{% set x = 5 %}{% endfor %}{{ x }}", "12"},
      {"{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = i %}{% endfor %}{{ x }}", "111"},
      {"{% for m in messages %}{{ loop.index }}{{ loop.last }} {% endfor %}", "1False 2True "},
      {"{% for x in xs if x != 'A' %}{{ loop.length }}{{ x }}{% else %}-{% endfor %}", "2b2a"},
      {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
      {"{% for x in [1,2] %}{% break %}{% else %}else{% endfor %}", "else"},
      {"{% for c in [[1,[2]],[3]] recursive %}{{ c if c is number else loop(c) }}{% endfor %}",
       "123"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;items=x;"},
      {"{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}", "1112"},
      {"{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(a) m() %}{{ a }}{% endcall %}",
       "<x>"},
      {"{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + 1 %}{% endfor %}"
       "{{ ns.n }}",
       "3"},
      {"{% set b | upper %}a{{ n }}{% endset %}{{ b }}", "A7"},
      {"{% filter trim %}  a {% endfilter %}|", "a|"},
      {"{% if n > 9 %}a{% elif n is odd %}b{% else %}c{% endif %}", "b"},
      {"{%- raw -%} {{ x }} {%- endraw -%} ", "{{ x }}"},
  });
}

TEST_CASE("White space is controlled as by trim_blocks and lstrip_blocks", "[jinja]") {
  check_all({
      {"  {% if true %}\n  a\n  {% endif %}\nb\n\n", "  a\nb\n"},
      {"a {%- if true %} b {% endif -%} c", "a b c"},
      {"  {%+ if true +%}\nx{% endif %}", "  \nx"},
      {"a\n{# c #}\nb {#- d -#} e", "a\nbe"},
      {"\r\na\r\n", "\na"},
  });
  CHECK(render("{% if true %}\na\n{% endif %}\n", Dialect::kTask) == "\na\n\n");
}

TEST_CASE("Expressions have the values of Python", "[jinja]") {
  check_all({
      {"{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1e16 }} {{ 1e-5 }} {{ f + 0.2 }} {{ 3.0 }}",
       "-4 2 3.5 1e+16 1e-05 0.30000000000000004 3.0"},
      {"{{ 'a' 'b' }}{{ 1 if false }}{{ none }}{{ missing }}", "abNone"},
      {"{{ [none, true, 1.5, \"it's\", 'é\\n', (1,)] }}",
       "[None, True, 1.5, \"it's\", 'é\\n', (1,)]"},
      {"{{ not 1 == 2 }}{{ (1 < 2) == 2 }}{{ 'a' in 'abc' and not false }}", "TrueFalseTrue"},
      {"{{ s[::-1] }}{{ s[-3:] }}{{ xs[1:][0] }}{{ s[99:] }}", "dlroW olleHrldA"},
      {"{{ s ~ n ~ none }}{{ 'x' * 3 }}", "Hello World7Nonexxx"},
      {"{{ d.items() | list }}{{ d['items'] }}{{ d.get('z', 0) }}", "[('a', 1), ('items', 'x')]x0"},
      {"{{ messages[0].content.upper() }}{{ messages[-1]['role'] }}", "HÉassistant"},
      {"{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
       "hé"},
      {"{{ xs | sort }}{{ xs | unique | list }}{{ xs | join('-') }}",
       "['A', 'a', 'b']['b', 'A']b-A-a"},
      {"{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'aXbX'.replace('X', '-', 1) }}",
       "['a', 'b', '', 'c']['a', 'b']a-bX"},
      {"{{ d | tojson }}{{ [1, {}] | tojson(indent=2) }}",
       "{\"a\": 1, \"items\": \"x\"}[\n  1,\n  {}\n]"},
      {"{{ 'a\\tb' | tojson }}{{ '</' | tojson }}", "\"a\\tb\"\"</\""},
      {"{{ 'x\\ny' | indent(2) }}{{ 'hello world-a' | title }}{{ '3.7' | int }}",
       "x\n  yHello World-A3"},
      {"{{ missing is defined }}{{ n is not none }}{{ d is mapping }}{{ s is string }}",
       "FalseTrueTrueTrue"},
  });
}

TEST_CASE("Python's errors are reported with their position", "[jinja]") {
  for (const auto& [source, fact] :
       Pairs{{"a\n {{ missing.a }}", "t line 2 column 12: 'missing' is undefined"},
             {"{{ 'x' + 1 }}", "'+' of a str and a int"},
             {"{{ raise_exception('no system') }}", "no system"},
             {"{{ [1].x() }}", "no attribute 'x'"},
             {"{% for a, b in [[1]] %}{% endfor %}", "1 values cannot be assigned to 2 names"},
             {"{{ range(1000000) }}", "100000"},
             {"{{ 1 // 0 }}", "division by zero"}}) {
    CAPTURE(source);
    CHECK_THAT(user_error_of([text = source] { render(text); }), contains_text(fact));
  }
  CHECK_THAT(user_error_of([] { render("{{ missing }}", Dialect::kTask); }),
             contains_text("'missing' is undefined"));
}

TEST_CASE("Unsupported constructs are refused with line and column", "[jinja]") {
  for (const char* source : {"{% include 'x' %}",
                             "{{ x | nosuch }}",
                             "{{ x is nosuch }}",
                             "{{ 2 ** 3 }}",
                             "{{ [].append(1) }}",
                             "{{ s.__class__ }}",
                             "{{ '%s' % 1 }}",
                             "{{ 'ß' | upper }}",
                             "{{ f(*xs) }}",
                             "{{ cycler(1) }}",
                             "{{ xs | map('upper') }}",
                             "{{ ('<' | safe) + '<' }}",
                             "{{ 7.5 // 2 }}",
                             "{{ strftime_now('%Y') }}",
                             "{{ 'a\\N{DASH}' }}",
                             "{% if x %}",
                             "{{ x",
                             "{% raw %}",
                             "{# a",
                             "{{ 99999999999999999999 }}",
                             "{% break %}",
                             "{{ 1 < 2 < 3 }}",
                             "{{ {1: 2, [1]: 3} }}"}) {
    CAPTURE(source);
    try {
      render(source);
      FAIL("is rendered");
    } catch (const Unsupported& error) {
      CHECK_THAT(std::string(error.what()), contains_text("t line 1 column "));
    }
  }
}

TEST_CASE("Hostile templates are refused with the exceeded limit", "[jinja]") {
  const auto repeated = [](const std::string& text, size_t times, const std::string& end = "") {
    return fmt::format("{}{}", fmt::join(std::vector<std::string>(times, text), ""), end);
  };
  for (const std::string& source :
       {"{{ " + repeated("(", 100'000) + repeated(")", 100'000, "}}"),
        "{{ " + repeated("1+", 100'000, "1 }}"), repeated("{% if true %}", 10'000),
        "{{ " + repeated("-", 100'000, "1 }}"),
        std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        std::string("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}"
                    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"),
        std::string(
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"),
        std::string("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}"
                    "{% set ns.x = ns.x + ns.x %}{% endfor %}")}) {
    CAPTURE(source.substr(0, 60));
    CHECK_THAT(user_error_of([&] { render(source); }), contains_text("more than"));
  }
}

TEST_CASE("Every byte of the rendered text has a source", "[jinja]") {
  const Value context = make_value(kContext, 1);
  const auto sources = [&](const std::string& source) {
    const Rendered rendered = Template(source, "t").render(*context.dict());
    std::string shown;
    size_t begin = 0;
    for (const Run& run : rendered.runs) {
      const std::string text = rendered.text.substr(begin, run.end - begin);
      shown += run.source == 0 ? text : "<" + text + ">";
      shown += run.is_generated ? "*" : "";
      begin = run.end;
    }
    return shown;
  };
  CHECK(sources("a{{ s }}b") == "a<Hello World>b");
  CHECK(sources("{{ ('x ' + s + ' y') | trim | upper }}") == "X <HELLO WORLD> Y");
  CHECK(sources("{{ s.replace('o', '0')[3:6] }}") == "<l>0< >");
  CHECK(sources("{{ xs | join(', ') }}{{ xs | tojson }}") ==
        "<b>, <A>, <a>[\"<b>\", \"<A>\", \"<a>\"]");
  CHECK(sources("{% set t %}[{{ s }}]{% endset %}{{ t.split(' ')[0] }}{{ messages[0] }}") ==
        "[<Hello>{'<role>': '<user>', '<content>': '<hé>'}");
  CHECK(sources("{% macro m(x) %}({{ x }}){% endmacro %}a{% generation %}{{ m(s) }}{% "
                "endgeneration %}") == "a(*<Hello World>*)*");
  CHECK(Template("{% generation %}{% endgeneration %}", "t").mentions("generation"));
  CHECK_FALSE(Template("{# generation #}{{ tools }}", "t").mentions("generation"));
}

TEST_CASE("A template of one expression has its value", "[jinja]") {
  const Value context = make_value(kContext, 1);
  CHECK(Template("{{ xs }}", "t").evaluate(*context.dict()).sequence()->items.size() == 3);
  CHECK(Template("{{ n }}", "t").evaluate(*context.dict()).integer() == 7);
  CHECK(Template("{{ n }}.", "t").evaluate(*context.dict()).text()->utf8() == "7.");
}
