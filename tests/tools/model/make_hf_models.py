#!/usr/bin/env python3
"""Writes data/NAME: tiny random models as Hugging Face's transformers saves them, and what it computes with them.

    pip install torch transformers safetensors
    python3 tests/tools/model/make_hf_models.py

hf_models_test.cc compares with them. Each folder has the model's files and reference.safetensors:
  tokens, targets               i32 (batch, context); target -100 is ignored
  logits, loss                  fp32; loss: mean over the targets that are not ignored
  gradient/NAME                 of the loss, by the names of transformers
  greedy                        i32: the prompt tokens[0, :8] and its most likely continuation
  curve/tokens, curve/targets   i32 (steps, batch, context)
  curve/loss                    (steps), before each step of AdamW
Its metadata record the versions that made it.
"""

import json
import pathlib
import shutil

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers
from torch.nn import functional

BATCH, CONTEXT, STEPS, VOCAB = 2, 24, 20, 40
IGNORE, PROMPT, CONTINUED = -100, 8, 12
LEARNING_RATE, CLIP_NORM = 3e-3, 1.0
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}  # decay of matrices only

LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Name: class of the configuration, its arguments, and the dtype of the file.
MODELS = {
    "gpt2": ("GPT2", {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "bos_token_id": 0, "eos_token_id": 1}, torch.float32),
    "llama2": ("Llama", LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": False}, torch.bfloat16),
    "llama3": ("Llama", LLAMA | {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}, torch.bfloat16),
    "llama_biases": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}, torch.float32),
    "qwen2": ("Qwen2", LLAMA | {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, torch.bfloat16),
    "qwen3": ("Qwen3", LLAMA | {"head_dim": 10}, torch.bfloat16),
    "smollm3": ("SmolLM3", LLAMA | {"no_rope_layer_interval": 2}, torch.bfloat16),
    "mistral": ("Mistral", LLAMA | {"sliding_window": 7, "head_dim": 6}, torch.float16),
    "arcee": ("Arcee", LLAMA, torch.float32),
}
SHARDED = {"mistral": "4KB"}  # the most bytes of a file
OLD_SPELLING = {"llama3"}  # rope_theta and rope_scaling, torch_dtype


def random_model(name, seed):
    kind, arguments, dtype = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**arguments)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    rng = np.random.Generator(np.random.PCG64(seed))
    with torch.no_grad():
        for key, weight in model.named_parameters():
            values = rng.standard_normal(tuple(weight.shape))
            if "norm" in key or ".ln_" in key:
                values = (0.0 if key.endswith("bias") else 1.0) + 0.1 * values
            elif key.endswith("bias"):
                values *= 0.1
            else:
                values *= 0.3
            weight.copy_(torch.from_numpy(values).to(dtype))
    return model, dtype


def batches(count, rng):
    """Noisy arithmetic sequences modulo the vocabulary: something to learn. About one target in nine is ignored."""
    start, stride = rng.integers(0, VOCAB, (count, BATCH, 1)), rng.integers(1, 4, (count, BATCH, 1))
    text = (start + stride * np.arange(CONTEXT + 1)) % VOCAB
    text = np.where(rng.random(text.shape) < 0.1, rng.integers(0, VOCAB, text.shape), text)
    targets = np.where(rng.random((count, BATCH, CONTEXT)) < 1 / 9, IGNORE, text[..., 1:])
    return torch.from_numpy(text[..., :-1]), torch.from_numpy(targets)


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens, use_cache=False).logits
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def curve(model, tokens, targets):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, **ADAMW)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, tokens[step], targets[step])[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def greedy(model, prompt):
    text = prompt.tolist()
    for _ in range(CONTINUED):
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2).values
        assert best[0] - best[1] > 1e-3, "two tokens are almost equally likely: choose another seed"
        text.append(int(logits.argmax()))
    return torch.tensor(text, dtype=torch.int32)


def respell(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main():
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS):
        folder = pathlib.Path(__file__).parent / "data" / name
        shutil.rmtree(folder, ignore_errors=True)
        model, dtype = random_model(name, 10 + seed)
        rng = np.random.Generator(np.random.PCG64(100 + seed))
        tokens, targets = (t[0] for t in batches(1, rng))
        logits, loss = loss_of(model, tokens, targets)
        loss.backward()
        tensors = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach().reshape(1)}
        tensors |= {f"gradient/{key}": weight.grad for key, weight in model.named_parameters()}
        tensors["greedy"] = greedy(model, tokens[0, :PROMPT])
        steps = batches(STEPS, rng)
        tensors |= {"curve/tokens": steps[0].int(), "curve/targets": steps[1].int()}
        about = {"versions": f"torch {torch.__version__}, transformers {transformers.__version__}", "adamw": ADAMW, "learning_rate": LEARNING_RATE, "clip_norm": CLIP_NORM}
        saved = getattr(transformers, type(model).__name__)(model.config)
        saved.load_state_dict(model.state_dict())
        saved.to(dtype).save_pretrained(folder, max_shard_size=SHARDED.get(name, "50GB"))
        if name in OLD_SPELLING:
            respell(folder)
        tensors["curve/loss"] = curve(model, *steps)
        values = {key: value.contiguous().clone() for key, value in tensors.items()}
        safetensors.torch.save_file(values, folder / "reference.safetensors", {"about": json.dumps(about)})
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name}: loss {float(loss):.4f}, curve {float(tensors['curve/loss'][0]):.3f} to {float(tensors['curve/loss'][-1]):.3f}, {size} bytes")


if __name__ == "__main__":
    main()
