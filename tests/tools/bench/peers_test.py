"""tools/bench/peers without PyTorch: the protocol of programs that take turns, the figures, the search, whole runs."""

import math
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path.cwd()
sys.path.insert(0, str(ROOT / "tools/bench"))
from by_turns import figures, llmc, report, torch_variants  # noqa: E402
from by_turns.job import Job, JobError  # noqa: E402
from by_turns.programs import DTYPES, LLMC, MODELS, SETUPS, mantissa_commands  # noqa: E402
from by_turns.row import Measured, Row, judge, take_turns  # noqa: E402

SCRATCH = Path(os.environ["TEST_TMPDIR"])
FAKE = str(ROOT / "tests/tools/bench/fake_paced.py")


def job(*arguments, limit_s=20, processes=1, environment=None):
    commands = [([sys.executable, FAKE, *arguments], environment or {})] * processes
    return Job("fake", commands, str(SCRATCH / "log"), limit_s)


class JobTest(unittest.TestCase):
    def test_runs_rounds_and_returns_what_was_printed_last(self):
        with job("--ms", "10,30,20") as fake:
            fake.start()
            self.assertEqual([fake.round() for _ in range(3)], [10.0, 30.0, 20.0])
            self.assertEqual(fake.end()["losses"], "3 2 1")

    def test_takes_nothing_between_rounds_even_if_it_spins(self):
        with job("--spin") as fake:
            fake.start()
            time.sleep(0.5)
            fake.round()
            self.assertLess(fake.idle_cpu_seconds, 0.1)

    def test_counts_the_memory_of_all_processes(self):
        with job("--mib", "64") as one, job("--mib", "64", processes=2) as two:
            one.start()
            two.start()
            self.assertGreater(one.peak_bytes, 64 << 20)
            self.assertGreater(two.peak_bytes, 1.8 * one.peak_bytes)

    def test_counts_what_a_launcher_starts_but_not_the_launcher(self):
        launcher = SCRATCH / "mpirun"
        launcher.write_text('#!/bin/bash\n"$@"\n')
        launcher.chmod(0o755)
        with job("--mib", "64") as alone:
            alone.start()
            with Job("launched", [([str(launcher), *alone.commands[0][0]], {})], str(SCRATCH / "log2")) as launched:
                launched.start()
                self.assertAlmostEqual(launched.peak_bytes / alone.peak_bytes, 1.0, delta=0.03)
                self.assertEqual(launched.round(), 10.0)
                launched.end()

    def test_tells_why_a_program_ended(self):
        with job("--fail", "gpt2_torch: no such thing") as fake, self.assertRaisesRegex(JobError, "fake: gpt2_torch: no such"):
            fake.start()

    def test_fails_if_another_of_its_processes_does(self):
        with job("--status-of-rank-1", "3", processes=1) as fake:
            fake.commands = [(fake.commands[0][0], {"RANK": str(rank)}) for rank in range(2)]
            fake.start()
            with self.assertRaises(JobError):
                fake.end()

    def test_gives_up_after_the_limit(self):
        with job("--hang", limit_s=1) as fake, self.assertRaisesRegex(JobError, "not done after 1 s"):
            fake.start()

    def test_leaves_no_process(self):
        with job(processes=2) as fake:
            fake.start()
            pids = [process.pid for process in fake.processes]
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))


class FiguresTest(unittest.TestCase):
    def test_spread(self):
        self.assertEqual(figures.spread([30.0, 10.0, 20.0, 40.0], 1), "25.0 (10.0 – 40.0)")

    def test_ratios_are_taken_round_by_round(self):
        self.assertEqual(figures.ratios([30.0, 30.0], [10.0, 20.0]), [3.0, 1.5])
        with self.assertRaises(ValueError):
            figures.ratios([1.0], [1.0, 2.0])

    def test_rates_and_shares_of_the_highest_peak(self):
        self.assertEqual(figures.rates(2e9, [10.0, 20.0]), [200.0, 100.0])
        shares = figures.shares(2e9, [10.0, 20.0], [100e9, 400e9])
        for got, expected in zip(shares, (50.0, 25.0)):
            self.assertAlmostEqual(got, expected)

    def test_largest_difference_is_of_the_first_steps(self):
        self.assertEqual(figures.largest_difference([5.0, 4.0, 9.0], [5.5, 3.0, 1.0], 2), 1.0)
        with self.assertRaises(ValueError):
            figures.largest_difference([5.0], [5.0, 4.0], 2)
        with self.assertRaises(ValueError):
            figures.largest_difference([math.nan], [5.0], 1)

    def test_loss_bound_follows_the_format(self):
        tiny = MODELS["tiny"]
        # sqrt(2) * sqrt(13 * 6 + 4) * 2^-8 * ln 256 * sqrt(2 / 2048)
        self.assertAlmostEqual(figures.loss_bound(tiny, "bf16"), 0.008669, places=5)
        self.assertAlmostEqual(figures.loss_bound(tiny, "bf16") / figures.loss_bound(tiny, "fp16"), 8.0)
        self.assertLess(figures.loss_bound(tiny, "fp32"), 0.02 * figures.loss_bound(tiny, "bf16"))


