"""Random dense folders of LLaMA's kin, as transformers writes them, for the scripts of tests/interop.

`llama3` has Llama 3's shape in small: its rope, four query heads on two, tied, several end tokens and the real tokenizer with its
128,256 tokens (from MOE_SHARED_DATA), so D is 32. The others (`mistral`, `qwen2`, `qwen3`) have the tokenizer of the real small model.
Weights are drawn wide and biases and norms of heads too, so that a part left out is seen in every logit.
"""
import json
import os
import pathlib
import shutil
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

DATA = pathlib.Path(os.environ.get("MOE_SHARED_DATA", "../shared/data"))
STORIES = DATA / "stories260K-hf" / "tokenizer.model"
LLAMA3 = DATA / "llama3-tokenizer" / "tokenizer.model"
SIZES = dict(vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512, initializer_range=0.2)
# Llama 3's rope, but for its first length: of 8192 positions none of these texts would see what is stretched.
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
    """Zeros and ones from the start would test nothing."""
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value, std=0.5)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(value, mean=1.0, std=0.5)


def add_tokenizer(name, folder):
    if name != "llama3":
        shutil.copy(STORIES, folder)
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
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.token_to_id("<|begin_of_text|>")
    from sentencepiece import SentencePieceProcessor
    pieces = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return pieces.encode, pieces.bos_id()
