"""A row of the tables: several programs with the same work, measured by turns."""

import subprocess
from dataclasses import dataclass, field

from by_turns import figures
from by_turns.job import Job, JobError


@dataclass
class Measured:
    """Results of one program."""

    name: str
    step_ms: list = field(default_factory=list)  # by round
    losses: list = field(default_factory=list)
    flops_per_step: float = 0.0
    peak_bytes: int = 0
    idle_cpu_seconds: float = 0.0
    problem: str = ""  # why it could not be measured


@dataclass
class Row:
    model: object
    dtype: str
    setup: object
    programs: list  # of Measured, ours first
    peaks: list = field(default_factory=list)  # FLOP/s of multiply-adds on registers, by round
    tried: list = field(default_factory=list)  # PyTorch's variants: (description, milliseconds or reason)
    chosen: str = ""
    problems: list = field(default_factory=list)  # why the row does not count
    difference: float = None  # largest difference of losses from the first program, nats

    @property
    def title(self):
        return f"{self.model.title} {self.dtype}, {self.setup.title}"


class PeakMeter:
    """Measures the peak with as many threads as a row uses."""

    def __init__(self, program, dtype, threads):
        self.command = [str(program), dtype, str(threads)]
        self.instruction = ""

    def __call__(self):
        done = subprocess.run(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise JobError(f"{' '.join(self.command)}: {done.stderr.strip()}")
        values = dict(line.split(": ", 1) for line in done.stdout.splitlines())
        self.instruction = values["instruction"]
        return float(values["fma_flops"])


def take_turns(row, commands, peak, work, rounds, limit_s, say):
    """Starts all programs, lets them run rounds in turn, and fills in the row. commands: {program: commands of its Job}. A
    program that fails takes no further part; the row has the reason."""
    jobs = {}
    programs = {program.name: program for program in row.programs}

    def give_up(name, error):
        programs[name].problem = str(error)
        programs[name].step_ms = []
        jobs.pop(name).kill()

    try:
        for index, (name, processes) in enumerate(commands.items()):
            say(f"{row.title}: starting {name}")
            jobs[name] = Job(name, processes, f"{work}/log.{index}", limit_s)
            try:
                jobs[name].start()
            except (JobError, OSError) as error:
                give_up(name, error)
        for round_index in range(rounds):
            if not jobs:
                break
            row.peaks.append(peak())
            for name in list(jobs):
                try:
                    programs[name].step_ms.append(jobs[name].round())
                except JobError as error:
                    give_up(name, error)
            times = ", ".join(f"{name} {programs[name].step_ms[-1]:.1f} ms" for name in jobs)
            say(f"{row.title}: round {round_index + 1} of {rounds}: {times}")
        for name in list(jobs):
            try:
                values = jobs[name].end()
                programs[name].losses = [float(text) for text in values["losses"].split()]
                programs[name].flops_per_step = float(values["flops_per_step"])
            except (JobError, KeyError, ValueError) as error:
                give_up(name, error if isinstance(error, JobError) else JobError(f"{name}: its output: {error}"))
                continue
            programs[name].peak_bytes = jobs[name].peak_bytes
            programs[name].idle_cpu_seconds = jobs[name].idle_cpu_seconds
    finally:
        for job in jobs.values():
            job.kill()


def judge(row, compared_steps):
    """Adds to row.problems what makes the programs incomparable: different work or losses."""
    expected = row.model.flops_per_step()
    first = row.programs[0]
    for program in row.programs:
        if program.problem:
            row.problems.append(program.problem)
        elif abs(program.flops_per_step / expected - 1.0) > 1e-6:  # six digits are printed
            row.problems.append(f"{program.name}: {program.flops_per_step} FLOP a step, expected {expected}")
    others = [program for program in row.programs[1:] if not program.problem]
    if first.problem or not others:
        return
    try:
        row.difference = max(figures.largest_difference(first.losses, p.losses, compared_steps) for p in others)
    except ValueError as error:
        row.problems.append(f"losses: {error}")
        return
    bound = figures.loss_bound(row.model, row.dtype)
    if row.difference > bound:
        row.problems.append(f"losses differ by {row.difference:.2g} nats, rounding explains {bound:.2g}: not the same work")
