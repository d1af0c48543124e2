#!/usr/bin/env python3
"""Fine-tunes a real chat model with adapters, and compares the result with transformers and PEFT. Run by hand; takes minutes.

  fine_tune_smollm2.py MANTISSA MODEL [--steps N] [--full]

  MANTISSA   the program
  MODEL      a Hugging Face folder of a chat model, such as make_smollm2.py makes
  --full     also trains all weights, for the memory and time of that

Prints a line for each claim, and ends with status 1 if one does not hold:
  tokens     ids and targets of conversations are those of transformers' apply_chat_template()
  loss       falls on 50 conversations about made-up facts
  merged     transformers loads the merged export with no tensor missing or left over; its greedy answers are those of `generate`
  peft       PEFT loads the adapters with no key missing or left over, and gives the logits of the merged model
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

failed = False
NAMES = ["Arlo", "Bena", "Corin", "Dessa", "Elmo", "Fira", "Gorm", "Hale", "Inka", "Joss"]
THINGS = [("color", ["teal", "amber", "violet", "ochre", "slate"]), ("food", ["plums", "rye", "leeks", "figs", "oats"]),
          ("town", ["Marn", "Oster", "Pell", "Quay", "Rusk"]), ("tool", ["awl", "plane", "rasp", "auger", "maul"]),
          ("song", ["Tide", "Ember", "Hollow", "Larch", "Drift"])]


def check(name, holds, text):
    global failed
    failed |= not holds
    print(f"{'ok  ' if holds else 'FAIL'}  {name}: {text}", flush=True)


def conversations():
    for i, name in enumerate(NAMES):
        for thing, values in THINGS:
            value = values[i % len(values)]
            yield [{"role": "user", "content": f"Which {thing} does {name} like best?"},
                   {"role": "assistant", "content": f"{name} likes {value} best, and no other {thing}."}]


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


def expected_shard(tokenizer, chats):
    """Ids, and a 1 for each token of an assistant's content and end of turn: found by rendering every prefix."""
    ids, mask = [], []
    for chat in chats:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        spans, at = [], 0
        for message in chat:
            if message["role"] == "assistant":
                at = text.index(message["content"], at)
                end = text.index("<|im_end|>", at) + len("<|im_end|>")
                spans.append((at, end))
                at = end
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids += encoded["input_ids"]
        mask += [int(any(b <= start and end <= e for b, e in spans)) for start, end in encoded["offset_mapping"]]
    return ids, mask


def train(program, model, data, folder, steps, adapters):
    lora = "lora: {rank: 16, alpha: 32.0, targets: ['*']}" if adapters else "lora: {rank: 0}"
    config = folder / f"{'lora' if adapters else 'full'}.yaml"
    config.write_text(f"""model: {{context: 128, {lora}}}
data: {{format: tokens, train: {data}, packing: documents}}
train: {{init_from: {model}, run_dir: {config.with_suffix('')}, steps: {steps}, global_batch: 4, micro_batch: 4, eval_interval: 0,
  sample_tokens: 0, log_interval: 1}}
optimizer: {{lr: {5e-4 if adapters else 5e-5}, warmup_steps: 2, weight_decay: 0.0}}
precision: {{compute: fp32}}
""")
    begin = time.time()
    run(program, "train", config)
    seconds = time.time() - begin
    records = [json.loads(line) for line in (config.with_suffix("") / "metrics.jsonl").read_text().splitlines()]
    losses = [r["loss"] for r in records if r.get("event") == "step"]
    memory = [r["measured"] for r in records if r.get("event") == "memory"]
    mib = {name: round(size / 2**20) for name, size in memory[-1].items()} if memory else {}
    check("loss", losses[-1] < 0.5 * losses[0], f"{'adapters' if adapters else 'all weights'}: {losses[0]:.3f} -> {losses[-1]:.3f} "
          f"in {steps} steps, {seconds:.0f} s; memory in MiB: {mib}")
    return config.with_suffix("")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mantissa", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chats = list(conversations())
        (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        run(given.mantissa, "tokenize", folder / "chats.jsonl", "--chat", "auto", "--tokenizer", given.model, "--out", folder / "tokens")
        shard = load_file(folder / "tokens" / "tokens_000000.safetensors")
        ids, mask = expected_shard(tokenizer, chats)
        check("tokens", shard["tokens"].tolist() == ids and shard["loss_mask"].tolist() == mask,
              f"{len(ids)} tokens of {len(chats)} conversations, {sum(mask)} of them targets")

        trained = train(given.mantissa, given.model, folder / "tokens", folder, given.steps, True)
        if given.full:
            train(given.mantissa, given.model, folder / "tokens", folder, given.steps, False)

        run(given.mantissa, "export", trained, "--out", folder / "merged", "--dtype", "fp32")
        merged, loading = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32, output_loading_info=True)
        clean = not any(loading.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        equal, answers = 0, []
        prompts = [tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True) for chat in chats[::17]]
        for prompt in prompts:
            inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
            out = merged.generate(**inputs, max_new_tokens=16, do_sample=False)
            theirs = tokenizer.decode(out[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()
            ours = run(given.mantissa, "generate", trained, "--prompt", prompt, "--tokens", 16, "--temperature", 0)
            ours = ours[ours.index("assistant\n") + len("assistant\n"):].replace("<|im_end|>", "").strip()
            equal += ours == theirs
            answers.append(ours)
        check("merged", clean and equal == len(prompts), f"{equal} of {len(prompts)} greedy answers are equal: {answers}")

        run(given.mantissa, "export", trained, "--out", folder / "peft", "--format", "peft")
        base = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
        adapted = PeftModel.from_pretrained(base, folder / "peft")
        names = set(load_file(folder / "peft" / "adapter_model.safetensors"))
        with torch.no_grad():
            inputs = tokenizer(prompts[0], add_special_tokens=False, return_tensors="pt")
            a, b = adapted(**inputs).logits, merged(**inputs).logits
        distance = ((a - b).norm() / b.norm()).item()
        check("peft", names == set(get_peft_model_state_dict(adapted)) and distance < 1e-5, f"{len(names)} tensors; logits differ by {distance:.1e}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
