"""Writes rope.json: the rotary frequencies of transformers for every supported scaling, and the last logits of a
model with each. Run in the interop environment: python make_rope.py MODEL_DIR > rope.json (MODEL_DIR: recipes/tiny/model)."""

import json
import sys

import torch
import transformers

CASES = {
    "default": ({"rope_type": "default", "rope_theta": 10000.0}, 512),
    "linear": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}, 512),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 64),
    "llama3": (
        {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        512,
    ),
}
IDS = [1] + [(7 * i + 3) % 509 + 3 for i in range(99)]  # 100 tokens, longer than the dynamic case's 64 positions


def main():
    cases = []
    for name, (rope, max_positions) in CASES.items():
        config = transformers.AutoConfig.from_pretrained(sys.argv[1])
        config.rope_scaling = None
        config.rope_parameters = dict(rope)
        config.max_position_embeddings = max_positions
        model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], config=config, dtype=torch.float32)
        with torch.no_grad():
            logits = model.eval()(torch.tensor([IDS])).logits[0, -1]
        # Heads of width 64 for the frequencies: the model's heads have too few to reach the blended band of llama3.
        wide = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, max_position_embeddings=max_positions,
                                        rope_parameters=dict(rope))
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(wide)
        rotary(torch.zeros(1, 1, 128), torch.arange(len(IDS))[None])
        cases.append({"name": name, "rope": rope, "max_position_embeddings": max_positions, "sequence_length": len(IDS),
                      "frequencies": rotary.inv_freq.tolist(), "last_logits": [round(x, 5) for x in logits.tolist()]})
    print(json.dumps({"made_with": {"transformers": transformers.__version__, "torch": torch.__version__}, "ids": IDS,
                      "cases": cases}))


main()
