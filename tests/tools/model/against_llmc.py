#!/usr/bin/env python3
"""Compares Llamas of llm.c with what llm.c's own train_llama3.py computes and writes. Run by hand; needs PyTorch.

  against_llmc.py MANTISSA TRAIN_LLAMA3_PY...

  MANTISSA           the program
  TRAIN_LLAMA3_PY    train_llama3.py of llm.c: that of its main branch, of its branch "llama3", or both

For each script and dtype, and with scaled RoPE and without, a tiny random model: the program's log-probabilities are
within 1e-5 of the script's, and the model that it exports has every byte of the script's, but for the two factors of
the MLP's width: others may give the same width.
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import types

import torch

VOCAB, LENGTH = 40, 60


def load(path):
    """The script as a module. It imports a tokenizer that nothing here needs."""
    tiktoken = types.ModuleType("tiktoken")
    tiktoken.load = types.ModuleType("tiktoken.load")
    tiktoken.load.load_tiktoken_bpe = None
    sys.modules.update({"tiktoken": tiktoken, "tiktoken.load": tiktoken.load})
    spec = importlib.util.spec_from_file_location("train_llama3", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    program, scripts = sys.argv[1], sys.argv[2:]
    failed = False
    for script in scripts:
        llmc = load(script)
        for dtype in ("float32", "bfloat16"):
            for scaled in (False, True):
                torch.manual_seed(1)
                settings = dict(version="3.1", block_size=64, vocab_size=VOCAB, n_layer=2, n_head=4, n_kv_head=2,
                                n_embd=32, ffn_dim_multiplier=1.3, multiple_of=16, rope_theta=5000.0, use_scaled_rope=scaled)
                if "tied_embeddings" in llmc.LlamaConfig.__annotations__:
                    settings["tied_embeddings"] = False
                config = llmc.LlamaConfig(**settings)
                model = llmc.LLaMA(config)
                if dtype == "bfloat16":
                    for weight in model.parameters():  # so that both compute with the same ones
                        weight.data = weight.data.bfloat16().float()
                model.train()
                with tempfile.TemporaryDirectory() as folder:
                    at = pathlib.Path(folder)
                    llmc.write_model(model, str(at / "model.bin"), dtype)
                    tokens = [(i * i // 3 + 5 * i) % VOCAB for i in range(LENGTH)]
                    (at / "tokens").write_text(" ".join(map(str, tokens)))
                    command = [program, "score", at / "model.bin", at / "tokens", "precision.compute=fp32"]
                    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
                    scored = torch.tensor([float(line.split()[2]) for line in lines])
                    with torch.no_grad():
                        logits, _ = model(torch.tensor([tokens[:-1]]), torch.tensor([tokens[1:]]))
                    expected = torch.log_softmax(logits[0], -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
                    distance = (scored - expected).abs().max().item()
                    original = (at / "model.bin").read_bytes()
                    target = "llmc-cuda" if original[4 * 14] == 0 else "llmc"
                    subprocess.run([program, "export", at / "model.bin", "--out", at / "again.bin", "--format", target],
                                   check=True, capture_output=True)
                    again = (at / "again.bin").read_bytes()
                    factors = [4 * 8, 1024] if target == "llmc-cuda" else [4 * 8, 4 * 9]
                    different = [i for i in range(max(len(original), len(again))) if original[i:i + 1] != again[i:i + 1]
                                 and not any(factor <= i < factor + 4 for factor in factors)]
                holds = distance < 1e-5 and not different
                failed |= not holds
                print(f"{'ok  ' if holds else 'FAIL'}  {target} {dtype} {'scaled' if scaled else 'plain'} RoPE: "
                      f"log-probabilities differ by {distance:.1e}, files in {len(different)} bytes", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
