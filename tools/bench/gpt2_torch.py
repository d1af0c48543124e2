#!/usr/bin/env python3
"""Times whole training steps of GPT-2 in PyTorch, with the model, weights and batches of `step --export FILE`.

    python3 gpt2_torch.py FILE --micro-batch 8 --steps 20                                      on a GPU
    python3 gpt2_torch.py FILE --micro-batch 8 --device cpu --threads 2 --dtype fp32 --paced   for tools/bench/peers

The defaults are PyTorch's recommendations for one GPU: torch.compile of the whole model, scaled_dot_product_attention
(flash attention in bf16), bf16 autocast over fp32 weights, and fused AdamW. A step is that of mantissa: batches from the
host, forward and backward over all micro-batches, clipping by the global norm, update. A round never waits for the device.
With RANK and WORLD_SIZE set, the program is one of several processes under DistributedDataParallel, each with its part of
the batch in one micro-batch. It prints the same lines "key: values" as step. Exit status: 3 if memory ran out, 4 if a
module is missing.
"""

import argparse
import contextlib
import json
import math
import os
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

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ADAMW = {"fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}
DTYPES = {"F32": torch.float32, "I32": torch.int32}
OutOfMemoryError = getattr(torch.cuda, "OutOfMemoryError", MemoryError)


class Start:
    """The file of `step --export`: the state from which another program trains the same model in the same way. metadata:
    strings by configuration key; read(name): a tensor; names: all of them."""

    def __init__(self, path):
        """A safetensors file: u64le N, N bytes of JSON, data."""
        self.path = path
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(length))
        self.begin = 8 + length
        self.metadata = self.header.pop("__metadata__")
        self.names = list(self.header)

    def read(self, name):
        """Reads instead of mapping: mapped pages would count as memory of this process."""
        entry = self.header[name]
        first, last = entry["data_offsets"]
        data = bytearray(last - first)
        with open(self.path, "rb") as file:
            file.seek(self.begin + first)
            if file.readinto(data) != len(data):
                raise OSError(f"{self.path}: ends within {name}")
        return torch.frombuffer(data, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def load_into(self, model):
        """Copies all weights into the model. ValueError for another name or shape."""
        parameters = dict(model.named_parameters())
        weights = [name for name in self.names if name not in ("tokens", "targets")]
        if sorted(weights) != sorted(parameters):
            raise ValueError(f"{self.path}: holds other weights than the model has: {set(weights) ^ set(parameters)}")
        with torch.no_grad():
            for name in weights:
                values = self.read(name)
                if values.shape != parameters[name].shape:
                    raise ValueError(f"{self.path}: {name} has {values.shape}, the model {parameters[name].shape}")
                parameters[name].copy_(values)


def causal_attention(q, k, v):  # (B, H, T, C / H) each
    """scaled_dot_product_attention from products and a softmax. PyTorch 1 has no other; on a CPU it can be faster."""
    context = q.shape[2]
    hidden = torch.ones(context, context, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[3]))  # (B, H, T, T)
    return functional.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):  # (B, T, C)
        batch, context, width = x.shape
        q, k, v = (
            t.view(batch, context, self.heads, width // self.heads).transpose(1, 2) for t in self.qkv(x).split(width, 2)
        )
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, C / H)
        else:
            mixed = causal_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, context, width))


