"""Runs of the program for the measurements in this folder."""

import json
import math
import os
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bazel-bin/tools/mantissa"

# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class RunError(Exception):
    """A failed run; the text has the command and the end of its output."""


def train(program, config, ranks, settings, folder):
    """Trains into `folder` and returns the records of metrics.jsonl."""
    launcher = ["mpirun", "-np", str(ranks), "--oversubscribe"] if ranks > 1 else []
    if ranks > 1 and os.geteuid() == 0:
        launcher.append("--allow-run-as-root")
    command = launcher + [str(program), "train", str(config), f"train.run_dir={folder}", *settings]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise RunError(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stdout[-2000:]}")
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def steps(records):
    return [record for record in records if record.get("event") == "step"]


def interval(values):
    """Half of the 95 % confidence interval of the mean."""
    return T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
