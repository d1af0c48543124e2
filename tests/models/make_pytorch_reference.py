#!/usr/bin/env python3
"""Writes data/gpt_reference.safetensors: what PyTorch computes for four small transformers.

    pip install torch numpy safetensors
    python3 tests/models/make_pytorch_reference.py

pytorch_reference_test.cc compares with it. The committed file records the versions that made it in its metadata. Random
numbers come from numpy's PCG64, so that weights and tokens do not depend on PyTorch. Another PyTorch release or CPU may
move results by fp32 rounding; the script prints how far fp32 itself is from fp64.

Models (names as in models/, weights are [out, in]):
  gpt      pre-norm, layer norm, gelu (tanh), learned positions, biases, tied head. fp32, and autocast to bf16 and fp16.
  llama    pre-norm, rms norm, swiglu (gate in front of up), rope on half-split pairs, 2 key/value heads for 4 query
           heads, no biases, head of its own. fp32.
  encoder  post-norm, bidirectional, gelu (erf), learned positions, biases, tied head. fp32.
  primer   gpt with relu squared (So et al. 2021). fp32.

Tensors, M one of the models and D one of fp32, bf16, fp16:
  M/weight/NAME                 initial values; those of all but gpt are stored in fp16, which holds them exactly
  M/tokens, M/targets           i32 (batch, context); target -100 is ignored
  M/fp32/logits, loss           loss: mean over the targets that are not ignored
  M/fp32/gradient/NAME          of the loss
  gpt/D/loss                    under autocast
  gpt/D/logits_difference, gradient_difference/NAME    result under autocast minus result in fp32, rounded to bf16:
                                8 bits of a small difference say more than 16 bits of the result itself
  gpt/curve/tokens, targets     i32 (steps, batch, context); gpt/curve/learning_rate (steps)
  gpt/D/curve/loss, gradient_norm   (steps): loss before each step, norm before clipping
  relu_squared/D/x, dy, y, dx   of one call in this dtype: relu(x).square() and its gradient
"""

import json
import math
import pathlib

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch.nn import functional

BATCH, CONTEXT, STEPS = 4, 16, 20
IGNORE = -100
FP16_SCALE = 1024.0  # static loss scale of the fp16 runs; divided out of the gradients in fp32
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}  # decay of matrices only
PEAK_LEARNING_RATE, WARMUP_STEPS, FINAL_FRACTION = 3e-3, 5, 0.1
CLIP_NORM = 2.0  # clips some of the steps and leaves others
EPSILON = 1e-5  # of the norms

CONFIGS = {
    "gpt": {"layers": 2, "width": 24, "heads": 4, "kv_heads": 4, "vocab": 61, "mlp": 64, "seed": 1},
    "llama": {"layers": 1, "width": 24, "heads": 4, "kv_heads": 2, "vocab": 37, "mlp": 28, "seed": 2},
    "encoder": {"layers": 1, "width": 24, "heads": 4, "kv_heads": 4, "vocab": 37, "mlp": 36, "seed": 3},
    "primer": {"layers": 1, "width": 24, "heads": 4, "kv_heads": 4, "vocab": 37, "mlp": 36, "seed": 4},
}