class ProgramsTest(unittest.TestCase):
    def test_work_of_a_step(self):
        self.assertEqual(MODELS["tiny"].flops_per_step(), 146163105792.0)
        self.assertAlmostEqual(MODELS["124m"].flops_per_step() * 1e-9, 394.1, places=1)
        self.assertEqual(LLMC.tokens, 256)

    def test_ranks_share_the_sequences(self):
        ((alone, _),) = mantissa_commands("step", MODELS["tiny"], "fp32", SETUPS["2t"])
        ((ranks, environment),) = mantissa_commands("step", MODELS["tiny"], "fp32", SETUPS["2r"])
        self.assertEqual(alone[alone.index("--sequences") + 1], "8")
        self.assertEqual(ranks[ranks.index("--sequences") + 1], "4")
        self.assertEqual(ranks[:3], ["mpirun", "-np", "2"])
        self.assertIn("comm.wire_dtype=fp32", ranks)
        self.assertEqual(environment["OMP_NUM_THREADS"], "1")


def variants(dtype="fp32", setup="2t", libraries=None, name="PyTorch 2.9", search="full"):
    return torch_variants.kinds(dtype, SETUPS[setup], libraries or {}, name, "/python", search)


class TorchVariantsTest(unittest.TestCase):
    def test_pytorch_1_gets_what_it_has(self):
        old = variants(name="Debian's PyTorch 1.13.1")
        self.assertEqual([choice.name for choice in old["compile"]], ["eager"])
        self.assertEqual([choice.name for choice in old["AdamW"]], ["AdamW foreach", "AdamW single"])
        self.assertEqual([choice.name for choice in old["attention"]], ["attention of products"])

    def test_libraries_that_are_not_there_are_not_tried(self):
        self.assertEqual(len(variants(libraries={"OpenBLAS (OpenMP)": None, "jemalloc": None})["BLAS"]), 1)

    def test_commands(self):
        libraries = {"OpenBLAS (OpenMP)": "/blas.so", "tcmalloc": "/tc.so"}
        chosen = {kind: offered[0] for kind, offered in variants("bf16", "2r", libraries).items()}
        chosen["BLAS"] = variants("bf16", "2r", libraries)["BLAS"][1]
        chosen["malloc"] = variants("bf16", "2r", libraries)["malloc"][-1]
        commands = torch_variants.torch_commands("/start", MODELS["tiny"], "bf16", SETUPS["2r"], chosen, "--steps", "1")
        self.assertEqual(len(commands), 2)
        for rank, (arguments, environment) in enumerate(commands):
            self.assertEqual(arguments[0], "/python")
            self.assertEqual(arguments[arguments.index("--micro-batch") + 1], "4")
            self.assertEqual(environment["RANK"], str(rank))
            self.assertEqual(sorted(environment["LD_PRELOAD"].split(":")), ["/blas.so", "/tc.so"])
            self.assertEqual(environment["MASTER_PORT"], commands[0][1]["MASTER_PORT"])
            self.assertNotIn("PYTHON", environment)

    def test_search_keeps_the_fastest_of_each_kind(self):
        costs = {"glibc tuned, huge pages": -10.0, "AdamW foreach": -5.0, "attention of products": 7.0}

        offered = []

        def time_of(chosen, best):
            offered.append(best)
            if chosen["compile"].name == "torch.compile":
                raise JobError("PyTorch: no compiler")
            return 100.0 + sum(costs.get(choice.name, 0.0) for choice in chosen.values())

        chosen, tried = torch_variants.find_fastest(variants(search="short"), time_of, lambda text: None)
        self.assertEqual(chosen["malloc"].name, "glibc tuned, huge pages")
        self.assertEqual(chosen["AdamW"].name, "AdamW foreach")
        self.assertEqual(chosen["attention"].name, "SDPA")
        self.assertEqual(chosen["compile"].name, "eager")
        self.assertEqual(tried[0][1], 100.0)
        self.assertEqual(tried[-1][1], "PyTorch: no compiler")
        self.assertEqual(offered[:3], [None, 100.0, 90.0])
        self.assertEqual(min(offered[1:]), offered[-1])

    def test_search_says_if_nothing_runs(self):
        def time_of(chosen, best):
            self.assertIsNone(best)
            raise JobError("PyTorch: broken")

        self.assertIsNone(torch_variants.find_fastest(variants(), time_of, lambda text: None)[0])

    def test_hopeless_trials_are_given_up(self):
        eager = {kind: offered[0] for kind, offered in variants().items()}
        compiled = {**eager, "compile": variants()["compile"][1]}
        self.assertEqual(torch_variants.patience(eager, None, 2, 900), 900)
        self.assertEqual(torch_variants.patience(eager, 1000.0, 2, 900), 70)
        self.assertEqual(torch_variants.patience(eager, 1e6, 2, 900), 900)
        self.assertEqual(torch_variants.patience(compiled, 1000.0, 2, 900), 900)


