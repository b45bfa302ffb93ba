"""Random dense folders of LLaMA and its relatives, as transformers writes them, and comparisons with transformers, for tests/interop.

`llama3` has Llama 3's shape in small: its rope, four query heads on two, tied, several end tokens and the real tokenizer with its
128,256 tokens (from MOE_SHARED_DATA), so D is 32. The others (`mistral`, `qwen2`, `qwen3`) have the tokenizer of tally.TRAINED.
Weights, biases and norms of heads have a wide distribution, so that every part changes the logits.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tally import DATA, TRAINED, moe, read_jsonl, write_jsonl

LLAMA3 = DATA / "llama3-tokenizer" / "tokenizer.model"
VOCABULARY = json.loads((TRAINED / "config.json").read_text())["vocab_size"]
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512, initializer_range=0.2)
# Llama 3's rope with a short original length: these texts are shorter than 8192 tokens.
ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=256)
CONFIGS = {
    "llama3": LlamaConfig(**SIZES | dict(vocab_size=128256, initializer_range=0.1), rope_parameters=ROPE, tie_word_embeddings=True,
                          rms_norm_eps=1e-5, bos_token_id=128000, eos_token_id=[128001, 128008, 128009]),
    "mistral": MistralConfig(**SIZES, sliding_window=512, rms_norm_eps=1e-5),
    "mistral, no window": MistralConfig(**SIZES, sliding_window=None, head_dim=12),
    "qwen2": Qwen2Config(**SIZES, rope_parameters=dict(rope_type="default", rope_theta=1e6), bos_token_id=1, eos_token_id=2),
    "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True, max_window_layers=1, bos_token_id=1, eos_token_id=2),
    "qwen2, a window": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=512, max_window_layers=1, bos_token_id=1,
                                   eos_token_id=2),
    "qwen3": Qwen3Config(**SIZES, head_dim=12, rope_parameters=dict(rope_type="default", rope_theta=1e6), bos_token_id=1, eos_token_id=2),
    "qwen3, tied": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2),
}


def spread(model):
    """Randomizes biases and norms of heads, which are zeros and ones initially."""
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value, std=0.5)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(value, mean=1.0, std=0.5)


def add_tokenizer(name, folder):
    if name != "llama3":
        shutil.copy(TRAINED / "tokenizer.model", folder)
        return
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))
    from tokenizer_parity import make_real_llama3
    make_real_llama3([]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast"}))


def make_folder(name, folder, shard="1GB"):
    """Writes the folder; returns the model of transformers."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    spread(model)
    model.save_pretrained(folder, max_shard_size=shard)
    add_tokenizer(name, folder)
    return model


def encoder(folder):
    """Text -> ids without BOS, and the id of BOS, by the folder's own tokenizer."""
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        bos = tokenizer.token_to_id("<|begin_of_text|>") or tokenizer.token_to_id("<s>")
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, bos
    from sentencepiece import SentencePieceProcessor
    pieces = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return pieces.encode, pieces.bos_id()


def load(folder, dtype=torch.float32):
    """Returns the model of transformers and the non-empty entries of its load report."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    return model.eval(), {key: value for key, value in report.items() if value}


def score_gap(model, folder, pairs):
    """Returns the largest difference of a log-probability per token between transformers and `moe eval --requests`. `pairs` are
    contexts and continuations."""
    encode, bos = encoder(folder)
    with tempfile.TemporaryDirectory() as work:
        requests = pathlib.Path(work) / "requests.jsonl"
        write_jsonl(requests, ({"context": a, "continuation": b} for a, b in pairs))
        scores = [json.loads(line) for line in moe("eval", folder, "--requests", requests, "--bos", "on").splitlines()]
    worst = 0.0
    for (a, b), score in zip(pairs, scores, strict=True):
        context, whole = [bos, *encode(a)], [bos, *encode(a + b)]
        with torch.no_grad():
            rows = model(torch.tensor([whole[:-1]])).logits[0].float().log_softmax(-1)[len(context) - 1:]
        wanted = rows.gather(1, torch.tensor(whole[len(context):])[:, None]).sum().item()
        worst = max(worst, abs(wanted - score["logprob"]) / score["tokens"])
    return worst


def train_moe(model, rows, run, flags, *more):
    """Trains on a file of token rows; returns the loss and the gradient norm of each step."""
    flags = {"--schedule": "constant", "--beta1": 0.9, "--beta2": 0.95, "--weight-decay": 0, "--pack": "none", "--shuffle": "off"} | flags
    moe("train", model, "-o", run, "--data", rows, "--quiet", *(word for pair in flags.items() for word in pair), *more)
    return [(record["loss"], record["grad_norm"]) for record in read_jsonl(run / "metrics.jsonl")]