class Block(nn.Module):
    def __init__(self, width, heads, mlp_width, epsilon, fused_attention):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads, fused_attention)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, mlp_width), "down": nn.Linear(mlp_width, width)})

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp["down"](functional.gelu(self.mlp["up"](self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with the mathematics of mantissa's model `gpt`, for PyTorch 1.13 and newer. Modules have the names of mantissa's
    parameters. metadata: that of the file of `step --export`."""

    def __init__(self, metadata, fused_attention=True):
        super().__init__()
        layers, width, heads, mlp_width, context, vocab = (
            int(metadata["model." + key]) for key in ("layers", "width", "heads", "mlp_width", "context", "vocab")
        )
        epsilon = float(metadata["model.norm_epsilon"])
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, mlp_width, epsilon, fused_attention) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, tokens, targets):  # (B, T) each
        """Cross-entropy, summed over all targets."""
        x = self.token_embedding(tokens) + self.position_embedding.weight
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.final_norm(x), self.token_embedding.weight)  # the head is tied
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def flops_per_token(self):
        """FLOP of a training step: 6 per multiplied parameter + 12 L T C for attention; the causal mask is not discounted."""
        multiplied = [module.weight for module in self.modules() if isinstance(module, nn.Linear)]
        multiplied.append(self.token_embedding.weight)  # the head
        context, width = self.position_embedding.weight.shape
        return 6 * sum(weight.numel() for weight in multiplied) + 12 * len(self.blocks) * context * width


class Clock:
    """Marks points in the order of the device's work. On a CPU, work is done when a call returns."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self, phase):
        """Begins `phase`."""
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


def make_model(start, device, attention):
    # Without memory and initial values, if PyTorch can (from 2.0 on).
    with torch.device("meta") if hasattr(torch, "compile") else contextlib.nullcontext():
        model = Gpt2(start.metadata, attention == "fused")
    model = model.to_empty(device=device)
    start.load_into(model)
    return model


def distribute(model, arguments):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=arguments.bucket_mib, broadcast_buffers=False
    )
    if arguments.wire == "bf16":
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


class Training:
    def __init__(self, arguments, device):
        start = Start(arguments.start)
        self.device, self.micro_batch, self.dtype = device, arguments.micro_batch, arguments.dtype
        tokens, targets = start.read("tokens").long(), start.read("targets").long()  # (steps, sequences, T)
        self.tokens_per_step = tokens[0].numel()
        mine = tokens.shape[1] // RANKS
        if mine * RANKS != tokens.shape[1] or mine % self.micro_batch or RANKS > 1 and mine != self.micro_batch:
            raise ValueError(f"micro-batches of {self.micro_batch} do not divide {tokens.shape[1]} sequences of {RANKS} ranks")
        self.tokens, self.targets = (t[:, RANK * mine : (RANK + 1) * mine].contiguous() for t in (tokens, targets))
        if device.type == "cuda":  # so that copies are asynchronous
            self.tokens, self.targets = self.tokens.pin_memory(), self.targets.pin_memory()
        self.model = make_model(start, device, arguments.attention)
        metadata = start.metadata
        decay = float(metadata["optimizer.weight_decay"])
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=float(metadata["optimizer.lr"]),
            betas=(float(metadata["optimizer.beta1"]), float(metadata["optimizer.beta2"])),
            eps=float(metadata["optimizer.epsilon"]),
            **ADAMW[arguments.adamw],
        )
        self.max_norm = float(metadata["optimizer.clip.max_norm"])
        self.loss = distribute(self.model, arguments) if RANKS > 1 else self.model
        if arguments.compile != "no":  # all sizes of a run are fixed
            mode = {} if arguments.compile == "yes" else {"mode": arguments.compile}
            self.loss = torch.compile(self.loss, dynamic=False, **mode)
        self.next_step = 0
        self.losses = []  # on the device: reading one would wait for its step

    def autocast(self):
        if self.dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def step(self, mark):
        index = self.next_step % len(self.tokens)
        self.next_step += 1
        total = torch.zeros((), device=self.device)
        for begin in range(0, self.tokens.shape[1], self.micro_batch):
            mark("data")
            tokens, targets = (
                t[index, begin : begin + self.micro_batch].to(self.device, non_blocking=True)
                for t in (self.tokens, self.targets)
            )
            mark("forward")
            with self.autocast():
                loss = self.loss(tokens, targets) / self.tokens[index].numel()  # DDP takes the mean over ranks
            mark("backward")
            loss.backward()
            total += loss.detach()
        mark("decide")
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        mark("update")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("between")
        self.losses.append(total)

    def run(self, steps, mark=lambda phase: None):
        """Runs steps, from an idle device to an idle device. mark(phase) is called where a phase begins. Returns seconds."""
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step(mark)
        self.synchronize()
        return time.perf_counter() - begin

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if RANKS > 1:
            torch.distributed.barrier()

    def all_losses(self):
        losses = torch.stack(self.losses)
        if RANKS > 1:
            torch.distributed.all_reduce(losses)
        return (losses / RANKS).tolist()


def serve_rounds(training, steps):
    """Runs a round for each line "round" on standard input, until "end" or its end. All ranks read the same lines."""
    while True:
        print("ready: yes", flush=True)
        line = sys.stdin.readline().strip()
        if line in ("", "end"):
            return
        if line != "round":
            raise ValueError(f"standard input: expected 'round' or 'end', got '{line}'")
        seconds = training.run(steps)
        if RANK == 0:
            print(f"step_ms: {1e3 * seconds / steps:.7g}")


def measure(arguments):
    device = torch.device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        torch.set_num_interop_threads(1)
    if arguments.mkldnn == "no":
        torch.backends.mkldnn.set_flags(False)
    if arguments.dtype == "bf16":
        torch.set_float32_matmul_precision("high")  # PyTorch's advice; for products that autocast leaves in fp32
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
    training = Training(arguments, device)
    training.run(arguments.warm_up)
    step_ms, phases = [], {}
    if arguments.paced:
        serve_rounds(training, arguments.steps)
    else:
        step_ms = [1e3 * training.run(arguments.steps) / arguments.steps for _ in range(arguments.rounds)]
    if arguments.phases > 0:
        clock = Clock(device)
        training.run(arguments.phases, clock.mark)
        phases = {name: ms / arguments.phases for name, ms in clock.milliseconds().items() if name != "between"}
    losses = training.all_losses()
    if RANK > 0:
        return
    on_gpu = device.type == "cuda"
    # Reserved memory, as mantissa counts it; both without the context.
    memory = torch.cuda.max_memory_reserved() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    compiled = "not compiled" if arguments.compile == "no" else "torch.compile"
    print(f"device: {name}, PyTorch {torch.__version__}, {compiled}")
    print("losses:", *(f"{loss:.7g}" for loss in losses))
    print("tokens_per_step:", training.tokens_per_step)
    print("flops_per_step:", float(training.tokens_per_step * training.model.flops_per_token()))
    if step_ms:
        print("step_ms:", *(f"{ms:.7g}" for ms in step_ms))
    if phases:
        print("phase_ms:", *(f"{phase} {ms:.3f}" for phase, ms in phases.items()))
    print("memory_bytes:", memory)


def main():
    parser = argparse.ArgumentParser(description="Times training steps of GPT-2 in PyTorch.")
    parser.add_argument("start", help="the file of step --export")
    parser.add_argument("--micro-batch", type=int, required=True, help="sequences of a micro-batch; divides those of a step")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first round")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of timed steps")
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    parser.add_argument("--phases", type=int, default=0, help="additional steps with timed phases")
    parser.add_argument("--paced", action="store_true", help="runs rounds on request of standard input, instead of --rounds")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"), help="bf16: autocast over fp32 weights")
    parser.add_argument("--threads", type=int, default=0, help="threads of a CPU (default: PyTorch's choice)")
    parser.add_argument("--compile", default="yes", choices=("yes", "no", "max-autotune"))
    parser.add_argument("--adamw", default="fused", choices=tuple(ADAMW))
    parser.add_argument("--attention", default="fused", choices=("fused", "products"))
    parser.add_argument("--mkldnn", default="yes", choices=("yes", "no"), help="whether PyTorch may use oneDNN")
    parser.add_argument("--wire", default="fp32", choices=("fp32", "bf16"), help="dtype of gradients between ranks")
    parser.add_argument("--bucket-mib", type=int, default=25, help="size of gradient buckets between ranks")
    arguments = parser.parse_args()
    try:
        measure(arguments)
    except OutOfMemoryError as error:
        print(f"gpt2_torch: out of memory: {error}", file=sys.stderr)
        return 3
    except Exception as error:  # the first line of a message is the error; the others are advice
        traceback.print_exc()
        print(f"gpt2_torch: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
