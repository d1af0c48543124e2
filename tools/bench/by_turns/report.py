"""Rows as Markdown tables."""

import statistics

from by_turns import figures

HEADER = (
    "| | program | ms a step | tokens/s | GFLOP/s | % of peak | peak memory, GiB | ours / its speed |\n"
    "|---|---|---|---|---|---|---|---|"
)


# Options that name places of this machine; others cannot repeat them.
PLACES = ("--output", "--venv", "--python", "--programs", "--llmc")


def command_line(arguments):
    """The command that repeats the measurement elsewhere."""
    kept, skip = ["tools/bench/peers"], False
    for argument in arguments:
        if skip or argument.split("=")[0] in PLACES:
            skip = not skip and "=" not in argument
        else:
            kept.append(argument)
    return " ".join(kept)


def clean(text):
    """Text that can stand in a cell."""
    return text.replace("|", "/")


def program_lines(row):
    ours = row.programs[0]
    for index, program in enumerate(row.programs):
        title = row.title if index == 0 else ""
        if title and row.peaks:
            title += f"; peak {figures.spread([1e-9 * peak for peak in row.peaks], 1)} GFLOP/s"
        if program.problem:
            yield f"| {title} | {program.name} | not measured: {clean(program.problem)} | | | | | |"
            continue
        flops = row.model.flops_per_step()
        median = statistics.median(program.step_ms)
        comparable = index > 0 and len(ours.step_ms) == len(program.step_ms)
        cells = [
            title,
            program.name,
            figures.spread(program.step_ms, 1),
            f"{1e3 * row.model.tokens / median:.0f}",
            f"{statistics.median(figures.rates(flops, program.step_ms)):.1f}",
            figures.spread(figures.shares(flops, program.step_ms, row.peaks), 1),
            f"{program.peak_bytes / 2**30:.2f}",
            figures.spread(figures.ratios(program.step_ms, ours.step_ms), 3) if comparable else "",
        ]
        yield f"| {' | '.join(cells)} |"


def table(rows):
    return "\n".join([HEADER, *(line for row in rows for line in program_lines(row))])


def loss_lines(rows):
    for row in rows:
        if row.difference is not None:
            bound = figures.loss_bound(row.model, row.dtype)
            yield f"- {row.title}: {row.difference:.2g} of at most {bound:.2g}"


def torch_lines(rows):
    for row in rows:
        if not row.tried:
            continue
        yield f"\n**{row.title}**: {row.chosen or 'nothing ran'}\n"
        for description, result in row.tried:
            yield f"- {f'{result:.1f} ms' if isinstance(result, float) else clean(result)}: {description}"


def alone_lines(rows):
    """Two ranks relative to two threads, sharded to replicated state, and fp16 to fp32."""
    for row in rows:
        times = {program.name: program.step_ms for program in row.programs}
        if not all(times.values()):
            continue
        if "fp16" in times:
            ratios = figures.ratios(times["fp16"], times["fp32"])
            yield f"- {row.title}: {figures.spread(ratios, 3)} of the time of fp32"
        else:
            sharded = times["2 ranks, sharded"]
            yield (
                f"- {row.title}: {figures.spread([100 * r for r in figures.ratios(times['2 threads'], sharded)], 1)} % of the speed of 2 "
                f"threads; {figures.spread([100 * r for r in figures.ratios(times['2 ranks, replicated'], sharded)], 1)} % of that with "
                "replicated state"
            )


def whole(heading, rows, alone, llmc_text, instructions, rounds, compared_steps):
    """The whole report."""
    every = rows + alone
    idle = max((program.idle_cpu_seconds for row in every for program in row.programs), default=0.0)
    parts = [
        *heading,
        *(f"- peak of {dtype}: {instruction}, on registers" for dtype, instruction in instructions.items()),
        "",
        f"Medians (min – max) over {rounds} rounds. A step is everything: batch, forward, backward, reduction, clipping by the norm, AdamW.",
        "GFLOP count 6 a multiplied parameter and token + 12 L C T a token, the causal mask not discounted. The peak is measured in every",
        "round, and the highest counts. Ratios are taken round by round. Peak memory is VmHWM, summed over the ranks; pages that ranks",
        "share count in each.",
        f"While one program runs, the others are stopped; the most processor time that one took all the same: {idle:.2f} s.",
        "",
    ]
    if rows:
        parts += ["## Against PyTorch\n" if any(len(row.programs) > 1 for row in rows) else "## mantissa\n", table(rows), ""]
    if alone:
        parts += ["## Ranks, threads, shards, and fp16\n", table(alone), "", *alone_lines(alone), ""]
    if llmc_text:
        parts += ["## llm.c's measure\n", llmc_text, ""]
    if any(row.difference is not None for row in every):
        parts += [
            f"## Losses\n\nLargest difference of the first {compared_steps} losses between the programs of a row, in nats, and how far rounding",
            "alone may take them apart (`loss_bound` in `tools/bench/by_turns/figures.py` derives it):\n",
            *loss_lines(every),
            "",
        ]
    problems = [f"- {row.title}: {clean(problem)}" for row in every for problem in row.problems]
    if problems:
        parts += ["## What does not count\n", *problems, ""]
    if any(row.tried for row in rows):
        parts += [
            "## Settings of PyTorch that were tried\n\nFor one kind of setting after the other, with the best of those before; the fastest of three "
            "steps. The fastest settings took part in the rounds.",
            *torch_lines(rows),
        ]
    return "\n".join(parts).rstrip()
