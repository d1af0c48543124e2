#!/usr/bin/env python3
"""Times whole training steps of GPT-2 in PyTorch, on the model, weights and batches that `step --export FILE` wrote.

    python3 gpt2_torch.py FILE --micro-batch 8 --steps 20

What PyTorch recommends for one GPU: torch.compile of the whole model, scaled_dot_product_attention (which takes flash
attention for bf16), bf16 autocast over fp32 weights, and AdamW in its fused form. A step is what mantissa's is: batches
from the host, forward and backward over all micro-batches, clipping by the global norm, update. Nothing is waited for
within a round. Prints the same lines "key: values" as step. Exit status: 3 if memory ended, 4 if a module is missing.
"""

import argparse
import json
import mmap
import resource
import struct
import sys
import time
import traceback

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    print(f"gpt2_torch: torch not importable: {error}", file=sys.stderr)
    sys.exit(4)


def read_safetensors(path):
    """Metadata, and tensors by name: u64le N, N bytes of JSON, data. Needs no package for it."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    dtypes = {"F32": torch.float32, "I32": torch.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = dtypes[entry["dtype"]]
        values = torch.frombuffer(data, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=8 + length + begin)
        tensors[name] = values.reshape(entry["shape"])
    return metadata, tensors


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):  # (B, T, C)
        batch, context, width = x.shape
        q, k, v = (
            t.view(batch, context, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, C / H)
        return self.out(mixed.transpose(1, 2).reshape(batch, context, width))


class FeedForward(nn.Module):
    def __init__(self, width, mlp_width):
        super().__init__()
        self.up = nn.Linear(width, mlp_width)
        self.down = nn.Linear(mlp_width, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads, mlp_width, epsilon):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.mlp = FeedForward(width, mlp_width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt2(nn.Module):
    """Modules are called as mantissa's parameters are."""

    def __init__(self, metadata):
        super().__init__()
        layers, width, heads, mlp_width, context, vocab = (
            int(metadata["model." + key]) for key in ("layers", "width", "heads", "mlp_width", "context", "vocab")
        )
        epsilon = float(metadata["model.norm_epsilon"])
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, mlp_width, epsilon) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, tokens, targets):  # (B, T) each
        """Cross-entropy, summed over all targets."""
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.final_norm(x), self.token_embedding.weight)  # the head is tied
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


class Clock:
    """Marks points in the order of the device's work. On a CPU the work is done when a call returns."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self, phase):
        """What follows is `phase`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        else:
            event = time.perf_counter()
        self.marks.append((phase, event))

    def milliseconds(self):
        sums = {}
        for (phase, begin), (_, end) in zip(self.marks, self.marks[1:]):
            span = begin.elapsed_time(end) if self.device.type == "cuda" else 1e3 * (end - begin)
            sums[phase] = sums.get(phase, 0.0) + span
        return sums


class NoClock:
    def mark(self, phase):
        pass


class Training:
    def __init__(self, path, micro_batch, device, compile_model):
        metadata, tensors = read_safetensors(path)
        self.device, self.micro_batch = device, micro_batch
        self.tokens = tensors.pop("tokens").long()  # (steps, sequences, T)
        self.targets = tensors.pop("targets").long()
        if device.type == "cuda":  # so that copies need not wait for the device
            self.tokens, self.targets = self.tokens.pin_memory(), self.targets.pin_memory()
        with torch.device("meta"):
            model = Gpt2(metadata)
        self.model = model.to_empty(device=device)
        self.model.load_state_dict(tensors)  # strict: no name and no shape may differ
        decay = float(metadata["optimizer.weight_decay"])
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=float(metadata["optimizer.lr"]),
            betas=(float(metadata["optimizer.beta1"]), float(metadata["optimizer.beta2"])),
            eps=float(metadata["optimizer.epsilon"]),
            fused=True,
        )
        self.max_norm = float(metadata["optimizer.clip.max_norm"])
        # The sizes of a run are fixed: nothing is gained by code for any.
        self.loss = torch.compile(self.model, dynamic=False) if compile_model else self.model
        self.next_step = 0
        self.losses = []  # tensors on the device: reading one would wait for its step

    def step(self, clock):
        index = self.next_step % len(self.tokens)
        self.next_step += 1
        total = torch.zeros((), device=self.device)
        for begin in range(0, self.tokens.shape[1], self.micro_batch):
            clock.mark("data")
            tokens, targets = (
                t[index, begin : begin + self.micro_batch].to(self.device, non_blocking=True)
                for t in (self.tokens, self.targets)
            )
            clock.mark("forward")
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                loss = self.loss(tokens, targets) / self.tokens[index].numel()
            clock.mark("backward")
            loss.backward()
            total += loss.detach()
        clock.mark("decide")
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        clock.mark("update")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        clock.mark("between")
        self.losses.append(total)

    def run(self, steps, clock=NoClock()):
        """Seconds of `steps` steps, from an idle device to an idle device."""
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(clock)
        self.synchronize()
        return time.perf_counter() - begin

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(arguments):
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")  # as PyTorch advises; only products that autocast leaves in fp32
    training = Training(arguments.start, arguments.micro_batch, device, arguments.compile == "yes")
    training.run(arguments.warm_up)
    step_ms = [1e3 * training.run(arguments.steps) / arguments.steps for _ in range(arguments.rounds)]
    phases = {}
    if arguments.phases > 0:
        clock = Clock(device)
        training.run(arguments.phases, clock)
        phases = {name: ms / arguments.phases for name, ms in clock.milliseconds().items() if name != "between"}
    on_gpu = device.type == "cuda"
    # Reserved: what is taken from the device, as the program next to it counts; neither has the context in it.
    memory = torch.cuda.max_memory_reserved() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    compiled = "torch.compile" if arguments.compile == "yes" else "not compiled"
    print(f"device: {name}, PyTorch {torch.__version__}, {compiled}")
    print("losses:", *(f"{loss.item():.7g}" for loss in training.losses))
    print("tokens_per_step:", training.tokens[0].numel())
    print("step_ms:", *(f"{ms:.7g}" for ms in step_ms))
    if phases:
        print("phase_ms:", *(f"{phase} {ms:.3f}" for phase, ms in phases.items()))
    print("memory_bytes:", memory)


def main():
    parser = argparse.ArgumentParser(description="Times training steps of GPT-2 in PyTorch.")
    parser.add_argument("start", help="what step --export wrote")
    parser.add_argument("--micro-batch", type=int, required=True, help="sequences at a time; divides those of a step")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first round")
    parser.add_argument("--rounds", type=int, default=1, help="of timed steps")
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--phases", type=int, default=0, help="further steps whose phases are timed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--compile", default="yes", choices=("yes", "no"))
    arguments = parser.parse_args()
    try:
        measure(arguments)
    except torch.cuda.OutOfMemoryError as error:
        print(f"gpt2_torch: out of memory: {error}", file=sys.stderr)
        return 3
    except Exception as error:  # PyTorch's messages end with advice: what went wrong stands in front
        traceback.print_exc()
        print(f"gpt2_torch: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
