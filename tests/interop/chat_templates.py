#!/usr/bin/env python3
"""Chat templates (core/data/chat_template.h) against transformers' apply_chat_template, token by token.

Conversations with and without a system text are encoded by `moe train` (ids and loss mask, read from the token cache), and their first
question by `moe generate --chat`, by the folder's template and by the published template of the same name. The templates are the published
ones, shortened without changing the text, and those of tests/golden/chat_templates.json: default system texts, dates, {% generation %}, a
comment that names another form. Llama 3's has the real tokenizer, the others have tokenizers of their kind (tokenizer_parity.py).

usage: chat_templates.py          environment: MOE (the binary), MOE_SHARED_DATA
"""
import json
import pathlib
import struct
import sys
import tempfile

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tokenizer_parity as kinds  # noqa: E402
from tally import DATA, SHORT, Tally, moe, run_moe, skip_without, write_jsonl  # noqa: E402

tally = Tally()
check = tally.check

LLAMA3 = ("{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
          "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
          "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
          "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
          "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
          "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + "
          "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
          "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
          "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
MISTRAL_V0 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
              "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% endif %}{% endfor %}")


def mistral(before, after, end, answer, where):
    """Returns a later template of Mistral, which differ in spaces. v3 and Tekken put the system text before the last question, also if
    the answer follows, as mistral-common does."""
    return ("{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
            "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}{{- bos_token }}"
            "{%- for message in loop_messages %}{%- if message['role'] == 'user' %}"
            f"{{%- if {where} and system_message is defined %}}"
            f"{{{{- '{before}[INST]{after}' + system_message + '\n\n' + message['content'] + '{end}[/INST]' }}}}{{%- else %}}"
            f"{{{{- '{before}[INST]{after}' + message['content'] + '{end}[/INST]' }}}}{{%- endif %}}"
            f"{{%- elif message['role'] == 'assistant' %}}{{{{- {answer} + eos_token }}}}{{%- endif %}}{{%- endfor %}}")


LAST = "loop.index0 >= loop_messages | length - 2"
MISTRAL_V1 = mistral(" ", " ", " ", "' ' + message['content']", "loop.first")
MISTRAL_V3 = mistral("", " ", "", "' ' + message['content'] | trim", LAST)
MISTRAL_TEKKEN = mistral("", "", "", "message['content']", LAST)
MISTRAL_V7 = ("{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + "
              "'[/INST]' }}{%- elif message['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
              "{%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}{%- endif %}{%- endfor %}")

TURNS = [
    ["What is 2 + 2?", "4"],
    ["  Name a river.\n", " The Loire \n"],
    ["Schreibe ein Gedicht über Übermut.", "Ein Übermut, ein Übermut,\n\nder tut den Leuten gar nicht gut.", "Noch eins?", "Nein."],
    ["a", "b", "c\nd", "\n\ne\n", "def f(x):\n    return x", "```\nf(1)\n```", "你好", "你好！👋"],
]
SYSTEMS = ["", "You are terse.", "Zeile eins\n\nZeile zwei "]


def conversations(with_system):
    for turns in TURNS:
        for system in SYSTEMS if with_system else SYSTEMS[:1]:
            roles = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
            yield ([{"role": "system", "content": system}] if system else []) + roles


def plus(tokenizer, *marks):
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return tokenizer


