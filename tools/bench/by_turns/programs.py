"""The measured models, dtypes and set-ups, and mantissa's commands for them."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    title: str
    config: str
    layers: int
    heads: int
    width: int
    context: int
    vocab: int
    sequences: int  # per step, over all ranks

    @property
    def tokens(self):
        """Tokens per step."""
        return self.sequences * self.context

    def flops_per_step(self):
        """6 per multiplied parameter and token + 12 L C T per token; the causal mask is not discounted."""
        multiplied = self.layers * 12 * self.width**2 + self.width * self.vocab
        return float(self.tokens * (6 * multiplied + 12 * self.layers * self.context * self.width))

    def overrides(self):
        keys = ("layers", "heads", "width", "context", "vocab")
        return [f"model.{key}={getattr(self, key)}" for key in keys]


@dataclass(frozen=True)
class Setup:
    title: str
    ranks: int
    threads: int  # per rank

    @property
    def cores(self):
        return self.ranks * self.threads


TINY, SMALL = "tools/bench/tiny.yaml", "configs/gpt_small_bf16.yaml"
MODELS = {
    "tiny": Model("tiny", TINY, layers=6, heads=6, width=384, context=256, vocab=256, sequences=8),
    "124m": Model("GPT-2 124M", SMALL, layers=12, heads=12, width=768, context=256, vocab=50304, sequences=2),
    # A row takes seconds: for tests.
    "test": Model("test", TINY, layers=1, heads=1, width=64, context=16, vocab=64, sequences=2),
}
# The size at which llm.c's CPU program was measured.
LLMC = Model("GPT-2 124M, 4 x 64 tokens", SMALL, layers=12, heads=12, width=768, context=64, vocab=50304, sequences=4)
SETUPS = {"1t": Setup("1 thread", 1, 1), "2t": Setup("2 threads", 1, 2), "2r": Setup("2 ranks x 1 thread", 2, 1)}
DTYPES = ("fp32", "bf16", "fp16")


def step_arguments(step, model, dtype, ranks):
    """Program and arguments; the caller adds the number of steps."""
    arguments = [step, model.config, "device=cpu", *model.overrides(), f"precision.compute={dtype}"]
    # PyTorch sends gradients in the dtype that it computed them in.
    arguments.append(f"comm.wire_dtype={dtype}")
    if dtype == "fp16":
        arguments.append("scaler.init_scale=1024")  # no step of the comparison overflows
    return arguments + ["--sequences", str(model.sequences // ranks)]


def mantissa_commands(step, model, dtype, setup, *more):
    """Commands for a Job. more: further arguments of step."""
    arguments = step_arguments(step, model, dtype, setup.ranks) + list(more)
    if setup.ranks > 1:
        launcher = ["mpirun", "-np", str(setup.ranks), "--bind-to", "none"]
        if setup.ranks > (os.cpu_count() or 1):
            launcher.append("--oversubscribe")
        if os.geteuid() == 0:
            launcher.append("--allow-run-as-root")
        arguments = launcher + arguments
    return [(arguments, {"OMP_NUM_THREADS": str(setup.threads)})]
