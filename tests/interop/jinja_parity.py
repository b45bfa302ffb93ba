#!/usr/bin/env python3
"""The template language (core/jinja) against jinja2, template by template.

A seeded, grammar-driven generator writes templates and contexts like those of chat templates; both engines render them in the environment of
transformers (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, {% generation %}, its tojson). A difference is another text, or a
text where jinja2 raises; what the engine refuses is counted.

usage: jinja_parity.py [--count N] [--seed S] [--program PATH]      (PATH: tests/support/jinja_render, a filter of JSON lines)
"""
import argparse
import collections
import json
import pathlib
import random
import subprocess
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from tally import MOE, SHORT, Tally  # noqa: E402


class Generation(Extension):
    """{% generation %} ... {% endgeneration %}, which writes its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals.update(raise_exception=raise_exception, strftime_now=lambda form: f"<{form}>")
    return made


TEXTS = ["", "a", "Hello World", " padded\t\n", "zwei\nZeilen\n", "你好👋", "it's", 'say "x"', "a,b,,c", "é", "-3", "2.5", "<|im_end|>", "{{ x }}", "x-y (z)"]
NAMES = {"s": "text", "t": "text", "n": "int", "m": "int", "f": "float", "xs": "texts", "ns": "ints", "d": "dict", "messages": "messages",
         "none": "none", "flag": "bool", "missing": "none", "bos_token": "text"}


def context(rng):
    text = lambda: rng.choice(TEXTS)  # noqa: E731
    messages = [{"role": rng.choice(["system", "user", "assistant", "tool"]), "content": rng.choice([text(), text(), None]),
                 **({"tool_calls": [{"name": text(), "arguments": {"a": rng.randint(-3, 3), "b": [text()]}}]} if rng.random() < 0.3 else {})}
                for _ in range(rng.randint(0, 4))]
    return {"s": text(), "t": text(), "n": rng.randint(-5, 9), "m": rng.choice([0, 1, 2, 7]), "f": rng.choice([0.1, -2.5, 1e16, 1e-5, 3.0, 0.0]),
            "xs": [text() for _ in range(rng.randint(0, 4))], "ns": [rng.randint(-3, 3) for _ in range(rng.randint(0, 5))],
            "d": {key: rng.choice([text(), rng.randint(0, 3), None, [1, "x"]]) for key in rng.sample(["a", "b", "c", "items", "é"], rng.randint(0, 4))},
            "messages": messages, "flag": rng.random() < 0.5, "bos_token": "<s>"}


class Writer:
    """Writes random templates; `names` are the variables in force by their type."""

    def __init__(self, rng):
        self.rng = rng
        self.names = dict(NAMES)
        self.depth = 0
        self.loops = 0

    def pick(self, *options):
        return self.rng.choice(options)

    def name(self, kind):
        return self.rng.choice([name for name, of in self.names.items() if of == kind])

    def quoted(self):
        text = self.rng.choice(TEXTS[:-1] + ["\\n", "\\u00e9", "\\x41", "\\\\", "\\'"])
        text = text.replace("'", "\\'") if "\\" not in text else text
        return "'" + text.replace("\n", "\\n") + "'"

    def expression(self, kind=None):
        kind = kind or self.pick("text", "text", "int", "bool", "texts", "dict", "float", "any")
        self.depth += 1
        try:
            if self.depth > 4:
                return self.leaf(kind)
            return getattr(self, kind)()
        finally:
            self.depth -= 1

    e = expression

    def leaf(self, kind):
        if kind == "text":
            return self.pick(self.quoted(), self.name("text"))
        if kind == "int":
            return self.pick(str(self.rng.randint(0, 9)), self.name("int"))
        if kind == "float":
            return self.pick("f", "1.5", "2e3", "0.25")
        if kind == "bool":
            return self.pick("true", "false", "flag", "True")
        if kind in ("texts", "ints"):
            return self.name(kind)
        if kind == "messages":
            return "messages"
        if kind == "dict":
            return self.pick("d", "{'a': 1, 'b': 'x'}", "{}")
        return self.pick("none", "missing", "s", "n", "d", "xs", "(1, 'a')", "[]", "''")

    def text(self):
        e = self.e
        return self.pick(
            lambda: f"{e('text')} + {e('text')}", lambda: f"({e('any')} ~ {e('any')})", lambda: f"{self.name('text')}[{self.slice()}]",
            lambda: f"({e('text')}).{self.pick('strip()', 'lstrip()', 'rstrip()', 'upper()', 'lower()', 'title()', 'capitalize()')}",
            lambda: f"({e('text')}).strip({self.quoted()})", lambda: f"({e('text')}).replace({self.quoted()}, {e('text')})",
            lambda: f"({e('text')}).replace({self.quoted()}, {e('text')}, {e('int')})", lambda: f"({self.quoted()}).join({e('texts')})",
            lambda: f"({e('any')}) | {self.pick('trim', 'upper', 'lower', 'capitalize', 'title', 'string')}",
            lambda: f"({e('text')}) | replace({self.quoted()}, {self.quoted()})", lambda: f"{e('any')} | default({e('text')}, {e('bool')})",
            lambda: f"({e('texts')}) | join({self.quoted()})", lambda: f"messages | map(attribute='role') | join({self.quoted()})",
            lambda: f"({e('any')}) | tojson", lambda: f"({e('dict')}) | tojson(indent={self.pick(0, 2)}, sort_keys={e('bool')})",
            lambda: f"({e('text')}) | indent({self.pick(1, 2)}, {e('bool')}, {e('bool')})", lambda: f"({e('text')}) * {self.pick(0, 2)}",
            lambda: f"({e('text')}) | reverse", lambda: f"({e('text')} if {e('bool')} else {e('text')})", lambda: f"({e('text')} if {e('bool')})",
            lambda: f"({e('any')}) | string", lambda: f"({e('texts')} | first)", lambda: f"({e('texts')} | last)", lambda: f"d.get('a', {e('text')})",
            lambda: f"messages[{self.pick(0, -1, 1)}].role", lambda: f"messages[0]['content']", lambda: f"({e('text')}).split({self.quoted()})[{self.pick(0, -1)}]",
            lambda: f"({e('text')} | trim({self.quoted()}))", lambda: self.leaf("text"),
            lambda: f"(({e('text')}) | safe)", lambda: f"({e('int')} | string)")()

    def int(self):
        e = self.e
        return self.pick(
            lambda: f"({e('int')} {self.pick('+', '-', '*', '//', '%')} {e('int')})", lambda: f"({e('any')}) | length", lambda: f"-{e('int')}",
            lambda: f"({e('text')}) | int", lambda: f"({e('ints')}) | {self.pick('sum', 'max', 'min', 'first', 'last')}", lambda: f"({e('int')}) | abs",
            lambda: f"({e('text')}).{self.pick('find', 'count')}({self.quoted()})", lambda: f"({e('float')}) | int", lambda: self.leaf("int"),
            lambda: f"({e('texts')}).index({e('text')})", lambda: f"({e('int')} or {e('int')})")()

    def float(self):
        e = self.e
        return self.pick(lambda: f"({e('float')} {self.pick('+', '-', '*', '/')} {e('int')})", lambda: f"{e('int')} / {self.pick(2, 3, 8)}",
                         lambda: f"({e('text')}) | float", lambda: self.leaf("float"))()

    def bool(self):
        e = self.e
        test = lambda: self.pick("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",  # noqa: E731
                                 "boolean", "true", "false", f"equalto({e('text')})", f"eq {self.quoted()}", f"in {e('texts')}")
        return self.pick(
            lambda: f"({e('any')} is {self.pick('', 'not ')}{test()})", lambda: f"({e('any')} {self.pick('==', '!=')} {e('any')})",
            lambda: f"({e('int')} {self.pick('<', '<=', '>', '>=')} {e('int')})", lambda: f"({e('text')} {self.pick('in', 'not in')} {e('text')})",
            lambda: f"({self.quoted()} in {self.pick('d', 'xs', 'missing', 'd.keys()')})", lambda: f"not {e('any')}",
            lambda: f"({e('any')} {self.pick('and', 'or')} {e('any')})", lambda: f"({e('text')}).{self.pick('startswith', 'endswith')}({self.quoted()})",
            lambda: f"({e('int')} is {self.pick('odd', 'even')})", lambda: f"1 < {e('int')} < {e('int')}", lambda: self.leaf("bool"),
            lambda: f"({e('text')} < {e('text')})", lambda: f"({e('text')}).isdigit()")()

    def texts(self):
        e = self.e
        return self.pick(
            lambda: f"[{e('text')}, {e('text')}]", lambda: f"({e('text')}).split()", lambda: f"({e('text')}).split({self.quoted()}, {self.pick(-1, 1)})",
            lambda: f"({e('texts')}) | {self.pick('sort', 'unique | list', 'reverse | list', 'list')}", lambda: f"({e('texts')})[{self.slice()}]",
            lambda: f"({e('texts')}) | map('{self.pick('upper', 'trim', 'length | string')}') | list".replace(" | string'", "'"),
            lambda: f"({e('texts')}) | {self.pick('select', 'reject')}('{self.pick('string', 'defined', 'none')}') | list", lambda: self.leaf("texts"),
            lambda: f"messages | {self.pick('selectattr', 'rejectattr')}('role', 'equalto', {self.pick(repr('user'), repr('tool'))}) | map(attribute='role') | list",
            lambda: f"d | {self.pick('list', 'dictsort | map(attribute=0) | list')}", lambda: f"({e('text')}) | list", lambda: f"({e('texts')} + {e('texts')})",
            lambda: f"({e('texts')}) | sort(reverse={e('bool')}, case_sensitive={e('bool')})")()

    def ints(self):
        e = self.e
        return self.pick(lambda: f"[{e('int')}, {e('int')}, 2]", lambda: f"range({self.pick(0, 3, 5)}) | list", lambda: f"({e('ints')}) | sort(reverse=true)",
                         lambda: f"({e('ints')})[{self.slice()}]", lambda: self.leaf("ints"), lambda: f"({e('ints')}) | unique | list")()

    def dict(self):
        return self.pick(lambda: f"{{{self.quoted()}: {self.e('any')}, 'k': {self.e('any')}}}", lambda: self.leaf("dict"),
                         lambda: "messages[0]", lambda: "messages[-1].tool_calls[0].arguments")()

    def any(self):
        return self.pick(lambda: self.e(self.pick("text", "int", "float", "bool", "texts", "ints", "dict")), lambda: self.leaf("any"),
                         lambda: f"{self.name('text')}.foo", lambda: "d.a", lambda: "d['b']", lambda: "d.items() | list", lambda: "messages",
                         lambda: f"({self.e('any')}, {self.e('any')})")()

    def slice(self):
        part = lambda: self.pick("", "", str(self.rng.randint(-3, 4)))  # noqa: E731
        return f"{part()}:{part()}" + self.pick("", "", f":{self.pick(-1, 2, -2, 1)}")

    def tag(self, words):
        return self.pick("", "", "  ", "\t") + "{%" + self.pick("", "", "-", "+") + " " + words + " " + self.pick("", "", "-", "+") + "%}" + self.pick("", "\n", "\n", " \n ")

    def block(self, loop=False):
        saved = dict(self.names)
        self.loops += loop
        body = "".join(self.statement() for _ in range(self.rng.randint(1, 3)))
        self.loops -= loop
        self.names = saved
        return body

    def statement(self):
        self.depth += 1
        try:
            return self.any_statement() if self.depth < 4 else "{{ " + self.e() + " }}"
        finally:
            self.depth -= 1

    def any_statement(self):
        e, tag = self.e, self.tag
        choice = self.rng.random()
        if choice < 0.35:
            return "{{" + self.pick("", "-") + " " + e() + " " + self.pick("", "-") + "}}" + self.pick("", "\n", " ")
        if choice < 0.47:
            return self.pick("text\n", "  <|im_start|>", "\n\n", " \t", "{ not }", "# line\n", "\r\n", "{# note #}\n", "{#- note -#}", tag("raw") + "{{ x }}" + tag("endraw"))
        if choice < 0.57:
            kind = self.pick("text", "int", "texts", "dict")
            name = f"v{self.rng.randint(0, 3)}" + kind[0]
            self_set = tag(f"set {name} = {e(kind)}")
            self.names[name] = kind
            return self_set
        if choice < 0.6:
            name = f"b{self.rng.randint(0, 2)}"
            made = tag(f"set {name}" + self.pick("", " | trim", " | upper | trim")) + self.block() + tag("endset")
            self.names[name] = "text"
            return made
        if choice < 0.7:
            return tag(f"if {e('bool')}") + self.block() + (tag(f"elif {e('bool')}") + self.block() if self.rng.random() < 0.3 else "") + \
                (tag("else") + self.block() if self.rng.random() < 0.5 else "") + tag("endif")
        if choice < 0.86:
            return self.loop()
        if choice < 0.9:
            name = f"f{self.rng.randint(0, 9)}"
            saved = dict(self.names)
            self.names.update(p="text", q="int")
            body = self.block() + self.pick("", "{{ caller() if caller else '-' }}")
            self.names = saved
            call = self.pick(f"{{{{ {name}({e('text')}) }}}}", f"{{{{ {name}({e('text')}, q={e('int')}) }}}}", f"{{{{ {name}(q=1, p={e('text')}) }}}}",
                             tag(f"call {name}({e('text')})") + self.block() + tag("endcall"))
            return tag(f"macro {name}(p, q=2)") + body + tag("endmacro") + call
        if choice < 0.93:
            return tag("filter " + self.pick("upper", "trim", "indent(2)", "replace('a', 'b') | title")) + self.block() + tag("endfilter")
        if choice < 0.95:
            return tag("generation") + self.block() + tag("endgeneration")
        if choice < 0.97 and self.loops:
            return tag(f"if {e('bool')}") + tag(self.pick("break", "continue")) + tag("endif")
        return tag(f"set space = namespace(a={e('int')}, b='')") + tag("for m0 in messages") + tag("set space.a = space.a + 1") + tag("set space.b = m0.role") + \
            tag("endfor") + "{{ space.a }}{{ space.b }}"

    def loop(self):
        tag, e = self.tag, self.e
        name = f"i{self.rng.randint(0, 9)}"
        kind, over, target = self.pick(("text", e("texts"), name), ("int", e("ints"), name), ("dict", "messages", name), ("text", "d.items()", f"k, {name}"),
                                       ("int", f"range({self.rng.randint(0, 4)})", name), ("text", e("text"), name))
        saved = dict(self.names)
        self.names[name] = kind if kind != "dict" else "dict"
        condition = self.pick("", "", f" if {self.pick(name + ' is string', name + ' != 2', e('bool'))}")
        body = self.block(loop=True)
        if self.rng.random() < 0.6:
            body += "{{ " + self.pick("loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.cycle('x', 'y')",
                                      "loop.previtem", "loop.nextitem is defined", "loop.changed(loop.index // 2)", "loop.depth") + " }}"
        self.names = saved
        otherwise = tag("else") + self.block() if self.rng.random() < 0.3 else ""
        return tag(f"for {target} in {over}{condition}") + body + otherwise + tag("endfor")

    def template(self):
        return "".join(self.statement() for _ in range(self.rng.randint(1, 5))) + self.pick("", "\n", "\n\n")


AWKWARD = ["{% for x in [1,2] %}{{ x }}{% set x = 5 %}{% endfor %}{{ x }}", "{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = i %}{% endfor %}{{ x }}",
           "{% for c in [[1,[2]],[3]] recursive %}{{ c if c is number else loop(c) }}{% endfor %}", "{{ -2**2 }}{{ 2**-1 }}{{ 7//-2 }}{{ -7%3 }}{{ 7.5//2 }}{{ -7.5 % 2 }}",
           "{{ 'a' 'b' }}{{ 1 if false }}{{ none }}{{ missing }}|{{ [none, true, 1.0, 'é\\n'] }}", "{{ 1e16 }} {{ 1e15 }} {{ 1e-4 }} {{ 1e-5 }} {{ 0.1+0.2 }} {{ 1/3 }} {{ 100.0 }} {{ 1e22 }}",
           "{{ not 1 == 2 }}{{ 1 is not none }}{{ 'a' in 'abc' and not false }}", "{{ missing.a }}", "{{ {}.a }}{{ [].x }}{{ [1][5] }}|", "{{ 'x' + 1 }}",
           "{{ [3,1,2]|sort|join }}{{ ['b','A','a']|sort }}{{ ['b','A','a']|unique|list }}", "{{ raise_exception('no') }}", "{{ strftime_now('%Y') }}",
           "{%- raw -%} {{ x }} {%- endraw -%} ", "  {% if true %}\n  a\n  {% endif %}\nb\n\n", "{{ (1,) }}{{ () }}{{ {'a': (1, 2)} }}{{ 'it\\'s' | list }}",
           "{% macro m(a, b=a) %}{{ a }}{{ b }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, c=3) }}", "{{ [1,2].append(3) }}", "{{ x.__class__ }}",
           "{{ 'a\\tb' | tojson }}{{ '</' | tojson }}{{ {'b': 1, 'a': [1, {}]} | tojson(indent=2) }}", "{{ [1, 2] | map('string') | first }}{{ ''|first }}",
           "{{ '%s' % 1 }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", "{{ 'ß'|upper }}", "{{ 5 | round }}{{ 2.675|round(2) }}{{ 2.5|round }}{{ 2.1|round(0,'ceil') }}"]


def reference(made, record):
    try:
        return made.from_string(record["template"]).render(**record["context"])
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001
        return error


def run(program, records):
    lines = "".join(json.dumps(record) + "\n" for record in records)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000 if SHORT else 10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=str(pathlib.Path(MOE).resolve().parent / "jinja_render"))
    given = parser.parse_args()
    tally, made = Tally(), environment()
    differences, refused, raised, rendered = [], collections.Counter(), 0, 0
    records = [{"template": text, "context": context(random.Random(7))} for text in AWKWARD]
    records += [{"template": Writer(random.Random(f"{given.seed} {number}")).template(), "context": context(random.Random(number))} for number in range(given.count)]
    for begin in range(0, len(records), 2000):
        batch = records[begin:begin + 2000]
        for record, mine in zip(batch, run(given.program, batch), strict=True):
            theirs = reference(made, record)
            raised += isinstance(theirs, Exception)
            rendered += "text" in mine
            if "refused" in mine:
                refused[mine["refused"].split(": ", 1)[-1][:60]] += not isinstance(theirs, Exception)
            elif isinstance(theirs, Exception) != ("error" in mine) or (not isinstance(theirs, Exception) and mine["text"] != theirs):
                differences.append((record, mine, theirs))
    for record, mine, theirs in differences[:10]:
        print(json.dumps(record, ensure_ascii=False), "\n  ours:", mine, "\n  jinja2:", repr(theirs))
    print(f"{len(records)} templates: {rendered} rendered, {raised} raise in jinja2, {sum(refused.values())} refused that jinja2 renders: {refused.most_common(8)}")
    tally.check(f"{len(records)} templates render as in jinja2 (seed {given.seed})", not differences, f"{len(differences)} differ")
    tally.check("at most 5 % are refused", sum(refused.values()) <= 0.05 * len(records))
    tally.finish()


main()