def forms(lines):
    """Yields (form, template, tokenizer, BOS, EOS, end of a turn, has a system text)."""
    bos3, eot = "<|begin_of_text|>", "<|eot_id|>"
    yield "llama3", LLAMA3, kinds.make_real_llama3([]), bos3, "<|end_of_text|>", eot, True
    yield "chatml", CHATML, kinds.make_qwen2(lines), None, "<|im_end|>", "<|im_end|>", True
    yield None, CHATML, kinds.make_gpt2(lines), None, "<|endoftext|>", "<|im_end|>", True  # the marks are no tokens
    yield "zephyr", ZEPHYR, kinds.make_llama2([]), "<s>", "</s>", "</s>", True
    yield "zephyr", ZEPHYR, plus(kinds.make_llama2([]), "<|user|>", "<|assistant|>"), "<s>", "</s>", "</s>", True
    yield "llama2", LLAMA2, kinds.make_llama2([]), "<s>", "</s>", "</s>", True
    yield "mistral-v0", MISTRAL_V0, kinds.make_llama2([]), "<s>", "</s>", "</s>", False  # its template refuses a system text
    yield "mistral", MISTRAL_V1, kinds.make_llama2([]), "<s>", "</s>", "</s>", True
    yield "mistral-v3", MISTRAL_V3, plus(kinds.make_llama2([]), "[INST]", "[/INST]"), "<s>", "</s>", "</s>", True
    yield "mistral-tekken", MISTRAL_TEKKEN, kinds.make_tekken(lines), "<s>", "</s>", "</s>", True
    golden = json.loads((pathlib.Path(__file__).resolve().parents[1] / "golden/chat_templates.json").read_text())
    chatml = lambda: plus(kinds.make_llama2([]), "<|im_start|>", "<|im_end|>")  # noqa: E731
    tokenizers = {"llama-3.1 date": (kinds.make_real_llama3([]), bos3, "<|end_of_text|>", eot),
                  "llama-3 comment names im_start": (kinds.make_real_llama3([]), bos3, "<|end_of_text|>", eot),
                  "tulu3/falcon3": (kinds.make_llama2([]), "<s>", "</s>", "</s>"), "zephyr (published)": (kinds.make_llama2([]), "<s>", "</s>", "</s>"),
                  "mistral v0.3 (published)": (plus(kinds.make_llama2([]), "[INST]", "[/INST]"), "<s>", "</s>", "</s>")}
    for name, template in golden.items():
        yield (None, template, *tokenizers.get(name, (chatml(), "<s>", "</s>", "<|im_end|>")), True)
    yield ("mistral-v7", MISTRAL_V7, plus(kinds.make_tekken(lines), "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "<s>", "</s>", "</s>", True)


def make_model(folder, tokenizer, bos, eos, template, as_file):
    """A random model with the tokenizer; its template in a file of its own or in tokenizer_config.json."""
    folder.mkdir()
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    (folder / "in").mkdir()
    tokenizer.save(str(folder / "in/tokenizer.json"))
    config = {"bos_token": bos, "eos_token": eos}
    (folder / "in/tokenizer_config.json").write_text(json.dumps(config))
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 8,
             "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": vocabulary,
             "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32",
             "tie_word_embeddings": True}
    (folder / "in/config.json").write_text(json.dumps(shape))
    moe("init", folder / "in/config.json", "-o", folder / "model", "--experts", 2, "--router", "top1", "--tokenizer", folder / "in")
    if as_file:
        (folder / "model/chat_template.jinja").write_text(template)
    else:
        config["chat_template"] = [{"name": "rag", "template": "{{ 1 }}"}, {"name": "default", "template": template}]
        (folder / "model/tokenizer_config.json").write_text(json.dumps(config))
    return folder / "model"


def examples_of(file):
    """(ids, learned) of every example of a token file (core/io/formats.md)."""
    data = file.read_bytes()
    _, _, id_bytes, _, _, _, _, count, _, _ = struct.unpack_from("<8sII7Q", data)
    at, found = 120, []
    for _ in range(count):
        tokens, runs, _ = struct.unpack_from("<IIq", data, at)
        at += 16
        ids = list(struct.unpack_from(f"<{tokens}{'H' if id_bytes == 2 else 'I'}", data, at))
        at += (tokens * id_bytes + 3) // 4 * 4
        learned = []
        for turn, length in enumerate(struct.unpack_from(f"<{runs}I", data, at)):
            learned += [turn % 2 == 1] * length
        at = (at + 4 * runs + 7) // 8 * 8
        found.append((ids, learned))
    return found


def trained_on(model, form, records, work, *more):
    data, cache = work / "data.jsonl", work / "cache"
    write_jsonl(data, ({"messages": record} for record in records))
    done = run_moe("train", model, "--data", data, "--template", form, "--cache", cache, "--seq-len", 64, "--micro-batch", 1, "--dry-run", *more)
    if done.returncode != 0:
        return done.stderr
    (file,) = cache.glob("*.tokens")
    return examples_of(file)


def expected(tokenizer, record, end):
    """Returns the ids, and whether each is of an answer or ends its turn, by the offsets of tokens in the rendered text. An answer begins
    at the end of the generation prompt, with the space that follows it."""
    text = tokenizer.apply_chat_template(record, tokenize=False)
    ids = tokenizer.apply_chat_template(record, tokenize=True, return_dict=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["input_ids"] == ids
    learned = [False] * len(ids)
    for number, message in enumerate(record):
        if message["role"] == "assistant":
            marked = record[:number] + [{"role": "assistant", "content": "@ANSWER@"}] + record[number + 1:]
            begin = len(tokenizer.apply_chat_template(marked, tokenize=False).split("@ANSWER@")[0].removesuffix(" "))
            after = text.index(end, begin) + len(end)
            for i, (first, last) in enumerate(encoded["offset_mapping"]):
                learned[i] = learned[i] or (last > begin and first < after)
    return ids, learned


def question_ids(model, question):
    done = run_moe("generate", model, "--chat", "--prompt", question, "--max-tokens", 1, "--json")
    return json.loads(done.stdout)["prompt_ids"] if done.returncode == 0 else done.stderr


def check_form(number, form, template, raw, bos, eos, end, with_system, work):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = template
    model = make_model(work, raw, bos, eos, template, as_file=number % 2 == 0)
    records = list(conversations(with_system))
    shown = form or " ".join(template.split())[:50]
    for name, word in (("by name", form), ("auto", "auto")) if form else (("auto", "auto"),):
        got = trained_on(model, word, records, work)
        (work / "cache").rename(work / f"cache-{word}-{name}") if (work / "cache").exists() else None
        if isinstance(got, str):
            check(f"{shown}, {name}", False, got)
            continue
        printed = [json.loads(line) for line in moe("tokenize", model, "--chat", work / "data.jsonl", "--template", word, "--json").splitlines()]
        texts = [tokenizer.apply_chat_template(record, tokenize=False).replace(" ", "") for record in records]  # some kinds add spaces
        check(f"{shown}, {name}: moe tokenize --chat prints them and the text",
              [(line["ids"], [mark == 1 for mark in line["loss"]]) for line in printed] == got and
              [line["text"].replace(" ", "") for line in printed] == texts)
        wrong = [(record, theirs, mine) for record, mine in zip(records, got)
                 if (theirs := expected(tokenizer, record, end)) != mine]
        detail = ""
        if wrong:
            record, theirs, mine = wrong[0]
            show = lambda ids, learned: [t + ("*" if l else "") for t, l in zip(tokenizer.convert_ids_to_tokens(ids), learned)]  # noqa: E731
            detail = f"{len(wrong)} of {len(records)}: {show(*theirs)} but {show(*mine)}"
        check(f"{shown}, {name}: ids and loss of {len(records)} conversations", len(got) == len(records) and not wrong, detail)
    for question in ("What is 2 + 2?", "zwei\n\nZeilen 👋"):
        theirs = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False)
        mine = question_ids(model, question)
        check(f"{shown}: generate --chat asks {question!r}", mine == theirs, f"{theirs} but {mine}" if mine != theirs else "")
    written = f"Say {end} and {bos or eos} twice"
    mine = question_ids(model, written)
    plain = question_ids(model, "Say this twice")
    special = [raw.token_to_id(mark) for mark in {end, bos, eos} if mark and raw.token_to_id(mark) is not None]
    count = lambda ids: sum(ids.count(mark) for mark in special)  # noqa: E731
    check(f"{shown}: a mark in a question is text", not isinstance(mine, str) and count(mine) == count(plain), str(mine)[:200])


def main():
    skip_without(DATA / "llama3-tokenizer", DATA / "llama-tokenizer")
    lines = kinds.corpus()
    seen = set()
    for number, form in enumerate(forms(lines)):
        if SHORT and form[0] and form[0] in seen:  # another tokenizer
            continue
        seen.add(form[0])
        with tempfile.TemporaryDirectory() as folder:
            check_form(number, *form, pathlib.Path(folder) / "work")


if __name__ == "__main__":
    tally.run(main)
