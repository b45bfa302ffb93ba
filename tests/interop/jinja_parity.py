#!/usr/bin/env python3
r"""Differential test of the template engine (core/jinja) against jinja2, in the environment of transformers' chat templates.

The program under test, jinja_render, reads JSON lines {"template": str, "context": {...}} and writes for each a JSON line {"text": str}, {"error": str} (jinja2 must raise too) or {"refused": str}
(not implemented by the engine). A template is a difference if both render and the texts differ, if only one of them raises, or if the program crashes or hangs. Refusals are counted and bounded
by --max-refused. Templates are the hand-written CASES and random ones expanded from GRAMMAR.

A production of GRAMMAR is `level[*weight] text`. The level is the precedence of the expression: an operand below the level of its slot gets parentheses. Statements have a weight only. Slots:
$text5 is an expression of kind `text`, level 5 or higher; $[a¦b] is one of the alternatives, which may have slots; $new_int is a variable of kind `int`, usable after $bind; $name_int is one in
scope (a production is not chosen if there is none), $last_int the latest; $body is a list of statements with a scope of its own; $push and $pop begin and end a scope; $loop, $params and $nojump
change what is in scope. The usage is printed by --help; --selftest checks the generator under jinja2 alone (share of errors, seconds, coverage).
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

BATCH = 2000  # templates per process of the program under test
warnings.simplefilter("ignore")  # invalid escape sequences in string literals


class Generation(Extension):
    """{% generation %} of transformers, which renders its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.CallBlock(self.call_method("_render"), [], [], parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(line)

    def _render(self, caller):
        return caller()

    @staticmethod
    def raise_exception(message):
        raise TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
    x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
ENV.globals.update(raise_exception=Generation.raise_exception, strftime_now=lambda form: f"<{form}>")  # jinja_render defines strftime_now() this way

TEXTS = ["", " ", "a", "Hello World", "b", "user", " padded \t\n", "line one\nline two\n", "\n\n  indented\n\tlines", "cr\r\nlf\r", "你好👋 ok", "e\u0301té", "ÑANDÚ ñ", "Straße", "İstanbul", "ΑΣ σας", "ǆ ﬁ", "it's", 'say "x"', "both ' and \"",
         "back\\slash\\n", "a,b,,c", "-3", " 42 ", "2.5", "1e3", "1_0", "٣", "²", "None", "<|im_end|>", "{{ x }}", "{% if %}", "x-y (z) [w", "\u00a0nbsp\u00a0", "a\u2028b\x0bc\x85d", "\x7f\x1b\u200b", "👨\u200d👩", "<b>&amp;</b>", "%s %", "aXbXc"]
INTS, FLOATS = [0, 1, 2, 3, 5, 7, 10, -1, -2, -7, 100, 65536, 1234567890123], [0.0, -0.0, 0.1, 0.5, 1.5, 2.5, -2.5, 2.675, 1e16, 1e15, 123456789.123, 1e-5, 1e-4, 1e22, 1e100, 5e-324, 1 / 3, 3.0]


def make_context(rng):
    """Returns the names of a chat template (messages, tools, bos_token, ...) and some of each type."""
    pick, random_int = rng.choice, rng.randint

    def value(depth=0):
        kind = rng.randrange(9 if depth < 2 else 5)
        if kind < 5:
            return [pick(TEXTS), pick(INTS), pick(FLOATS), None, rng.random() < 0.5][kind]
        return some(3, lambda: value(depth + 1)) if kind < 7 else {pick(["k", "key", "é", "it's", "B"]): value(depth + 1) for _ in range(random_int(0, 3))}

    def some(most, make):
        return [make() for _ in range(random_int(0, most))]

    def message():
        made = {"role": pick(["system", "user", "assistant", "tool"]), "content": pick(TEXTS) if rng.random() < 0.85 else None}
        if rng.random() < 0.25:
            made["tool_calls"] = some(2, lambda: {"type": "function", "function": {"name": pick(["f", "get_weather"]), "arguments": {"q": pick(TEXTS), "n": value(1)}}})
        return {**made, "content": [{"type": "text", "text": pick(TEXTS)}, {"type": "image"}]} if rng.random() < 0.1 else made

    return {"messages": [message()] + some(3, message) if rng.random() < 0.9 else [], "bos_token": pick(["<s>", "<|begin|>", ""]), "add_generation_prompt": rng.random() < 0.5, "flag": rng.random() < 0.5,
            "s": pick(TEXTS), "t": pick(TEXTS), "n": pick(INTS), "m": pick(INTS[:8]), "f": pick(FLOATS), "g": pick(FLOATS), "xs": some(4, lambda: pick(TEXTS)), "ns": some(5, lambda: pick(INTS)),
            "ys": ["b", "A", "a", "B", "é"][:random_int(1, 5)], "d": {key: value() for key in rng.sample(["a", "b", "B", "items", "é", "k"], random_int(0, 4))}, "tools": pick([None, some(2, value)]),
            "o": value(), "scores": {key: pick(INTS) for key in rng.sample(["x", "y", "Z", "a"], random_int(0, 4))},
            "tree": some(2, lambda: {"name": pick(TEXTS), "children": some(2, lambda: {"name": "leaf", "children": some(1, lambda: {"name": pick(TEXTS)})})})}


SCOPE = {"text": ["s", "t", "bos_token"], "int": ["n", "m"], "float": ["f", "g"], "bool": ["flag", "add_generation_prompt"], "texts": ["xs", "ys"], "ints": ["ns"],
         "dict": ["d", "scores"], "msgs": ["messages"], "any": ["o", "tools", "missing", "none", "tree"], "ever": ["missing"]}
BOUNDS, ESCAPES = ["", "", "0", "1", "-1", "2", "-3", "9", "n"], ["\\n", "\\x41", "\\u00e9", "\\U0001F600", "\\101", "\\q", "\\\\", "\\'", '\\"', "\\t", "\\\n", "\\0"]
DATA = ["text\n", "  <|im_start|>", "\n\n", " \t", "{ not }", "# line\n", "\r\n", "\r", "%}", "}}\n", "ünï 👋 ", "<s>", "  \n  ", "{# note #}\n", "  {#- note -#} ", "{#+ two\nlines +#}\n", "\n {# {{ x }} #}  \n",
        "{#-#}", "{%- raw -%} {{ x }} {% endraw -%} ", "{% raw %}\n  {{ x }} {# #} {%- y -%}\n{% endraw %}\n", "  {%+ raw -%} a{%- endraw +%}\n"]
GRAMMAR = r"""
text: 11*6 $quoted ;; 11*8 $name_text ;; 11*3 $name_msg.role ;; 11*2 $name_msg['role'] ;; 11 $name_space.b ;; 11 strftime_now($quoted) ;; 11*4 $name_macro($[$text¦$text, r=$text¦q=$int, p=$text¦$text, $int, $text]) ;;
    11*3 $text11.$[strip¦lstrip¦rstrip¦upper¦lower¦title¦capitalize]() ;; 11*2 $text11.$[strip¦lstrip¦rstrip]($quoted) ;; 11*2 $text11.replace($quoted, $text$[¦, -1¦, 0¦, 1]) ;; 11 $quoted.join($texts) ;; 11*2 $text11.split($sep)[$[0¦-1]] ;; 11*3 $text11[$slice] ;;
    1*2 $name_msg.content or $text2 ;; 0*3 $text1 if $bool1 else $text ;; 5*5 $text5 + $text6 ;; 6*4 $any6 ~ $any7$[¦ ~ $text7] ;; 7 $text7 * $[0¦1¦2¦3] ;; 10*3 $any10 | $[trim¦upper¦lower¦capitalize¦title¦string] ;; 10 $any10 | trim($quoted) ;;
    10 $any10 | replace($quoted, $quoted) ;; 10 $text10 | replace($quoted, $text, $[0¦1¦2]) ;; 10*2 $[$any10 | string¦missing] | default($text) ;; 10 $name_msg.content | default($text, $[true¦boolean=true]) ;; 10*2 $texts10 | join($[¦$quoted]) ;;
    10 $ints10 | join($quoted) ;; 10*3 $msgs10 | $[join($quoted, attribute='role')¦map(attribute='role') | join($quoted)] ;;
    10*6 $val10 | tojson$[¦¦(indent=2)¦(indent=$[0¦1¦2¦4])¦(indent=$[2¦none], sort_keys=$bool)¦(ensure_ascii=$bool, separators=$[(',', ':')¦(', ', ' = ')])] ;; 10*3 $text10 | indent$[¦($[1¦2¦'> '], $bool, $bool)¦(width=2, $[first¦blank]=$bool)] ;;
    10 $text10 | reverse ;; 10 $texts10 | $[first¦last] | default($quoted)
int: 11*5 $[0¦1¦2¦3¦7¦10¦42] ;; 11*5 $name_int ;; 11 $name_space.a ;; 11 $text11.$[find¦count]($quoted) ;; 11 $texts11.count($text) ;; 11 [$text, 'q'].index('q') ;; 9 $[-¦+]$int11 ;; 5*3 $int5 $[+¦-] $int6 ;; 7 $int7 * $int8 ;; 7*2 $int7 $[//¦%] $[1¦2¦3¦-2¦7¦-5] ;;
    8 $int9 ** $[0¦1¦2¦3] ;; 10*2 $text10 | $[length¦count] ;; 10 $texts10 | $[length¦count] ;; 10 $[$msgs10¦$dict10] | length ;; 10*2 $val10 | int ;; 10 $text10 | int($[7¦default=-1]) ;; 10 $int10 | abs ;; 10*2 $ints10 | sum$[¦(start=$int)] ;;
    10 $ints10 | $[min¦max¦first¦last] | default(0) ;; 0 $int1 if $bool1 else $int
float: 11*3 $[0.0¦1.5¦2.25¦0.1¦1e3¦1e16¦2.5e-7] ;; 11*3 $name_float ;; 7*2 $num7 / $[2¦3¦4¦8¦0.5¦-7] ;; 7 $float7 $[//¦%¦*] $[2¦0.5¦3.0¦-1.5] ;; 5*2 $float5 $[+¦-] $num6 ;; 9 -$float11 ;; 8 $[0.5¦2.0¦1.5] ** $[0¦1¦2¦-1¦0.5] ;; 10*2 $val10 | float ;;
    10 $text10 | float(default=$float) ;; 10 $num10 | float | abs ;; 10*3 $num10 | float | round$[¦¦($[0¦1¦2¦3], $['common'¦'ceil'¦'floor'])] ;; 10 $num10 | round(method=$['ceil'¦'floor'])
num: 10 $num10 | $[abs¦round(1)¦round] ;; 10 [$num, $num] | $[sum¦max¦min¦first] ;; 0*2 $int ;; 0*2 $float ;; 5 $num5 $[+¦-] $num6
bool: 11*2 $[true¦false¦True¦False] ;; 11*3 $name_bool ;; 11*2 $text11.$[startswith¦endswith]($quoted) ;; 11 $text11.isdigit() ;; 3*2 not $any3 ;; 2*2 $bool2 and $bool3 ;; 1*2 $bool1 or $bool2 ;; 4*2 $num5 $[<¦<=¦>¦>=¦==¦!=] $num5 ;; 4*2 $text5 $[==¦!=¦<¦>=] $text5 ;;
    4*2 $name_msg.role $[==¦!=] '$[user¦system¦tool]' ;; 4*2 $any5 $[==¦!=] $any5 ;; 4 $int5 $[<¦<=] $int5 $[<¦==¦>=] $int5 ;; 4 $text5 == $text5 != $any5 ;; 4*2 $text5 $[in¦not in] $text5 ;; 4*4 $[$any5¦$quoted] $[in¦not in] $[$texts5¦($int, $int, 2)] ;;
    4*2 $quoted $[in¦not in] $[$dict5¦$name_msg] ;; 10*6 $any10 is $[¦not ]$[defined¦undefined¦none¦string¦mapping¦iterable¦sequence¦number¦integer¦float¦boolean¦true¦false] ;; 10*2 $name_msg.$[content¦tool_calls¦name] is $[defined¦not none¦string¦iterable] ;;
    10*3 $int10 is $[¦not ]$[odd¦even¦divisibleby(2)¦divisibleby 3¦divisibleby(-7)] ;; 10*2 $any10 is $[¦not ]$[equalto($any)¦eq($any)¦ne($any)¦eq $quoted] ;; 10 $int10 is $[lt¦gt¦ge¦le¦equalto]($int) ;; 10 $text10 is $[¦not ]in($texts) ;;
    10*2 $any10 is $[¦not ]sameas$[(none)¦(true)¦ false]
texts: 11*5 $name_texts ;; 11*3 [$text, $text] ;; 11 $[[]¦['b', 'B', 'a', 'b']] ;; 11 $text11.split() ;; 11*2 $text11.split($sep) ;; 11 $texts11[$slice] ;; 11 $text11.split($[$sep¦none], $[-1¦0¦1¦maxsplit=1]) ;; 5 $texts5 + $texts6 ;;
    10*2 $[$text10¦$dict10¦$dict11.keys()] | list ;; 10*2 $texts10 | sort$[¦($[reverse=¦case_sensitive=¦]$bool)] ;; 10 $texts10 | $[unique¦unique(case_sensitive=true)¦reverse] | list ;;
    10*2 $texts10 | map('$[upper'¦lower'¦trim'¦capitalize'¦title'¦string'¦replace', $quoted, $quoted]) | list ;; 10*3 $texts10 | $[select¦reject]$[('$[string¦none¦defined]')¦¦('$[equalto¦ne¦in]', $text)] | list ;; 10 $msgs10 | map(attribute='role') | list ;;
    10 $msgs10 | map(attribute='content', default='?') | select('string') | list
ints: 11*4 $name_ints ;; 11*2 [$int, $int] ;; 11 $[[]¦[3, 1, 2, 1]] ;; 11 $ints11[$slice] ;; 10*2 range($[0¦1¦5¦1, 7, 2¦5, 0, -2]) | list ;; 10*2 $ints10 | sort$[¦(reverse=$bool)] ;;
    10 $ints10 | $[unique¦reverse¦map('abs')¦select('odd')¦reject('divisibleby', 2)¦select('gt', 1)¦reject('even')] | list ;; 10 $texts10 | map('$[length¦int]') | list
dict: 11*5 $name_dict ;; 11*2 $name_msg ;; 11*2 {$quoted: $any, 'k': $any} ;; 11 $[{}¦{'b': 1, 'a': 2}¦{1: 'x', 2.5: none, 'k': [true]}]
pairs: 11*2 $dict11.items() ;; 11*2 [('a', $any), ($text, 2)] ;; 10 $name_dict | items ;; 10*3 $name_dict | dictsort$[¦(true)¦(reverse=true)¦(case_sensitive=true)] ;; 10 scores | dictsort(by='value')
msgs: 11*8 $name_msgs ;; 11 $name_msgs[$slice] ;; 10*2 $msgs10 | $[selectattr¦rejectattr]('role', $['$[equalto¦eq¦ne¦==]', '$[user¦tool]'¦'in', $texts]) | list ;; 10*2 $msgs10 | $[selectattr¦rejectattr]('$[content¦tool_calls¦role¦tool_calls', 'defined]') | list ;;
    10 $msgs10 | reverse | list ;; 10*2 $msgs10 | sort(attribute='role'$[¦, reverse=$bool¦, case_sensitive=true])
any: 0*12 $val ;; 11*4 $name_any ;; 11*2 $name_ever ;; 11*2 $name_msg.$[content¦tool_calls¦nothing] ;; 11 $name_text.$[foo¦nothing] ;; 11*2 $dict11$[.a¦.k¦.missing¦[$quoted]] ;; 11*2 $dict11.get($quoted$[¦, $any]) ;; 11 $texts11[$[0¦-1¦1¦5]] ;; 11 messages[$[0¦-1]] ;;
    11 $name_loop.$[cycle($any, $any)¦changed($any)¦previtem¦nextitem] ;; 0 $any1 if $bool1 ;; 0 $any1 if $bool1 else $any ;; 10 $[tools¦o¦messages] | string ;; 10*2 $any10 | default($any$[¦, true¦, boolean=$bool]) ;; 10*2 $[$texts10¦$msgs10] | $[first¦last] ;;
    1 $any1 or $any2 ;; 2 $any2 and $any3
val: 0*3 $text ;; 0*2 $int ;; 0*2 $float ;; 0 $bool ;; 0 $texts ;; 0 $ints ;; 0*2 $dict ;; 0 $msgs ;; 11 ($val, $val) ;; 11 ($text,) ;; 11 [$val, $val, $val] ;; 11*2 $[none¦None¦[1.0, None, 'é', "it's"]¦[]¦()¦{}] ;; 10 $pairs10 | list
stmt: *40 {{ $any }} ;; *20 {{ $text }} ;; *6 {{ $name_msg.role }} ;; *4 {{ $name_msg.content | trim }} ;; *2 {{ $text10 | safe }} ;; *30 $data ;; *8 {% set $new_text = $text$bind %} ;;
    *12 {% set $[$new_int = $int¦$new_float = $float¦$new_bool = $bool¦$new_texts = $texts¦$new_ints = $ints¦$new_dict = $dict¦$new_msgs = $msgs¦$new_any = $any]$bind %} ;; *2 {% set $new_text, $new_int = $text1, $int1$bind %} ;;
    *4 {% set $new_text$[¦ | $[upper¦trim¦indent(2)¦replace('a', 'b') | title]] %}$body{% endset %}$bind ;; *12 {% if $[$bool1¦$bool1¦$any1] %}$body$[¦{% elif $any1 %}$body$[¦{% elif $bool1 %}$body]]$[¦{% else %}$body]{% endif %} ;;
    *10 $push{% for $new_msg in $msgs1$bind$[¦¦ if $last_msg.role $[==¦!=] 'user'] %}$loop$body$body$pop$[¦{% else %}$body]{% endfor %} ;;
    *8 $push{% for $[$new_text in $texts1¦$new_text in $text1¦$new_int in $ints1¦$new_int in range($[3¦4, 0, -2¦0])]$bind$[¦¦ if $bool1] %}$loop$body$pop$[¦{% else %}$body]{% endfor %} ;;
    *5 $push{% for $[$new_text, $new_any in $pairs1¦$new_any in tools or $texts2]$bind$[¦ if $bool1] %}$loop$body$pop$[¦{% else %}$body]{% endfor %} ;;
    *2 $push{% for $new_node in tree$bind recursive %}$loop{{ $last_node.name }}{{ loop.$[depth¦depth0¦index] }}{{ loop($last_node.children) if $last_node.children }}$body$pop{% endfor %} ;;
    *3 {% macro $new_macro(p, q=$int1, r=$text1) %}$push$params$body$pop{% endmacro %}$bind{{ $last_macro($text) }} ;;
    *2 {% macro $new_wrap(p, q=3, r='r') %}$push$params$body{{ caller() }}$pop{% endmacro %}$bind{% call $last_wrap($text) %}$push$nojump$body$pop{% endcall %} ;;
    *1 {% macro $new_wrap(p, q=1) %}{{ caller(p) }}{{ caller(q) }}{% endmacro %}$bind{% call(u) $last_wrap($text) %}{{ u }}$push$nojump$body$pop{% endcall %} ;;
    *2 {% filter $[upper¦trim¦indent(2)¦replace('a', 'b') | title¦capitalize] %}$push$nojump$body$pop{% endfilter %} ;; *3 {% generation %}$push$nojump$body$pop{% endgeneration %} ;; *3 {% set $new_space = namespace(a=$int1, b=$text1)$bind %} ;;
    *9 {% set $name_space.$[a = $last_space.a + $int6¦b = $last_space.b ~ $any7] %} ;; *8 {{ $name_loop.$[index¦index0¦first¦last¦length¦revindex¦revindex0¦previtem¦nextitem¦depth¦depth0] }} ;; *1 {{ $name_loop.cycle($text, $any) }} ;;
    *4 {% if $[$name_loop.changed($any)¦$[¦not ]$name_loop.$[first¦last]] %}$body{% endif %} ;; *6 {% if $bool1 %}{% $name_jump %}{% endif %}
"""

LITERALS = {"text": "'a'", "int": "1", "float": "1.5", "num": "1", "bool": "true", "texts": "['a']", "ints": "[1]", "dict": "{'a': 1}", "any": "1", "val": "1", "msgs": "messages", "pairs": "[('a', 1)]"}
CASE_CONTEXT = {**make_context(random.Random(7)), "s": "top", "n": 3, "f": 0.1, "xs": ["b", "A", "a"], "ns": [3, 1, 2, 1], "d": {"k": "v", "é": [1, None], "B": 1e16},
                "messages": [{"role": "system", "content": "Be\nkind."}, {"role": "user", "content": " hi 'x' \"y\" "}, {"role": "assistant", "content": None}]}
CASES = r"""{% set x = 1 %}{% for i in ns %}{{ x }}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }};;{% for i in ns %}{% set y = i %}{% endfor %}{{ y }}|{{ y is defined }};;{% if n %}{% set z = 1 %}{% endif %}{{ z }}{% if not n %}{% set w = 1 %}{% else %}{% endif %}{{ w }}|;;{% if not n %}{% set s = 1 %}{% endif %}{{ s }}
{% for s in xs %}{{ s }}{% endfor %}{{ s }};;{% for s in s %}{{ s }}{% endfor %};;{% set s %}[{{ s }}]{% endset %}{{ s }};;{% set s = s ~ '!' %}{{ s }};;{% for i in ns %}{% if i == 1 %}{% set k = 'a' %}{% endif %}{{ k }},{% endfor %};;{% set q = namespace(c=0) %}{% for i in ns %}{% set q.c = q.c + i %}{% endfor %}{{ q.c }}
{% set q = namespace() %}{{ q.x }}{% set q.x = 1 %}{{ q.x }};;{% set q.x = 1 %};;{% set d.x = 1 %};;{% for i in ns if i > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %};;{% for i in [] %}{% else %}A{% endfor %}{% for i in ns if i > 9 %}{% else %}B{% endfor %};;{% for i in missing %}{% else %}E{% endfor %}
{% for i in none %}{% endfor %};;{% for i in 5 %}{% endfor %};;{% for i in ns %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %};;{% break %};;{% for a in ns %}{% set outer = loop %}{% for b in xs %}{{ outer.index }}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}
{{ loop }}|{{ loop is defined }};;{% for i in 'aé👋' %}{{ i }}.{% endfor %};;{% for i in ns %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ loop.cycle('odd', 'even') }}{{ loop.changed(i // 2) }}{% endfor %};;{% for a, b in [[1, 2], [3]] %}{{ a }}{% endfor %};;{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %};;{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }};;{% for c in [[1, [2]], [3]] recursive %}{{ c if c is number else loop(c) }}{{ loop.depth0 }}{% endfor %}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}|{{ m() }};;{% macro m() %}{{ s }}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}{% for v in [7] %}{{ m() }}{% endfor %};;{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }};;{{ m() }};;{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }};;{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}{{ s }}{% endcall %};;{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }};;{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}
{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }};;{% if n %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }};;{% macro m() %} a {% endmacro %}{{ m() | trim | length }}{{ m() ~ 'x' }}{{ m() + 'x' }}{{ m() == ' a ' }}{{ m() | tojson }}{{ m() is string }}
{% filter upper | replace('A', 'b') %}a{{ s }}{% endfilter %};;{% set x | upper | trim %} a {% endset %}[{{ x }}];;{{ missing }}|{{ missing | length }}|{{ missing ~ 'a' }}|{{ missing == none }}|{{ missing is none }}{{ [missing] }}{{ missing | upper }}{{ missing or 'x' }}{{ not missing }}{{ missing in xs }};;{{ missing.a }};;{{ missing + 'a' }}
{{ missing() }};;{{ d.nope }}|{{ d['nope'] }}|{{ xs[99] }}|{{ s.nope }}|{{ none.x }};;{{ d.nope.deeper }};;{{ 'x' + 1 }};;{{ missing | tojson }};;{{ missing | list }}{{ missing | join }}{{ missing | first }};;{{ 'a' in missing }};;{{ missing < 1 }};;{{ -missing }};;{{ 'a' if not n }}|{{ ('a' if not n) is undefined }}|{{ 'a' if n else 1 / 0 }}
{{ ('a' if not n).x }};;{{ ['a' if not n] }};;{{ 'a' 'b' "c" }}{{ 'a' 'b' | upper ~ 'c' }};;{{ 'it\'s' }}{{ "q\"" }}{{ '\\n' }}{{ '\x41\u00e9\U0001F600\101\q' }}{{ '\n' | length }};;{{ 'a\⏎b' }};;{{ '\N{BULLET}' }};;{{ 'a␍⏎b' | length }};;{{ '\x4' }};;{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e3 }} {{ 1e-7 }};;{{ 007 }};;{{ 1. }}
{{ true }}{{ True }}{{ none }}{{ None }}{{ [true, none, 1.0, 'a', "it's", 'q"', '\'"', 'é\n\t\\\x7f\u200b\U0001F600\xa0\x1b\r'] }};;{{ (1,) }}{{ () }}{{ (1, 2) }}{{ 1, 2 }}{{ {'a': (1, [none]), 2: 1.5} }}{{ {} }}{{ {'a': 1,} }}{{ [1, 2,] }};;{{ -2 ** 2 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ 0 ** 0 }} {{ 2 ** 0.5 }} {{ 2 ** 62 }};;{{ 2 ** 64 }}
{{ 9223372036854775807 + 1 }};;{{ -1 | abs }} {{ - 5 | string | length }} {{ 1 ~ 2 ~ 'b' }};;{{ 'a' ~ 1 + 2 }};;{{ 1 + 2 ~ 'b' }};;{{ 'a' * 2 ~ 3 * 2 }} {{ 2 * 3 ~ 4 }} {{ 1 - 2 - 3 }} {{ 8 // 2 // 2 }};;{{ -xs | length }};;{{ not 1 == 2 }}{{ not n and f }}{{ 1 or 0 and 0 }}{{ 1 and 'x' or 'y' }}{{ 0 or '' }}|{{ none and 1 }}
{{ 1 is not none }}{{ 3 is odd and 4 is even }}{{ not 3 is odd }}{{ 1 + 1 is even }}{{ 'a' is string | upper }}{{ 4 is divisibleby 2 and f }}{{ 'a' is in 'abc' }}{{ 'a' is in ['a'] is true }};;{{ 1 is 2 }};;{{ 4 is divisibleby 0 }};;{{ 1 is not not none }}
{{ 1 < 2 < 3 }}{{ 3 > 2 == 2 }}{{ 1 < 3 > 2 }}{{ 1 in [1] == n }}{{ (1 in [1]) == true }}{{ 'a' not in 'bc' in ['x'] }};;{{ 1 == 1.0 }}{{ true == 1 }}{{ [1, 2] < [1, 3] }}{{ (1,) == [1] }}{{ {'a': 1} == {'a': 1.0} }}{{ none == false }}{{ 'a' < 'B' }};;{{ 1 < 'a' }};;{{ none < 1 }};;{{ true + true }}{{ true | int }}{{ -true }}{{ true * 'ab' }}
{{ 7 // -2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 5 % 2.5 }} {{ -0.0 }} {{ 0.0 * -1 }} {{ -7.0 // 2 }} {{ -4 % 2.0 }};;{{ 1 / 0 }};;{{ 1 % 0 }};;{{ 1.0 // 0 }};;{{ 'a' * -1 }}|{{ [1] * 2 }}|{{ 2 * 'ab' }}|{{ [1] + [2] }}|{{ (1,) + (2,) }};;{{ [1] + (2,) }};;{{ '%s-%d' % ('a', 3) }}
{{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1e-4 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 1e22 }} {{ 1e23 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 1e308 * 10 }} {{ [f] }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ -2.5 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.15 | round(1, 'floor') }} {{ 5 | round }} {{ 1234.5 | round(-2) }} {{ 42.55 | round(1) }} {{ -0.4 | round }};;{{ 1 | round(method='up') }};;{{ 'inf' | int }}
{{ '42' | int }} {{ ' 42 ' | int }} {{ '4.7' | int }} {{ 'x' | int(5) }} {{ '0x1f' | int(0, 16) }} {{ '1e3' | int }} {{ '1_000' | int }} {{ none | int }} {{ [] | int }} {{ -4.7 | int }} {{ '٣' | int }} {{ 'nan' | float }} {{ 'inf' | float }} {{ '' | float(1.5) }} {{ true | float }} {{ '1_0.5' | float }}
{{ d | tojson }}{{ d | tojson(indent=2) }}{{ d | tojson(indent=1, sort_keys=true) }}{{ {} | tojson(indent=2) }}{{ [[], {}] | tojson(indent=2) }};;{{ 'é' | tojson(true) }};;{{ 'é\n\t"\\/</\x7f\u2028\x00' | tojson }}{{ 'é👋' | tojson(ensure_ascii=true) }}
{{ [1.0, 1e16, 1e-7, 0.1, -0.0, true, none, 10] | tojson }}{{ {1: 'a', none: 3, 1.5: 4, false: 0} | tojson }}{{ (1, 2) | tojson }}{{ [1, {'b': [2]}] | tojson(separators=(',', ':')) }}{{ {'b': 1, 'a': [1]} | tojson(indent='--') }}{{ [1] | tojson(indent=0) }};;{{ {'b': 1, 2: 3} | tojson(sort_keys=true) }}
{{ {'b': 2, 'a': 1, 'C': 3} | dictsort }}{{ {'b': 2, 'a': 1, 'C': 3} | dictsort(true) }}{{ {'b': 1, 'a': 1} | dictsort(by='value', reverse=true) }};;{{ ['b', 'A', 'a', 'B'] | sort }}{{ ['b', 'A', 'a', 'B'] | sort(reverse=true) }}{{ xs | sort(case_sensitive=true) }}{{ [3, 1.0, 2, 1] | sort }}
{{ [{'k': 1, 'v': 'x'}, {'k': 0, 'v': 'y'}, {'k': 1, 'v': 'z'}] | sort(attribute='k', reverse=true) | map(attribute='v') | join }};;{{ [1, 'a'] | sort }};;{{ [[2, 'a'], [1, 'b']] | sort(attribute=0) }}{{ [{'a': {'b': 2}}, {'a': {'b': 1}}] | sort(attribute='a.b') }}
{{ ['b', 'A', 'a', 'B'] | unique | list }}{{ ['a', 'A'] | unique(true) | list }}{{ [1, 1.0, true, 2] | unique | list }}{{ [{'k': 1}, {'k': 1}] | unique(attribute='k') | list }};;{{ xs | min }}{{ xs | max }}{{ [1, 2.0, 2] | max }}{{ [] | max }}|{{ [] | sum }}{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}
{{ 'abcdef'[1:4] }}{{ 'abcdef'[::-1] }}{{ 'abcdef'[-2:] }}{{ 'abcdef'[5:1:-2] }}{{ ns[:-1] }}{{ ns[10:] }}{{ (1, 2, 3)[::2] }}{{ 'é👋x'[1] }}{{ messages[1:][0].role }}{{ 'abc'[none:2] }};;{{ 'abc'[::0] }};;{{ 'abc'['x'] }}|{{ 'abc'[9] }}|;;{{ ns[true] }}{{ ns[1.0] }};;{{ d[0:1] }}
{{ 'hello world-foo (bar) [baz <x {y' | title }}{{ "it's o'neil" | title }}{{ "it's o'neil x1y".title() }}{{ 'hELLO wORLD' | capitalize }}{{ 'ß' | upper }}{{ 'İ' | lower | length }}{{ 'ΑΣ' | lower }}{{ 'ǆ' | title }}{{ 'ǆ x'.capitalize() }};;{{ d.items() }}{{ d.keys() }}{{ d.values() }}{{ {'items': 5}['items'] }}
{{ '  a b  '.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a  b c '.split(none, 1) }}{{ 'a b c'.split(maxsplit=1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a</think>b'.split('</think>')[-1] }};;{{ 'a'.split('') }};;{{ 'a,b,c'.rsplit(',', 1) }};;{{ 'a⏎b'.splitlines() }}
{{ 'xxaxx'.strip('x') }}{{ 'abcba'.strip('ab') }}{{ '\u00a0\u2003a\x1f'.strip() }}{{ 'abc'.lstrip('ba') }}{{ '' | trim('x') }};;{{ 'aaa'.replace('a', 'b', 2) }}{{ 'abc'.replace('', '-') }}{{ 'aaa' | replace('', '.', count=2) }}{{ 123 | replace('2', 'x') }}{{ 'aaaa'.count('aa') }}{{ 'abc'.count('') }}{{ 'abc'.find('') }}
{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('') }}{{ 'abc'.startswith('b', 1) }}{{ '٣²'.isdigit() }}{{ ''.isdigit() }}{{ ', '.join(['a', 'b']) }}{{ '-'.join('abc') }};;{{ ','.join([1]) }};;{{ [1, none, 'a', 1.5] | join('-') }}{{ 'abc' | join('.') }};;{{ ns.index(1) }}{{ ns.count(1) }}{{ (1, 2).index(2) }};;{{ ns.index(5) }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb\n\nc\n' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\r\nb\x0bc\u2028d' | indent(1) }}|{{ '' | indent(2, true) }};;{{ ns.append(2) }};;{{ d.update({'a': 1}) }};;{{ d.pop('k') }};;{{ ''.__class__ }};;{{ ''.__class__.__mro__ }};;{{ range(3) }}{{ range(5)[1:3] | list }}{{ range(0) | length }}
{{ '' | default('x') }}|{{ '' | default('x', true) }}|{{ none | default('x') }}|{{ missing | default }}|{{ 0 | d('x', boolean=true) }};;{{ d.q.r | default('x') }};;{{ dict(a=1, b=2) }};;{{ '<b>' | safe }}{{ ('<b>' | safe) ~ '<i>' }};;{{ '<b>' | e }};;{{ ('<b>' | safe) + '<i>' }};;{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{{ messages | map(attribute='content') | list }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ ns | select('odd') | list }}{{ [0, 1, '', 'a'] | select | list }}{{ [[1, 2], [3]] | map('first') | list }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ [[1, 2]] | map(attribute=1) | list }}
{{ xs | map('nope') | list }};;  {% if n %}⏎  a⏎  {% endif %}⏎b⏎⏎;;{%- if n -%}⏎ x ⏎{%- endif -%}⏎ y;;a {# c #}⏎ b⏎{# c #}⏎c {#- d -#} e;;  {# c #}⏎x;;a⏎  {%+ if n +%}⏎ b{% endif +%}⏎;;{{ 1 -}}⏎⏎ {{- 2 }}⏎⏎;;x⏎;;x⏎⏎;;⏎;;{% raw %}⏎ {{ x }}⏎{% endraw %}⏎;;a {%- raw -%} {{ x }} {%- endraw -%} b;;{% raw -%}⏎  a⏎ {%- endraw %}⏎ b
a␍⏎b␍{% if n %}␍⏎c{% endif %}␍⏎;;{% if n %}{# a #}⏎{% endif %}⏎b;;a{% if n %}   ⏎ b{% endif %};;{{ '{{ x }}' }}{{ '%}' }}{{ '#}' }};;{ {} } {{ {} }}{{ {'a': {}} }};;{%if n%}x{%endif%}{{1}}{{-1}}{{ -1}}{{+1}};;{# unclosed;;{% if n %};;{{ 1;;{% endif %};;{{ 'a }};;{% bogus %};;{{ 1 | bogus }};;{{ 1 is bogus }};;{% raw %} x
  {{ 1 }}  ⏎  {% set x = 1 %}  ⏎  {{ x }};;a⏎⏎  {%- set x = 1 %}⏎⏎⏎b;;{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% set g = 1 %}{% endgeneration %}⏎{{ g }}{% endfor %};;{{ raise_exception('no') }};;{% if not n %}{{ raise_exception('no') }}{% endif %}ok;;{{ strftime_now('%d %b %Y') }};;{{ }};;{{ 1 2 }};;#}%}}}
{% for v in [none, true, 0, 1, 1.0, 'a', '', [], (), {}, range(2), missing] %}{% set t = [v is defined, v is none, v is string, v is mapping, v is iterable, v is sequence, v is number, v is integer, v is float, v is boolean, v is true, v is false, v is callable] %}{{ t }}{% endfor %}"""
CASES = [case.replace("⏎", "\n").replace("␍", "\r") for line in CASES.split("\n") for case in line.split(";;")]
CASES += [part for case in CASES if "{%" not in case for part in re.findall(r"\{\{.*?[^ }]+ \}\}", case) if part != case]  # each expression alone
SLOT = re.compile(r"\$\[((?:[^\[\]]|\[[^\[\]]*\])*)\]|\$([a-z_]+)(\d*)")


def read_parts(text):
    """Returns the parts of a production: strings, (slot, level), and lists of alternatives, which have parts themselves."""
    parts, end = [], 0
    for match in SLOT.finditer(text):
        part = (match[2], int(match[3] or 0)) if match[2] else [read_parts(option) for option in re.split(r"¦(?![^\[]*\])", match[1])]
        parts += [text[end:match.start()], part]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


# By kind, the productions as (level, parts, kinds that need a variable in scope, is_leaf), each as often as its weight.
EVERY = {kind: [(int(level or 99), read_parts(text), set(re.findall(r"\$name_([a-z]+)", text)), not re.search(r"\$(?!name_|quoted|data|\[)", text))
                for level, weight, text in re.findall(r"(\d*)\*?(\d*) (.+?)(?: ;; |$)", productions) for _ in range(int(weight or 1))]
         for kind, productions in re.findall(r"^(\w+): (.+)$", GRAMMAR.replace(";;\n    ", ";; "), re.M)}
LEAVES = {kind: [production for production in productions if production[3]] for kind, productions in EVERY.items()}
LEAVES.update(num=LEAVES["int"] + LEAVES["float"], val=LEAVES["val"] + LEAVES["text"] + LEAVES["int"])
# Tags of statements: text in GRAMMAR, what comes before it, whitespace control, what comes after it.
TAGS = [("{% ", ["", "", "", "  ", "\t", "\n    "], ["{%", "{%", "{%", "{%-", "{%-", "{%+"], [" ", " ", " ", "\n  ", ""]), ("{{ ", ["", "", "", "  "], ["{{", "{{", "{{-", "{{+"], [" ", " ", "\n"]),
        (" %}", [" ", " ", "", "\n"], ["%}", "%}", "%}", "-%}", "-%}", "+%}"], ["", "", "\n", "\n", "\r\n", " \n  ", "\n\n"]), (" }}", [" ", " ", "\n"], ["}}", "}}", "-}}"], ["", "", "", "\n", " "])]


class Node:
    """An expanded production: strings and nodes. need is the level of its slot; is_wrapped adds parentheses that are not needed."""

    def __init__(self, kind, level, need, parts, is_wrapped=False):
        self.kind, self.level, self.need, self.parts, self.is_wrapped = kind, level, need, parts, is_wrapped

    def __str__(self):
        text = "".join(map(str, self.parts))
        return f"({text})" if self.level < self.need or self.is_wrapped else text


class Generator:
    """Expands GRAMMAR to one random template. scope has the variables by kind; "ever" has those that may be undefined."""

    def __init__(self, rng):
        self.random, self.pick = rng.random, rng.choice
        self.scope, self.scopes, self.pending, self.counter, self.nesting = dict(SCOPE), [], [], 0, -1
        self.slots = {"sep": lambda: self.quoted([",", " ", "\n", "a", "l", "-", ", ", "X", "é", "</think>"]), "data": lambda: self.pick(DATA), "quoted": self.quoted,
                      "slice": lambda: "".join(map(self.pick, [BOUNDS, [":"], BOUNDS, ["", "", ":", ":-1", ":2", ":-2", ":1", ":-3"]])), "body": self.body,
                      "name": lambda kind: self.pick(self.scope[kind]), "last": lambda kind: self.scope[kind][-1], "new": self.new, "bind": self.bind,
                      "push": lambda: self.scopes.append(dict(self.scope)), "pop": self.pop, "nojump": lambda: self.add(jump=None), "params": lambda: self.add(text=["p", "r"], int=["q"], jump=None),
                      "loop": lambda: self.add(bool=["loop.first", "loop.last"], int=["loop.index", "loop.revindex", "loop.length"], jump=["break", "continue"], loop=["loop"])}

    def expand(self, kind, need, depth):
        is_statement = kind == "stmt"
        kind = "any" if kind in LITERALS and self.random() < 0.025 else kind  # now and then a value of another type
        is_leaf = self.random() < ((0, 0.3, 0.7, 0.9, 1)[self.nesting] if is_statement else (0, 0.1, 0.35, 0.7, 1)[min(depth, 4)])
        while True:
            level, production, needed, _ = self.pick((LEAVES if is_leaf else EVERY)[kind])
            if all(self.scope.get(name) for name in needed):
                break
        if len(production) == 1 and isinstance(production[0], tuple) and production[0][0] in LITERALS:
            return self.expand(production[0][0], need, depth)
        pending, self.pending = self.pending, []
        parts = self.expand_parts(production, depth + 1)
        self.pending = pending
        return Node(kind, level, need, parts, not is_statement and self.random() < 0.04)

    def expand_parts(self, parts, depth):
        made = []
        for part in parts:
            if isinstance(part, str):
                made.append(self.decorate(part))
            elif isinstance(part, list):
                made += self.expand_parts(self.pick(part), depth)
            elif part[0] in EVERY:
                made.append(self.expand(*part, depth))
            else:
                slot, _, kind = part[0].partition("_")
                made += filter(None, [self.slots[slot](*[kind] if kind else [])])
        return made

    def body(self):
        self.scopes.append(dict(self.scope))
        self.nesting += 1
        parts = [self.expand("stmt", 0, 0) for _ in range(1 + int(self.random() * (6, 3, 2, 1, 1)[self.nesting]))]
        self.nesting -= 1
        self.pop()
        return Node("body", 99, 0, parts)

    def quoted(self, texts=TEXTS + ["x", "-", ", ", "role", "content", "a", "k"]):
        """Returns a string literal, now and then with an escape sequence or raw newlines."""
        mark = self.pick("''\"")
        text = self.pick(texts).replace("\\", "\\\\").replace(mark, "\\" + mark).replace("\r", "\\r")
        return mark + (text.replace("\n", "\\n") if self.random() < 0.8 else text) + (self.pick(ESCAPES) if self.random() < 0.02 else "") + mark

    def new(self, kind):
        self.counter += 1
        self.pending.append((kind, SCOPE[kind][0] if kind in SCOPE and self.random() < 0.1 else f"{kind}_{self.counter}"))
        return self.pending[-1][1]

    def bind(self):
        for kind, name in self.pending:
            self.add(**{kind: [name]})
            for scope in [self.scope, *self.scopes] if kind in SCOPE else []:
                scope["ever"] = [*scope["ever"], name]

    def add(self, **names):
        self.scope.update({kind: self.scope.get(kind, []) + added if added else [] for kind, added in names.items()})

    def pop(self):
        self.scope = self.scopes.pop()

    def decorate(self, text):
        """Returns text with random whitespace control, indentation and newlines at its tags."""
        for tag, before, marks, after in TAGS:
            if tag in text:
                first, *pieces = text.split(tag)
                text = first + "".join(self.pick(before) + self.pick(marks) + self.pick(after) + piece for piece in pieces)
        return text


def generate(seed, number):
    """Returns a random template as a tree, and as a record for the program."""
    rng = random.Random(f"{seed} {number}")
    tree = Generator(rng).body()
    tree.parts.append(rng.choice(["", "", "\n", "\n\n", "\r\n"]))
    return tree, {"template": str(tree), "context": make_context(rng)}


def render_reference(record):
    """Returns jinja2's answer in the form of the program's answers."""
    try:
        return {"text": ENV.from_string(record["template"]).render(**record["context"])}
    except Exception as error:  # a template may raise any type
        return {"error": f"{type(error).__name__}: {error}"}


def run_program(program, records):
    """Returns the program's answers. After a crash, a hang or bad output, bisects for the templates that cause it."""
    try:
        done = subprocess.run([program], input="".join(json.dumps(record) + "\n" for record in records).encode(), capture_output=True, timeout=5 + 0.02 * len(records))
        answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
        if done.returncode == 0 and len(answers) == len(records):
            return answers
        reason = f"exit code {done.returncode}, {len(answers)} answers, {done.stderr.decode(errors='replace')[-300:]}"
    except (subprocess.TimeoutExpired, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"[:300]
    half = len(records) // 2
    return run_program(program, records[:half]) + run_program(program, records[half:]) if half else [{"crash": reason}]


def compare(ours, reference):
    """Returns the kind of the difference, or None. A text with " at 0x" has an address (the repr of a function or generator)."""
    if "crash" in ours or "refused" in ours or " at 0x" in reference.get("text", ""):
        return "crash" if "crash" in ours else None
    if ours.keys() != reference.keys():
        return "only the engine raises" if "error" in ours else "only jinja2 raises"
    return "texts differ" if "text" in ours and ours["text"] != reference["text"] else None


def check(program, items, seed=None):
    """Renders records, or random templates by number if seed is given, with both engines. Returns counts, refusals by construct, and [(item, kind)] of differences."""
    counts, refusals, differing = collections.Counter(), collections.Counter(), []
    records = items if seed is None else [generate(seed, number)[1] for number in items]
    for item, record, ours in zip(items, records, run_program(program, records), strict=True):
        reference = render_reference(record)
        counts.update([f"jinja2 {next(iter(reference))}", next(iter(ours))])
        if "refused" in ours and "text" in reference:
            refusals[" ".join(re.sub(r"^.*?column \d+:? *|^\S*?(:\d+)+:? *", "", ours["refused"]).split()[:5])] += 1
        elif compare(ours, reference):
            differing.append((item, compare(ours, reference)))
    return counts, refusals, differing


def edits(parts, inside=""):
    """Yields (parts, index, replacement): drops a statement, puts a child in the place of a node, or simplifies it."""
    for index, part in enumerate(parts):
        if isinstance(part, Node):
            below = [node for child in part.parts if isinstance(child, Node) for node in (child.parts if child.kind == "body" else [child])]
            if part.kind == "stmt":
                yield from [(parts, index, []), (parts, index, [node for node in below if isinstance(node, str) or node.kind == "stmt"])]
            elif part.kind != "body" and str(part) != LITERALS[part.kind]:
                yield from [(parts, index, [Node(node.kind, node.level, part.need, node.parts)]) for node in [Node(part.kind, 11, 0, [LITERALS[part.kind]]), *below] if node.kind != "stmt"]
            yield from edits(part.parts, part.kind)
        elif inside == "stmt":
            yield parts, index, [re.sub(r"\s*[-+]?([%}]\})\s*", r" \1", re.sub(r"\s*(\{[{%])[-+]?\s*", r"\1 ", part))]


def shrink(program, tree, record, kind):
    """Returns the record without what the difference does not need, first in the template, then in the context."""
    while True:
        options = {}
        for parts, index, new in edits([tree]) if tree else []:
            old, parts[index:index + 1] = parts[index], new
            options[str(tree)] = (parts, index, new)
            parts[index:index + len(new)] = [old]
        smaller = [{**record, "template": text} for text in sorted(options, key=len) if len(text) < len(record["template"])]
        smaller = [found for found, found_kind in check(program, smaller)[2] if found_kind == kind]
        if not smaller:
            break
        record = smaller[0]
        parts, index, new = options[record["template"]]
        parts[index:index + 1] = new
    for name in list(record["context"]):
        less = {**record, "context": {key: value for key, value in record["context"].items() if key != name}}
        record = less if (less, kind) in check(program, [less])[2] else record
    return record


def constructs(template):
    """Yields the names, operators and tags of a template, with "|", "." or "is" before the names of filters, attributes and tests."""
    before = ""
    for _, kind, token in ENV.lex(template):
        if kind in ("name", "operator") or kind.endswith(("_begin", "_end")):
            yield "raw" if kind == "raw_begin" else f"{before}{token}" if before in ("|", ".", "is") else token.strip()
        before = before if kind == "whitespace" or (before, token) == ("is", "not") else token


REQUIRED = """{% {%- {%+ %} -%} +%} {{ {{- }} -}} {# {#- #} -#} raw set for else recursive if elif not and or in macro call caller filter generation break continue namespace range .index0 .first .last .length .revindex .previtem .nextitem .cycle
    .changed .depth + - * / // % ** ~ == != < <= > >= , : [ { ( is isdefined isundefined isnone isstring ismapping isiterable issequence isnumber isinteger isfloat isboolean istrue isfalse isequalto iseq isne isin isodd iseven
    isdivisibleby issameas |trim |length |count |join attribute |map |select |reject |selectattr |rejectattr |first |last |list |items |default boolean |replace |upper |lower |capitalize |title |string |int |float |abs |round |sum |min
    |max |sort reverse case_sensitive |unique |reverse |indent |tojson indent sort_keys separators |dictsort |safe .strip .lstrip .rstrip .split maxsplit .startswith .endswith .replace .upper .lower .title .capitalize .find .count .join
    .isdigit .index .get .items .keys""".split()


def selftest(count, seed):
    """Returns 0 if at most 25 % of the random templates raise in jinja2, and those that render cover REQUIRED."""
    begin, records, generated = time.monotonic(), [generate(seed, number)[1] for number in range(count)], time.monotonic()
    rendered, end = [record["template"] for record in records if "text" in render_reference(record)], time.monotonic()
    covered = collections.Counter(name for template in rendered for name in {*constructs(template)})
    missing = [name for name in REQUIRED if not covered[name]]
    print(f"{count} templates of {sum(len(record['template']) for record in records) // count} characters: {100 - 100 * len(rendered) / count:.1f} % raise in jinja2; "
          f"seconds per 1,000: {(generated - begin) * 1000 / count:.2f} to generate, {(end - generated) * 1000 / count:.2f} to render in jinja2")
    print(f"templates that have: {', '.join(f'{name} {covered[name]}' for name in sorted(REQUIRED, key=lambda name: covered[name]))}\nnot covered: {missing or 'none'}")
    return int(bool(missing) or len(rendered) < 0.75 * count)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default, words in [("count", 2000, "random templates"), ("seed", 1, "of the random templates"), ("jobs", 2, "processes"),
                                 ("max-refused", 30.0, "percent of the random templates that jinja2 renders"),
                                 ("program", os.path.join(os.path.dirname(os.path.abspath(os.environ.get("MOE", "moe"))), "jinja_render"), "program under test")]:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=words)
    parser.add_argument("--selftest", action="store_true", help="check the generator alone")
    given = parser.parse_args()
    if given.selftest:
        return selftest(given.count, given.seed)
    if not os.access(given.program, os.X_OK):
        parser.error(f"{given.program} is not a program; build jinja_render and give its path with --program")
    counts, refusals, differing = check(given.program, [{"template": case, "context": CASE_CONTEXT} for case in CASES])
    print(f"{len(CASES)} hand-written cases: {dict(counts)}, {len(differing)} differ; refused that jinja2 renders: {refusals.most_common()}")
    by_hand, at_random, counts, refusals, printed = [(None, *found) for found in differing], [], collections.Counter(), collections.Counter(), set()
    with concurrent.futures.ProcessPoolExecutor(given.jobs) as pool:
        for batch in [pool.submit(check, given.program, range(first, min(first + BATCH, given.count)), given.seed) for first in range(0, given.count, BATCH)]:
            counts.update(batch.result()[0])
            refusals.update(batch.result()[1])
            at_random += [(*generate(given.seed, number), kind) for number, kind in batch.result()[2]]
    refused = 100 * refusals.total() / max(1, counts["jinja2 text"])
    print(f"{given.count} random templates (seed {given.seed}): {dict(counts)}, {len(at_random)} differ; refused: {refused:.2f} % of those that jinja2 renders: {refusals.most_common(20)}")
    for tree, record, kind in [found for pair in itertools.zip_longest(by_hand, at_random[:30]) for found in pair if found]:
        record = shrink(given.program, tree, record, kind) if len(printed) < 10 else record
        if len(printed) < 10 and record["template"] not in printed:
            printed.add(record["template"])
            print(f"{kind}: {record['template']!r}\n  context: {json.dumps(record['context'], ensure_ascii=False)}\n  engine:  {run_program(given.program, [record])[0]}\n"
                  f"  jinja2:  {render_reference(record)}")
    failed = bool(by_hand or at_random) + (refused > given.max_refused)
    print(f"{2 - failed} passed, {failed} failed, 0 skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