def parameter_shapes(model):
    c = CONFIGS[model]
    llama = model == "llama"
    packed = (c["heads"] + 2 * c["kv_heads"]) * (c["width"] // c["heads"])
    shapes = {"token_embedding.weight": (c["vocab"], c["width"])}
    if not llama:
        shapes["position_embedding.weight"] = (CONTEXT, c["width"])
    for layer in range(c["layers"]):
        block = f"blocks.{layer}."
        sizes = {
            "norm1": (c["width"],),
            "attention.qkv": (packed, c["width"]),
            "attention.out": (c["width"], c["width"]),
            "norm2": (c["width"],),
            "mlp.up": ((2 if llama else 1) * c["mlp"], c["width"]),
            "mlp.down": (c["width"], c["mlp"]),
        }
        for name, size in sizes.items():
            shapes[block + name + ".weight"] = size
            if not llama:
                shapes[block + name + ".bias"] = size[:1]
    if model != "encoder":
        shapes["final_norm.weight"] = (c["width"],)
        if not llama:
            shapes["final_norm.bias"] = (c["width"],)
    if llama:
        shapes["head.weight"] = (c["vocab"], c["width"])
    return shapes


def initial_weights(model, rng):
    """Large enough for attention and activations to be far from linear; norms and biases away from 1 and 0."""
    weights = {}
    for name, shape in parameter_shapes(model).items():
        values = rng.standard_normal(shape)
        if "norm" in name and name.endswith(".weight"):
            values = 1.0 + 0.1 * values
        elif name.endswith(".bias"):
            values *= 0.05
        elif "embedding" in name or name == "head.weight":
            values *= 0.3
        else:
            values *= 1.2 / math.sqrt(shape[1])
        dtype = np.float32 if model == "gpt" else np.float16
        weights[name] = torch.from_numpy(values.astype(dtype))
    return weights


def next_token_batches(count, vocab, rng):
    """Noisy arithmetic sequences modulo the vocabulary: something to learn. About one target in nine is ignored."""
    shape = (count, BATCH)
    start, stride = rng.integers(0, vocab, (*shape, 1)), rng.integers(1, 4, (*shape, 1))
    text = (start + stride * np.arange(CONTEXT + 1)) % vocab
    text = np.where(rng.random(text.shape) < 0.1, rng.integers(0, vocab, text.shape), text)
    targets = np.where(rng.random((*shape, CONTEXT)) < 1 / 9, IGNORE, text[..., 1:])
    return torch.from_numpy(text[..., :-1].astype(np.int32)), torch.from_numpy(targets.astype(np.int32))


def masked_token_batch(vocab, rng):
    """A quarter of the tokens becomes the vocabulary's last token and is to be predicted; all others are ignored."""
    text = rng.integers(0, vocab - 1, (BATCH, CONTEXT))
    hidden = rng.random(text.shape) < 0.25
    tokens, targets = np.where(hidden, vocab - 1, text), np.where(hidden, text, IGNORE)
    return torch.from_numpy(tokens.astype(np.int32)), torch.from_numpy(targets.astype(np.int32))


def rope(x):
    """x (batch, heads, positions, head_dim); pairs (i, i + head_dim / 2)."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-2.0 * torch.arange(half, dtype=torch.float64) / x.shape[-1])
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attention(model, weights, path, x):
    c = CONFIGS[model]
    heads, kv_heads, head_dim = c["heads"], c["kv_heads"], c["width"] // c["heads"]
    packed = functional.linear(x, weights[path + ".qkv.weight"], weights.get(path + ".qkv.bias"))
    q, k, v = packed.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1)
    q, k, v = (t.reshape(BATCH, CONTEXT, -1, head_dim).transpose(1, 2) for t in (q, k, v))
    if model == "llama":
        q, k = rope(q), rope(k)
    mixed = functional.scaled_dot_product_attention(
        q, k, v, is_causal=model != "encoder", enable_gqa=heads != kv_heads
    )
    mixed = mixed.transpose(1, 2).reshape(BATCH, CONTEXT, heads * head_dim)
    return functional.linear(mixed, weights[path + ".out.weight"], weights.get(path + ".out.bias"))


def feed_forward(model, weights, path, x):
    hidden = functional.linear(x, weights[path + ".up.weight"], weights.get(path + ".up.bias"))
    if model == "llama":
        gate, up = hidden.chunk(2, dim=-1)
        hidden = functional.silu(gate) * up
    elif model == "primer":
        hidden = functional.relu(hidden).square()
    else:
        hidden = functional.gelu(hidden, approximate="none" if model == "encoder" else "tanh")
    return functional.linear(hidden, weights[path + ".down.weight"], weights.get(path + ".down.bias"))


def norm(model, weights, path, x):
    if model == "llama":
        return functional.rms_norm(x, x.shape[-1:], weights[path + ".weight"], EPSILON)
    return functional.layer_norm(x, x.shape[-1:], weights[path + ".weight"], weights[path + ".bias"], EPSILON)


def forward(model, weights, tokens):
    x = functional.embedding(tokens, weights["token_embedding.weight"])
    if "position_embedding.weight" in weights:
        x = x + weights["position_embedding.weight"]
    for layer in range(CONFIGS[model]["layers"]):
        path = f"blocks.{layer}"
        norm1, norm2 = path + ".norm1", path + ".norm2"
        if model == "encoder":
            x = norm(model, weights, norm1, x + attention(model, weights, path + ".attention", x))
            x = norm(model, weights, norm2, x + feed_forward(model, weights, path + ".mlp", x))
        else:
            x = x + attention(model, weights, path + ".attention", norm(model, weights, norm1, x))
            x = x + feed_forward(model, weights, path + ".mlp", norm(model, weights, norm2, x))
    if model != "encoder":
        x = norm(model, weights, "final_norm", x)
    return functional.linear(x, weights.get("head.weight", weights["token_embedding.weight"]))


def run(model, weights, tokens, targets, autocast=None):
    """Logits, loss and, as .grad of the weights, gradients of the mean loss."""
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        logits = forward(model, weights, tokens)
    if autocast is not None:
        logits = logits.float()
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.long().flatten(), ignore_index=IGNORE)
    scale = FP16_SCALE if autocast == torch.float16 else 1.0
    (loss * scale).backward()
    for weight in weights.values():
        weight.grad.div_(scale)
        assert weight.grad.isfinite().all()
    return logits.detach(), loss.detach()


def trainable(weights, dtype=torch.float32):
    return {name: value.to(dtype).clone().requires_grad_() for name, value in weights.items()}


def learning_rates():
    rates = []
    for step in range(STEPS):
        if step < WARMUP_STEPS:
            rates.append(PEAK_LEARNING_RATE * (step + 1) / WARMUP_STEPS)
        else:
            progress = (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
            factor = FINAL_FRACTION + (1 - FINAL_FRACTION) * 0.5 * (1 + math.cos(math.pi * progress))
            rates.append(PEAK_LEARNING_RATE * factor)
    return rates


def training_curve(initial, batches, autocast=None, dtype=torch.float32):
    weights = trainable(initial, dtype)
    matrices = [w for w in weights.values() if w.dim() >= 2]
    vectors = [w for w in weights.values() if w.dim() < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, foreach=False, **ADAMW)
    losses, norms = [], []
    for tokens, targets, rate in zip(*batches, learning_rates()):
        optimizer.zero_grad()
        _, loss = run("gpt", weights, tokens, targets, autocast)
        gradient_norm = torch.nn.utils.clip_grad_norm_(weights.values(), CLIP_NORM, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss)
        norms.append(gradient_norm)
    return torch.stack(losses), torch.stack(norms)


def relative_error(value, reference):
    return float((value - reference).norm() / reference.norm())


def check_against_fp64(model, initial, tokens, targets, loss, gradients):
    """How far fp32 rounding moves the reference itself: printed, and held well below the test's 1e-5."""
    exact = trainable(initial, torch.float64)
    _, exact_loss = run(model, exact, tokens, targets)
    worst = max(relative_error(gradients[name], weight.grad) for name, weight in exact.items())
    print(f"{model}: fp32 against fp64: loss {relative_error(loss, exact_loss):.1e}, worst gradient {worst:.1e}")
    assert worst < 2e-6 and relative_error(loss, exact_loss) < 2e-6


def relu_squared():
    tensors = {}
    rng = np.random.Generator(np.random.PCG64(5))
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        x, dy = (torch.from_numpy(rng.standard_normal(200) * 3).to(dtype) for _ in range(2))
        x[:2] = torch.tensor([0.0, -0.0], dtype=dtype)
        y = functional.relu(x.requires_grad_()).square()
        y.backward(dy)
        values = {"x": x.detach(), "dy": dy, "y": y.detach(), "dx": x.grad}
        tensors |= {f"relu_squared/{name}/{key}": value for key, value in values.items()}
    return tensors


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tensors = {}
    for model, config in CONFIGS.items():
        rng = np.random.Generator(np.random.PCG64(config["seed"]))
        initial = initial_weights(model, rng)
        if model == "encoder":
            tokens, targets = masked_token_batch(config["vocab"], rng)
        else:
            tokens, targets = (t[0] for t in next_token_batches(1, config["vocab"], rng))
        weights = trainable(initial)
        logits, loss = run(model, weights, tokens, targets)
        gradients = {name: weight.grad for name, weight in weights.items()}
        check_against_fp64(model, initial, tokens, targets, loss, gradients)
        tensors |= {f"{model}/weight/{name}": value for name, value in initial.items()}
        tensors |= {f"{model}/tokens": tokens, f"{model}/targets": targets}
        tensors |= {f"{model}/fp32/logits": logits, f"{model}/fp32/loss": loss.reshape(1)}
        tensors |= {f"{model}/fp32/gradient/{name}": value for name, value in gradients.items()}
        if model != "gpt":
            continue

        batches = next_token_batches(STEPS, config["vocab"], rng)
        rates = torch.tensor(learning_rates(), dtype=torch.float32)
        tensors |= {"gpt/curve/tokens": batches[0], "gpt/curve/targets": batches[1], "gpt/curve/learning_rate": rates}
        exact_curve = training_curve(initial, batches, dtype=torch.float64)
        for name, autocast in {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
            losses, norms = training_curve(initial, batches, autocast)
            tensors |= {f"gpt/{name}/curve/loss": losses, f"gpt/{name}/curve/gradient_norm": norms}
            errors = [float(((a - b) / b).abs().max()) for a, b in zip((losses, norms), exact_curve)]
            print(f"gpt {name}: losses {losses[0]:.4f}..{losses[-1]:.4f}, norms {norms.min():.2f}..{norms.max():.2f}")
            print(f"gpt {name}: against fp64 losses at most {errors[0]:.1e}, norms at most {errors[1]:.1e}")
            if autocast is None:
                assert max(errors) < 5e-6
                continue
            weights = trainable(initial)
            low_logits, low_loss = run(model, weights, tokens, targets, autocast)
            tensors[f"gpt/{name}/loss"] = low_loss.reshape(1)
            tensors[f"gpt/{name}/logits_difference"] = (low_logits - logits).bfloat16()
            for key, weight in weights.items():
                tensors[f"gpt/{name}/gradient_difference/{key}"] = (weight.grad - gradients[key]).bfloat16()
            worst = max(relative_error(weight.grad, gradients[key]) for key, weight in weights.items())
            print(f"gpt {name}: logits {relative_error(low_logits, logits):.1e}, worst gradient {worst:.1e}")
    tensors |= relu_squared()

    about = {
        "versions": f"torch {torch.__version__}, numpy {np.__version__}, safetensors {safetensors.__version__}",
        "configs": CONFIGS,
        "adamw": ADAMW,
        "clip_norm": CLIP_NORM,
        "fp16_scale": FP16_SCALE,
    }
    metadata = {"about": json.dumps(about)}  # one entry: the library writes several in no fixed order
    path = pathlib.Path(__file__).parent / "data" / "gpt_reference.safetensors"
    safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata)
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
