"""Speed of llm.c's CPU program: cited, or timed if the program is given."""

import os
import re
import statistics
import subprocess

from by_turns.job import JobError

# Seconds per step of GPT-2 124M, 4 x 64 tokens, 2 threads, measured once on another machine of this kind (2 cores Zen 4,
# AVX512_BF16). With another BLAS it needs 1.4 s.
CITED_SECONDS = 4.2
STEP = re.compile(r"^step \d+: .*took ([0-9.]+) ms")
TIMED_STEPS = 8  # after the first


def compare_with_cited(seconds):
    return (
        f"llm.c's CPU program (fp32): {CITED_SECONDS} s a step, **cited** from a run on another machine of this kind (2 cores Zen 4, "
        f"2 threads), not measured here: by that, ours is {CITED_SECONDS / seconds:.2f} times as fast."
    )


def compare_with_timed(seconds, timed):
    return f"llm.c's CPU program, timed after the rounds of this run: {timed:.3f} s a step; ours is {timed / seconds:.2f} times as fast."


def time_program(path, threads, limit_s):
    """Median seconds per step of train_gpt2, run in its own folder, which has its weights and data."""
    path = os.path.realpath(path)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = ["timeout", str(limit_s), path]
    times = []
    try:
        process = subprocess.Popen(
            command, cwd=os.path.dirname(path), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError as error:
        raise JobError(f"--llmc: {error}") from None
    with process:
        for line in process.stdout:
            match = STEP.match(line)
            if match:
                times.append(1e-3 * float(match.group(1)))
            if len(times) > TIMED_STEPS:
                break
        process.terminate()
    if len(times) <= TIMED_STEPS:
        raise JobError(f"--llmc: {path}: printed {len(times)} steps within {limit_s} s, expected more than {TIMED_STEPS}")
    return statistics.median(times[1:])
