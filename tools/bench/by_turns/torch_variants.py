"""Settings of PyTorch that are tried for a row, and the search for the fastest ones."""

import os
import socket
from dataclasses import dataclass, field

from by_turns.job import Job, JobError

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpt2_torch.py")
TUNED_GLIBC = {  # keeps large blocks mapped, so that each step reuses the memory of the last step
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "1",
}
# A trial is stopped after this multiple of the best time so far. Without oneDNN, bf16 takes 25 times as long.
HOPELESS = 5
START_SECONDS = 60  # without torch.compile; much more than imports and weights need
JEMALLOC = {"MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"}


@dataclass(frozen=True)
class Choice:
    """A setting of one kind."""

    name: str
    options: tuple = ()  # options of gpt2_torch.py
    environment: dict = field(default_factory=dict)
    preload: str = ""  # a library


def kinds(dtype, setup, libraries, name, python, search):
    """{kind: choices}. The search starts from the first choice of each kind. libraries: paths by name. name: the PyTorch of
    `python`. torch.compile comes last, since its trials take a minute each."""
    preload = {library: path for library, path in libraries.items() if path}
    full, modern = search == "full", " 1." not in name  # PyTorch 1 has no torch.compile, SDPA and fused AdamW
    choices = {
        "python": [Choice(name, environment={"PYTHON": python})],
        "malloc": [
            Choice("glibc tuned", environment=TUNED_GLIBC),
            Choice("glibc tuned, huge pages", environment={**TUNED_GLIBC, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
            Choice("glibc"),
        ],
        "BLAS": [Choice("its own BLAS")],
        "AdamW": [Choice(f"AdamW {kind}", ("--adamw", kind)) for kind in ("fused", "foreach", "single")[not modern :]],
        "attention": [
            Choice("SDPA", ("--attention", "fused")),
            Choice("attention of products", ("--attention", "products")),
        ][not modern :],
        "threads": [Choice("threads unbound")],
    }
    if "jemalloc" in preload:
        choices["malloc"].append(Choice("jemalloc", environment=JEMALLOC, preload=preload["jemalloc"]))
    if "tcmalloc" in preload:
        choices["malloc"].append(Choice("tcmalloc", preload=preload["tcmalloc"]))
    for library in ("OpenBLAS (OpenMP)", "OpenBLAS (pthreads)"):
        if library in preload and modern and (full or dtype == "fp32"):  # takes the place of PyTorch's own MKL
            threads = {"OPENBLAS_NUM_THREADS": str(setup.threads)}
            choices["BLAS"].append(Choice(library, environment=threads, preload=preload[library]))
    if setup.cores > 1:
        choices["threads"].append(Choice("threads bound", environment={"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}))
    if full:
        if setup.threads > 1:
            choices["threads"].append(Choice("threads spin", environment={"OMP_WAIT_POLICY": "active"}))
        choices["instructions"] = [
            Choice("widest instructions"),
            Choice("AVX2", environment={"ATEN_CPU_CAPABILITY": "avx2"}),
        ]
        choices["oneDNN"] = [Choice("oneDNN", ("--mkldnn", "yes")), Choice("no oneDNN", ("--mkldnn", "no"))]
    if setup.ranks > 1:
        wires = ("fp32", "bf16") if dtype == "bf16" else ("fp32",)
        choices["wire"] = [Choice(f"{wire} gradients", ("--wire", wire)) for wire in wires]
        sizes = (25, 4, 100) if full else (25,)
        choices["buckets"] = [Choice(f"buckets of {size} MiB", ("--bucket-mib", str(size))) for size in sizes]
    choices["compile"] = [Choice("eager", ("--compile", "no"))]
    if modern:
        choices["compile"].append(Choice("torch.compile", ("--compile", "yes")))
        if full:
            choices["compile"].append(Choice("torch.compile max-autotune", ("--compile", "max-autotune")))
    if search == "none":
        return {kind: offered[:1] for kind, offered in choices.items()}
    return choices


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torch_commands(start, model, dtype, setup, chosen, *more):
    """Commands for a Job. start: the file of `step --export`. chosen: {kind: Choice}. more: further arguments."""
    environment = {
        "OMP_NUM_THREADS": str(setup.threads),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options, preload = [], []
    for choice in chosen.values():
        options += choice.options
        environment.update(choice.environment)
        preload += [choice.preload] if choice.preload else []
    python = environment.pop("PYTHON")
    if preload:
        environment["LD_PRELOAD"] = ":".join(preload)
    arguments = [python, PROGRAM, start, "--paced", "--device", "cpu", "--dtype", dtype, "--threads", str(setup.threads)]
    arguments += ["--micro-batch", str(model.sequences // setup.ranks), *options, *more]
    if setup.ranks == 1:
        return [(arguments, environment)]
    commands, port = [], str(free_port())
    for rank in range(setup.ranks):
        job = {"RANK": str(rank), "WORLD_SIZE": str(setup.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if environment.get("OMP_PROC_BIND"):  # own cores for each rank
            first = rank * setup.threads
            job["OMP_PLACES"] = f"{{{first}}}:{setup.threads}"
        commands.append((arguments, {**environment, **job, "GLOO_SOCKET_IFNAME": "lo"}))
    return commands


def describe(chosen):
    return ", ".join(choice.name for choice in chosen.values())


def find_fastest(choices, time_of, say):
    """Tries the choices of one kind after the other, with the best choices of earlier kinds. time_of(chosen, best):
    milliseconds per step, with those of the fastest so far or None; JobError if it cannot run. Returns (chosen or None if
    nothing runs, [(description, milliseconds or reason)])."""
    chosen = {kind: offered[0] for kind, offered in choices.items()}
    tried, best = [], None

    def attempt(candidate):
        try:
            result = time_of(candidate, best)
        except JobError as error:
            result = str(error)
        tried.append((describe(candidate), result))
        say(f"  PyTorch: {describe(candidate)}: {f'{result:.1f} ms' if isinstance(result, float) else result}")
        return result if isinstance(result, float) else None

    best = attempt(chosen)
    for kind, offered in choices.items():
        for choice in offered[1:]:
            candidate = {**chosen, kind: choice}
            result = attempt(candidate)
            if result is not None and (best is None or result < best):
                best, chosen = result, candidate
    return (chosen if best is not None else None), tried


def patience(chosen, best_ms, steps, limit_s):
    """Seconds to wait for a trial that runs so many steps before it is ready. Compilation has the full limit."""
    if best_ms is None or chosen["compile"].name != "eager":
        return limit_s
    return min(limit_s, START_SECONDS + HOPELESS * steps * 1e-3 * best_ms)


def time_variant(commands, log, rounds, limit_s):
    """Milliseconds per step: the fastest of some rounds."""
    with Job("PyTorch", commands, log, limit_s) as job:
        job.start()
        times = [job.round() for _ in range(rounds)]
        job.end()
    return min(times)
