#!/usr/bin/env python3
"""Compares the program with Hugging Face's transformers and PyTorch on a real pretrained model. Run by hand; takes minutes.

  against_transformers.py MANTISSA MODEL TEXT [--context N]

  MANTISSA   the program
  MODEL      a Hugging Face folder, such as make_smollm2.py makes
  TEXT       a text file in UTF-8, of some tens of thousands of bytes

Prints a line for each claim, and ends with status 1 if one does not hold:
  import, export   every tensor has the bits of the original; transformers loads the export with no tensor missing or left over,
                   and gives the same logits
  perplexity       in fp32 within 1e-4 of transformers', in bf16 within bf16's own distance
  greedy           the same 32 tokens
  training         20 steps of AdamW in fp32: each loss within 1e-3 of PyTorch's, the export trained as PyTorch's model
"""
import argparse
import functools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, BATCH, RATE, CLIP = 20, 4, 1e-4, 1.0
failed = False


def check(name, holds, text):
    global failed
    failed |= not holds
    print(f"{'ok  ' if holds else 'FAIL'}  {name}: {text}", flush=True)


def tensors_of(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def perplexity(model, ids, context):
    nats = 0.0
    with torch.no_grad():
        for begin in range(0, len(ids) - 1, context):
            targets = ids[begin + 1:begin + 1 + context]
            logits = model(input_ids=ids[begin:begin + len(targets)][None]).logits[0].float()
            nats += functional.cross_entropy(logits, targets, reduction="sum").double().item()
    return math.exp(nats / (len(ids) - 1))


def train(model, windows):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mantissa", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=256)
    return parser.parse_args()


def call(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def continued(model, tokenizer, prompt):
    tokens = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**tokens, max_new_tokens=32, do_sample=False, repetition_penalty=1.0)[0]
    return tokenizer.decode(ids, skip_special_tokens=True)


def main():
    arguments = options()
    run = functools.partial(call, arguments.mantissa.resolve())
    source, context = arguments.model.resolve(), arguments.context
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = torch.tensor(tokenizer(arguments.text.read_text(encoding="utf-8")).input_ids)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run("import", source, "--out", folder / "run")
        run("export", folder / "run", "--out", folder / "hf")
        before, after = tensors_of(source), tensors_of(folder / "hf")
        same = before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
        check("import, export", same, f"{len(after)} tensors")
        loaded, info = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32, output_loading_info=True)
        clean = not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"])
        with torch.no_grad():
            equal = torch.equal(loaded.eval()(input_ids=ids[None, :64]).logits, model(input_ids=ids[None, :64]).logits)
        check("transformers loads the export", clean and equal, "no tensor missing or left over, logits equal")

        def ours(precision):
            run("evaluate", folder / "run", f"precision.compute={precision}", "--text", arguments.text, "--context", context,
                "--json", folder / "out.json")
            result = json.loads((folder / "out.json").read_text())[0]
            assert result["tokens"] == len(ids) - 1, "the tokenizers differ"
            return result["perplexity"]

        exact, fp32, bf16 = perplexity(model, ids, context), ours("fp32"), ours("bf16")
        low = perplexity(AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval(), ids, context)
        error = abs(fp32 / exact - 1)
        check("perplexity in fp32", error < 1e-4, f"{fp32:.5f}, transformers {exact:.5f}, relative difference {error:.1e}")
        check("perplexity in bf16", abs(bf16 / exact - 1) < max(2 * abs(low / exact - 1), 5e-3),
              f"{bf16:.5f} ({bf16 / exact - 1:+.1e} beside fp32), transformers {low:.5f} ({low / exact - 1:+.1e})")

        prompt = "The capital of France is"
        wanted = continued(model, tokenizer, prompt)
        found = run("generate", folder / "run", "precision.compute=fp32", "--prompt", prompt, "--tokens", 32, "--temperature", 0)
        check("greedy", found.rstrip("\n").startswith(wanted.rstrip("\n")), repr(found))

        # As many windows as a step has: every step sees all of them.
        windows = ids[:BATCH * context + 1]
        (folder / "tokens.bin").write_bytes(windows.numpy().astype(np.uint16 if max(ids) < 65536 else np.uint32).tobytes())
        layout = "u16" if max(ids) < 65536 else "u32"
        run("train", folder / "run", f"data.train={folder}/tokens.bin", f"data.layout={layout}", f"model.context={context}",
            "precision.compute=fp32", f"train.steps={STEPS}", f"train.global_batch={BATCH}", "train.micro_batch=2", "train.eval_interval=0",
            "train.sample_tokens=0", f"optimizer.lr={RATE}", "optimizer.schedule=constant", "optimizer.warmup_steps=0",
            f"optimizer.clip.max_norm={CLIP}", "stop_rules.action=none", f"train.run_dir={folder}/trained")
        records = [json.loads(line) for line in (folder / "trained/metrics.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in records if record["event"] == "step"]
        stacked = torch.stack([windows[i * context:(i + 1) * context + 1] for i in range(BATCH)])
        reference = train(model.train(), stacked)
        worst = max(abs(a / b - 1) for a, b in zip(losses, reference, strict=True))
        check("training", worst < 1e-3, f"loss {losses[0]:.4f} to {losses[-1]:.4f}, worst relative difference {worst:.1e}")
        run("export", folder / "trained", "--out", folder / "trained_hf", "--dtype", "fp32")
        mine, theirs = tensors_of(folder / "trained_hf"), model.state_dict()
        change = sum((theirs[key] - before[key]).square().sum() for key in mine).sqrt()
        off = sum((mine[key] - theirs[key]).square().sum() for key in mine).sqrt() / change
        check("the export of the training", off < 0.05, f"off by {off:.1e} of the change that PyTorch's training made")
    return failed


if __name__ == "__main__":
    sys.exit(main())
