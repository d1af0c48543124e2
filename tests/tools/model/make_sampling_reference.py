#!/usr/bin/env python3
"""Makes data/sampling.json with the logits processors of Hugging Face's `transformers` (5.24.0 was used), in the order
in which generate() applies them. Run it by hand; the tests read the file only.

    tests/tools/model/make_sampling_reference.py
"""
import json
import pathlib

import torch
from transformers import generation

VOCAB = 24
FILTERS = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 1.7},
    {"temperature": 0.5, "top_k": 9, "top_p": 0.9},
    {"top_k": 12, "top_p": 0.6, "min_p": 0.2},
    {"repetition_penalty": 2.0, "temperature": 1.3, "top_k": 15, "top_p": 0.95, "min_p": 0.02},
    {"top_k": 1},
    {"top_p": 0.01},
    {"min_p": 1.0},
    {"top_k": 100},
]


def processors(filters):
    made = generation.LogitsProcessorList()
    if "repetition_penalty" in filters:
        made.append(generation.RepetitionPenaltyLogitsProcessor(filters["repetition_penalty"]))
    if "temperature" in filters:
        made.append(generation.TemperatureLogitsWarper(filters["temperature"]))
    if "top_k" in filters:
        made.append(generation.TopKLogitsWarper(filters["top_k"]))
    if "top_p" in filters:
        made.append(generation.TopPLogitsWarper(filters["top_p"]))
    if "min_p" in filters:
        made.append(generation.MinPLogitsWarper(filters["min_p"]))
    return made


def main():
    torch.manual_seed(11)
    cases = []
    for filters in FILTERS:
        for _ in range(2):
            logits = [round(value, 3) for value in (3.0 * torch.randn(VOCAB)).tolist()]
            text = torch.randint(VOCAB, (6,)).tolist()
            scores = processors(filters)(torch.tensor([text]), torch.tensor([logits], dtype=torch.float64))
            probabilities = torch.softmax(scores[0], dim=-1).tolist()
            kept = {token: p for token, p in enumerate(probabilities) if p > 0.0}
            cases.append({"filters": filters, "logits": logits, "text": text, "kept": list(kept),
                          "probabilities": list(kept.values())})
    # Tokens that are equally likely stay together.
    tied = [1.0, 2.0, 2.0, 0.5, 2.0, 1.0]
    scores = processors({"top_k": 2})(torch.tensor([[0]]), torch.tensor([tied], dtype=torch.float64))
    kept = [token for token, p in enumerate(torch.softmax(scores[0], dim=-1).tolist()) if p > 0.0]
    cases.append({"filters": {"top_k": 2}, "logits": tied, "text": [0], "kept": kept,
                  "probabilities": [1.0 / len(kept)] * len(kept)})
    path = pathlib.Path(__file__).resolve().parent / "data" / "sampling.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
