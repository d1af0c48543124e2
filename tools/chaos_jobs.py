"""Starts of the program for tools/chaos, and what they leave."""
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

STEPS, INTERVAL = 120, 2
CONFIG = """
model: {layers: 1, width: 32, heads: 2, context: 16, vocab: 256}
data: {train: [DATA]}
train: {steps: %d, global_batch: 4, micro_batch: 1, log_interval: 1, eval_interval: 0, eval_batches: 1, sample_tokens: 0, measure_peak: false}
optimizer: {lr: 3e-3, warmup_steps: 5}
checkpoint: {interval: %d}
device: cpu
""" % (STEPS, INTERVAL)

# Left by OpenMPI, or only counted.
SEGMENTS = "OpenMPI: segments of shared memory, of jobs that were killed"
SESSIONS = "OpenMPI: session folders, of jobs that were killed"
HANGING = "OpenMPI: jobs without a rank whose mpirun did not end"
TORN = "saves that a kill tore, which the next start removed"


class Lost(Exception):
    pass


class Bench:
    """A folder with a configuration, and everything that starts the program in it."""

    def __init__(self, program, folder, rows):
        self.program, self.folder, self.rows = program, folder, rows
        self.data = folder / "text"
        words = "the loss scale of a step is one for all ranks and every shard sums its part in order".split()
        self.data.write_text(" ".join(words[(i * i * 7 + i // 3) % len(words)] + ".\n" * (i % 13 == 0) for i in range(4000)))
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIG.replace("DATA", str(self.data)))
        self.shared = pathlib.Path(tempfile.mkdtemp(prefix="chaos.", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.sessions = pathlib.Path(tempfile.mkdtemp(prefix="chaos.", dir="/tmp"))  # a short path: it holds Unix sockets
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                            "OMPI_MCA_pml": "ob1"}
        self.starts, self.newest = itertools.count(), {}
        self.reference, self.seconds = {}, {}

    def close(self):
        for job in self.newest.values():
            if job.process.poll() is None:  # where somebody interrupts
                for pid in [job.process.pid, *job.ranks().values()]:
                    kill(pid)
        shutil.rmtree(self.shared, ignore_errors=True)
        shutil.rmtree(self.sessions, ignore_errors=True)

    def start(self, run, ranks, settings=()):
        run.mkdir(parents=True, exist_ok=True)
        command = [self.program, "train", self.config, f"train.run_dir={run}", *settings]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] + command
        number = str(next(self.starts))
        folders = [self.shared / number, self.sessions / number]  # of this start, so that its leftovers can be counted
        for folder in folders:
            folder.mkdir()
        environment = {**self.environment, "OMPI_MCA_btl_vader_backing_directory": str(folders[0]),
                       "OMPI_MCA_orte_tmpdir_base": str(folders[1])}
        self.newest[run] = Job(command, environment, run, folders)
        return self.newest[run]

    def train(self, run, ranks, settings=()):
        return self.start(run, ranks, settings).wait(self.rows.left)

    def expect_same(self, run, ranks):
        """Starts the run until it is done, and compares the bits of its end."""
        job = self.train(run, ranks)
        if job.code != 0:
            if job.code == 4:
                self.rows.left["checkpoints that cannot be loaded"] += 1
            raise Lost(f"the start after the fault ended with {job.code}: {job.last_lines()}")
        self.compare(run, ranks)
        self.rows.left["temporary folders of checkpoints"] += sum("." in path.name for path in (run / "checkpoints").iterdir())

    def compare(self, run, ranks):
        if hashes(run) != self.reference[ranks]:
            raise Lost(f"the last checkpoint of {run} differs from that of a run without a fault")

    def prepare(self):
        for ranks in (1, 2):
            run = self.folder / f"reference{ranks}"
            begin = time.monotonic()
            job = self.train(run, ranks)
            if job.code != 0:
                raise SystemExit(f"chaos: a run without any fault failed with {job.code}: {job.last_lines()}")
            self.reference[ranks] = hashes(run)
            self.seconds[ranks] = time.monotonic() - begin


class Job:
    """A start of the program."""

    def __init__(self, command, environment, run, folders):
        self.run, self.log, self.folders = run, run.parent / f"{run.name}.log", folders
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([str(part) for part in command], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        self.code = None

    def wait(self, left, seconds=60):
        """Waits for the end; `left` counts a mpirun that does not end although its ranks have."""
        try:
            self.code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            ranks = self.ranks()
            for pid in [self.process.pid, *ranks.values()]:
                kill(pid)
            self.process.wait()
            if ranks:
                raise Lost(f"ranks {sorted(ranks)} hung for {seconds} s: {self.last_lines()}") from None
            left[HANGING] += 1
            self.code = -signal.SIGKILL
        if self.code < 0:
            self.code = 128 - self.code
        return self

    def ranks(self):
        """Processes by rank."""
        return {rank_of(pid): pid for pid in processes_of(self.run) if "mpirun" not in name_of(pid)}

    def output(self):
        return self.log.read_text(errors="replace")

    def last_lines(self):
        return " | ".join(line for line in self.output().splitlines()[-6:] if line.strip())[-500:]


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


def name_of(pid):
    return read(f"/proc/{pid}/comm").decode(errors="replace")


def processes_of(run):
    """Processes that name the run's folder on their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and f"train.run_dir={run}".encode() in read(f"/proc/{entry}/cmdline").split(b"\0"):
            found.append(int(entry))
    return found


def rank_of(pid):
    match = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", read(f"/proc/{pid}/environ"))
    return int(match.group(1)) if match else 0


def checkpoints(run):
    return sorted(path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name))


def hashes(run):
    """Names and hashes of the files of the last checkpoint, as its manifest has them."""
    manifest = json.loads((checkpoints(run)[-1] / "manifest.json").read_text())["manifest"]
    return [manifest["step"]] + sorted((file["name"], file["xxh3_128"]) for file in manifest["files"])


def count_left(bench, job):
    """Waits for all processes of an ended job, then counts what it left."""
    end = time.monotonic() + 20
    while (left := processes_of(job.run)) and time.monotonic() < end:
        time.sleep(0.02)
    bench.rows.left["orphaned processes"] += sum(kill(pid) for pid in left)
    shared, sessions = job.folders
    bench.rows.left[SEGMENTS] += len(list(shared.iterdir()))
    bench.rows.left[SESSIONS] += len(list(sessions.iterdir()))
    for folder in job.folders:
        shutil.rmtree(folder)


def is_saving(run):
    try:
        return any(name.endswith(".partial") for name in os.listdir(run / "checkpoints"))
    except OSError:
        return False