def fake_row(ours, theirs):
    """A row of two fakes, measured in three rounds; ours and theirs: arguments of them."""
    row = Row(MODELS["test"], "fp32", SETUPS["2t"], [Measured("mantissa"), Measured("PyTorch")])
    work = f"{MODELS['test'].flops_per_step()}"
    commands = {
        name: [([sys.executable, FAKE, "--flops", work, *arguments], {})]
        for name, arguments in (("mantissa", ours), ("PyTorch", theirs))
    }
    peaks = iter((1e12, 2e12, 1e12))
    take_turns(row, commands, lambda: next(peaks), str(SCRATCH), 3, 20, lambda text: None)
    judge(row, 3)
    return row


class ReportTest(unittest.TestCase):
    def test_command_line_leaves_out_places(self):
        given = ["--models", "tiny", "--venv", "/a", "--output=/b/c.md", "--quick", "--programs", "d", "--rounds", "5"]
        self.assertEqual(report.command_line(given), "tools/bench/peers --models tiny --quick --rounds 5")
        self.assertEqual(report.command_line([]), "tools/bench/peers")

    def test_rows_of_mantissa_alone(self):
        def row(dtype, setup, times):
            programs = [Measured(name, step_ms=step_ms) for name, step_ms in times.items()]
            return Row(MODELS["test"], dtype, SETUPS[setup], programs)

        ranks = {"2 ranks, sharded": [10.0, 10.0], "2 ranks, replicated": [11.0, 11.0], "2 threads": [9.0, 9.0]}
        lines = list(report.alone_lines([row("bf16", "2r", ranks), row("fp16", "2t", {"fp16": [11.0, 12.0], "fp32": [10.0, 10.0]})]))
        self.assertRegex(lines[0], r"^- test bf16, 2 ranks x 1 thread: 90\.0 .* % of the speed of 2 threads; 110\.0 .* replicated state$")
        self.assertRegex(lines[1], r"^- test fp16, 2 threads: 1\.150 \(1\.100 – 1\.200\) of the time of fp32$")
        self.assertEqual(list(report.alone_lines([row("fp16", "2t", {"fp16": [], "fp32": [10.0]})])), [])


