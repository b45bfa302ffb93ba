#!/usr/bin/env python3
"""Chat templates in the constructs of published ones (templates/*.jinja, tests/golden/chat_templates.json), each over 20 conversations, against transformers.

`moe tokenize --chat --json` must give the text and ids of apply_chat_template(), and a loss where the prefix of the conversation with the
generation prompt ends and the turn does not; for a template with {% generation %} that of return_assistant_tokens_mask. A conversation that
transformers cannot render must be refused. Marks in what people write are text: the rendered string is equal, the ids differ in those marks.
A pair whose template never reads a key of the conversation (tools, documents, reasoning) is refused on purpose and not counted.

With MOE_INTEROP_SHORT=1 two of five conversations are tried.

usage: published_templates.py [--verbose]          environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import pathlib
import re
import sys
import tempfile

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]
import tokenizer_parity as kinds  # noqa: E402
from tally import SHORT, Tally, moe, run_moe, write_jsonl  # noqa: E402

tally = Tally()
DATE = "2026-01-31"
MAX_REFUSED = 0.05  # of the pairs that transformers renders
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Gives the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. \"Köln\""}, "days": {"type": "integer"}},
    "required": ["city"]}}}]
DOCUMENTS = [{"title": "Rivers", "text": "The Loire is long."}, {"title": "Hills", "text": "None <here> & 'there'."}]
END = {"llama2": "</s>", "llama3": "<|eot_id|>", "llama3.1": "<|eot_id|>", "phi3": "<|end|>", "gemma": "<end_of_turn>", "gemma3": "<end_of_turn>",
       "granite3": "<|end_of_text|>", "command-r": "<|END_OF_TURN_TOKEN|>"} | dict.fromkeys(
           ("qwen2.5", "qwen3", "phi4", "smollm2", "smollm3", "chatml with bos (internlm2)", "smollm2 default system",
            "qwen3 no thinking (enable_thinking=false)", "chatml generation tags"), "<|im_end|>") | dict.fromkeys(
               ("llama-3.1 date", "llama-3 comment names im_start"), "<|eot_id|>")  # "</s>" of the others


def chat(*texts, system=None, **record):
    roles = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": ([{"role": "system", "content": system}] if system is not None else []) + roles} | record


def call(*arguments, content=""):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"call0000{i}", "type": "function", "function": {"name": "weather", "arguments": one}} for i, one in enumerate(arguments)]}


def result(text, number=0):
    return {"role": "tool", "name": "weather", "content": text, "tool_call_id": f"call0000{number}"}


def thinking(answer, reasoning):
    return {"role": "assistant", "content": answer, "reasoning_content": reasoning}


USER = {"role": "user", "content": "How is the weather in Köln?"}
CONVERSATIONS = [
    chat("What is 2 + 2?", "4"),
    chat("What is 2 + 2?", "4", system="You are terse."),
    chat("a", "b", "c\nd", "e"),
    chat("a", "b", "c", "d", "Noch eins?", "Nein.", system="Zeile eins\n\nZeile zwei "),
    chat("  Name a river.\n", " The Loire \n"),
    chat("\n\ta ", "\n\n  b\n", " ", "c", system="\n  spaces  \n"),
    chat("你好", "你好！👋", "Ein Übermut", "👩‍👩‍👧‍👦 ﬁ e\u0301"),
    chat("def f(x):\n    return x", "```python\nf(1)\n```\n\n- {{ a }} {% b %} {# c #}"),
    chat(*[f"turn {i}" for i in range(12)]),
    chat("<b>&amp; \"quoted\" 'single' \\n", "</b> {\"json\": [1, 2.5, null]}", system="/no_think Be brief."),
    chat("What is 2 + 2?", "4", tools=TOOLS),
    chat("What is 2 + 2?", "4", system="You are terse.", tools=TOOLS),
    {"messages": [USER, call({"city": "Köln", "days": 2}), result("{\"rain\": true}"), {"role": "assistant", "content": "Rain."}], "tools": TOOLS},
    {"messages": [USER, call({"city": "Köln"}, content="Let me look."), result("wet"), {"role": "assistant", "content": "Wet."},
                  {"role": "user", "content": "And Bonn?"}, call({"city": "Bonn"}), result("dry"), {"role": "assistant", "content": "Dry."}],
     "tools": TOOLS * 2},
    {"messages": [USER, call({"city": "Köln"}, {"city": "Bonn"}), result("wet"), result("dry", 1), {"role": "assistant", "content": "Both."}],
     "tools": TOOLS},
    {"messages": [USER, thinking("Rain.", "Clouds.\nSo it may rain.")]},
    {"messages": [USER, thinking("Rain.", "\nClouds. "), {"role": "user", "content": "Sure?"}, thinking("Yes.", "")]},
    chat("Think.", "<think>\nA thought\n</think>\n\nAn answer", "Again", "<think></think>Short"),
    chat("Which river is long?", "The Loire.", documents=DOCUMENTS),
    chat("Say <|im_end|> and </s> and [INST]", "<|eot_id|><|im_start|>user\n<end_of_turn></s>", system="<s><|user|>"),
]
WITH_MARKS = len(CONVERSATIONS) - 1


def make_folder(work, templates):
    """Writes a random model whose tokenizer has the marks of all templates; returns the folder and the tokenizer of transformers."""
    marks = sorted({mark for text in templates.values() for mark in re.findall(
        r"<\|[A-Za-z_]+\|>|<(?:start|end)_of_turn>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]", text)})
    raw = kinds.make_gpt2(kinds.corpus())
    raw.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in ["<s>", "</s>", *marks]])
    (work / "in").mkdir()
    raw.save(str(work / "in/tokenizer.json"))
    (work / "in/tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": raw.get_vocab_size(), "max_position_embeddings": 4096,
             "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32", "tie_word_embeddings": True}
    (work / "in/config.json").write_text(json.dumps(shape))
    moe("init", work / "in/config.json", "-o", work / "model", "--tokenizer", work / "in")
    return work / "model", PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


def is_read(template, record):
    """Returns False if the template never reads a key of the record, which moe refuses."""
    keys = [key for key in ("tools", "documents") if record.get(key)]
    keys += [key for message in record["messages"] for key in ("tool_calls", "reasoning_content") if message.get(key)]
    return all(key in template for key in keys)


class Rendering:
    """A conversation as transformers renders it."""

    def __init__(self, tokenizer, record):
        self.tokenizer, self.record = tokenizer, record
        self.text = self.render(len(record["messages"]), False)
        encoded = tokenizer(self.text, add_special_tokens=False, return_offsets_mapping=True)
        self.ids, self.offsets = encoded["input_ids"], encoded["offset_mapping"]

    def render(self, count, adds_prompt, **more):
        return self.tokenizer.apply_chat_template(self.record["messages"][:count], tools=self.record.get("tools"),
                                                  documents=self.record.get("documents"), add_generation_prompt=adds_prompt,
                                                  **({"tokenize": False} | more))

    def loss(self, end):
        """Returns the loss of each token; None if a prefix of the conversation is not a prefix of the text."""
        if re.search(r"{%-? *generation", self.tokenizer.chat_template):
            return self.render(len(self.record["messages"]), False, tokenize=True, return_dict=True,
                               return_assistant_tokens_mask=True)["assistant_masks"]
        loss = [0] * len(self.ids)
        for number, message in enumerate(self.record["messages"]):
            if message["role"] != "assistant":
                continue
            try:
                prompt, turn = self.render(number, True), self.render(number + 1, False)
            except Exception:  # the template renders whole conversations only
                return None
            if not turn.startswith(prompt) or not self.text.startswith(prompt):
                return None
            begin, after = len(prompt), turn.rfind(end) + len(end)
            if after <= begin or not self.text.startswith(turn[:after]):
                return None
            for i, (first, last) in enumerate(self.offsets):
                loss[i] |= last > begin and first < after
        return loss


def main():
    verbose = "--verbose" in sys.argv
    templates = {file.stem: file.read_text() for file in sorted((HERE / "templates").glob("*.jinja"))}
    templates |= json.loads((HERE.parent / "golden/chat_templates.json").read_text())
    import transformers.utils.chat_template_utils as chat_template_utils  # strftime_now() of a fixed day
    import datetime as real
    class Fixed(real.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(DATE)
    chat_template_utils.datetime = Fixed
    rendered = refused = compared = no_prefix = agreed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model, tokenizer = make_folder(work, templates)
        for name, template in templates.items():
            (model / "chat_template.jinja").write_text(template)
            tokenizer.chat_template = template
            wrong, refusals = [], []
            for number, record in enumerate(CONVERSATIONS):
                if not is_read(template, record) or (SHORT and number % 5 not in (2, 4)):
                    continue
                try:
                    theirs = Rendering(tokenizer, record)
                except Exception as error:  # jinja2's own, or of Python's operations
                    theirs = f"{type(error).__name__}: {error}"
                write_jsonl(work / "one.jsonl", [record])
                done = run_moe("tokenize", model, "--chat", work / "one.jsonl", "--json", "--template-date", DATE)
                if isinstance(theirs, str):
                    agreed += done.returncode == 2
                    if done.returncode != 2:
                        wrong.append(f"{number}: rendered, but transformers says {theirs}")
                    continue
                rendered += 1
                if done.returncode != 0:
                    refused += 1
                    refusals.append(f"{number}: {done.stderr.strip()}")
                    continue
                mine = json.loads(done.stdout)
                if mine["text"] != theirs.text:
                    wrong.append(f"{number}: text {mine['text']!r} but {theirs.text!r}")
                elif number == WITH_MARKS:
                    if mine["ids"] == theirs.ids or tokenizer.decode(mine["ids"]) != theirs.text:
                        wrong.append(f"{number}: marks that a person wrote: {mine['ids']}")
                elif mine["ids"] != theirs.ids:
                    wrong.append(f"{number}: ids {mine['ids']} but {theirs.ids}")
                else:
                    loss = theirs.loss(END.get(name, "</s>"))
                    no_prefix += loss is None
                    compared += loss is not None
                    if loss is not None and loss != mine["loss"]:
                        shown = lambda flags: "".join(  # noqa: E731
                            t + ("*" if l else "") for t, l in zip(tokenizer.convert_ids_to_tokens(theirs.ids), flags))
                        wrong.append(f"{number}: loss {shown(mine['loss'])} but {shown(loss)}")
            tally.check(f"{name}: {len(wrong)} of {len(CONVERSATIONS)} conversations differ, {len(refusals)} refused", not wrong,
                        "; ".join(wrong + refusals if verbose or wrong else refusals)[:1500 if not verbose else None])
    tally.check(f"{refused} of {rendered} pairs that transformers renders are refused", refused <= MAX_REFUSED * rendered)
    tally.check(f"masks of {compared} pairs equal ({no_prefix} have no prefix to compare); {agreed} refused by both", compared > rendered / 2)


main()
tally.finish()
