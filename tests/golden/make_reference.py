"""Writes reference.json: logits, greedy text and losses of recipes/tiny/model by transformers, with the keys of the published model's
reference.json. Run in the interop environment: python make_reference.py MODEL_DIR > reference.json"""

import json
import sys

import sentencepiece
import torch
import transformers

PROMPT = "The number before 31 is"
STORY = "The opposite of hot is cold. The number after 12 is 13. A cat is an animal, and a red ball is not."


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{sys.argv[1]}/tokenizer.model")
    prompt, story = ([pieces.bos_id(), *pieces.encode(text)] for text in (PROMPT, STORY))
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1]
        model.generation_config.eos_token_id = None
        greedy = model.generate(torch.tensor([[pieces.bos_id()]]), max_new_tokens=64, do_sample=False)[0].tolist()
        log_p = model(torch.tensor([story])).logits[0, :-1].log_softmax(-1)
    nll = -log_p.gather(1, torch.tensor(story[1:])[:, None])[:, 0]
    print(json.dumps({
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "prompt": PROMPT, "prompt_ids_with_bos": prompt, "last_position_logits": [round(x, 5) for x in logits.tolist()],
        "greedy_256_from_bos_ids": greedy, "greedy_256_text": pieces.decode([i for i in greedy if i > 2]),
        "first_story": {"ids_with_bos": story, "token_nll": [round(x, 6) for x in nll.tolist()], "mean_nll": nll.mean().item()}}))


main()