class RowTest(unittest.TestCase):
    def test_table(self):
        row = fake_row(["--ms", "10,30,20"], ["--ms", "30,33,40"])
        self.assertEqual(row.problems, [])
        lines = report.table([row]).splitlines()
        tokens = MODELS["test"].tokens
        self.assertRegex(lines[2], r"^\| test fp32, 2 threads; peak 1000\.0 \(1000\.0 – 2000\.0\) GFLOP/s \| mantissa \| 20\.0 \(10\.0 – 30\.0\) \| ")
        self.assertIn(f"| {1e3 * tokens / 20:.0f} |", lines[2])
        self.assertRegex(lines[3], r"\| PyTorch \| 33\.0 \(30\.0 – 40\.0\) .*\| 2\.000 \(1\.100 – 3\.000\) \|$")

    def test_other_losses_do_not_count(self):
        row = fake_row([], ["--losses", "3 2 1.1"])
        self.assertEqual(len(row.problems), 1)
        self.assertRegex(row.problems[0], r"^losses differ by 0\.1 nats, rounding explains .*: not the same work$")

    def test_other_work_does_not_count(self):
        row = fake_row([], ["--flops", "5"])
        self.assertRegex(row.problems[0], r"^PyTorch: 5\.0 FLOP a step, expected ")

    def test_a_program_that_fails_leaves_the_other(self):
        row = fake_row(["--ms", "10,30,20"], ["--fail-at-round", "2"])
        self.assertEqual(row.programs[0].step_ms, [10.0, 30.0, 20.0])
        self.assertEqual(row.programs[1].step_ms, [])
        self.assertEqual(row.problems, ["PyTorch: gpt2_torch: failed | at round 2"])
        self.assertIn("| PyTorch | not measured: PyTorch: gpt2_torch: failed / at round 2 |", report.table([row]))

    def test_a_row_of_which_nothing_runs(self):
        row = fake_row(["--fail", "step: no"], ["--fail", "gpt2_torch: no"])
        self.assertEqual(row.problems, ["mantissa: step: no", "PyTorch: gpt2_torch: no"])
        self.assertIn("| test fp32, 2 threads | mantissa | not measured: mantissa: step: no |", report.table([row]))


class LlmcTest(unittest.TestCase):
    def program(self, lines):
        path = SCRATCH / "train_gpt2"
        path.write_text("#!/bin/bash\necho 'val loss 5.3'\n" + "".join(f"echo '{line}'\n" for line in lines))
        path.chmod(0o755)
        return path

    def test_takes_the_median_without_the_first_step(self):
        steps = [f"step {n}: train loss 4.{n} (took {9000 if n == 0 else 4000 + n}.0 ms)" for n in range(9)]
        self.assertAlmostEqual(llmc.time_program(self.program(steps), 2, 20), 4.0045)
        self.assertIn("2.00 times as fast", llmc.compare_with_timed(2.0, 4.0))

    def test_says_if_it_does_not_train(self):
        with self.assertRaisesRegex(JobError, "printed 0 steps"):
            llmc.time_program(self.program([]), 2, 20)

    def test_the_cited_figure_is_called_so(self):
        self.assertRegex(llmc.compare_with_cited(0.7), r"4\.2 s a step, \*\*cited\*\*.* not measured here: .* 6\.00 times")


class CommandLineTest(unittest.TestCase):
    """Whole runs of the tool, with the program itself."""

    def peers(self, *arguments, extras=("--no-extras",)):
        command = [sys.executable, "tools/bench/peers", "--programs", "tools/bench", *extras, *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_mantissa_alone(self):
        output = SCRATCH / "results/table.md"
        arguments = ("--no-torch", "--models", "test", "--setups", "1t,2r", "--rounds", "2", "--steps", "2")
        done = self.peers(*arguments, "--dtypes", ",".join(DTYPES), "--output", str(output))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, output.read_text())
        number = r"\d+\.\d+"
        spread = rf"{number} \({number} – {number}\)"
        for dtype in DTYPES:
            for setup in ("1 thread", "2 ranks x 1 thread"):
                title = rf"test {dtype}, {setup}; peak {spread} GFLOP/s"
                self.assertRegex(
                    done.stdout, rf"(?m)^\| {title} \| mantissa \| {spread} \| \d+ \| {number} \| {spread} \| {number} \|  \|$"
                )
        self.assertNotIn("| PyTorch |", done.stdout)

    def test_no_pytorch(self):
        done = self.peers("--python", "/bin/false", "--models", "test")
        self.assertEqual(done.returncode, 2)
        self.assertIn("peers: torch not importable by /bin/false: give --venv DIR, or --no-torch", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_no_programs(self):
        done = self.peers("--no-torch", "--programs", str(SCRATCH))
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no program step; build //tools/bench:step", done.stderr)

    def test_command_lines_that_are_wrong(self):
        for arguments, message in (
            (("--models", "7b"), "none is named '7b'; there are: tiny, 124m, test"),
            (("--rounds", "0"), "expected a number above 0, got '0'"),
        ):
            done = self.peers(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
