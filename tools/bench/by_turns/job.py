"""A program that runs rounds of work on request and uses no CPU in between.

Protocol, on the standard streams of each started process: the process prepares and prints "ready: yes". For each line
"round" it runs a round and prints "ready: yes" again; the first process prints "step_ms: NUMBER" before. At "end" it ends;
the first process prints its results before, in lines "key: values". Between rounds all its processes are stopped
(SIGSTOP), so that waiting threads of OpenMP and MPI cannot spin and the other program has the machine.
"""

import os
import queue
import signal
import subprocess
import threading
import time

LAUNCHERS = {"mpirun", "orterun", "prterun", "orted", "prted"}  # not counted: their children do the work
TICKS = os.sysconf("SC_CLK_TCK")


class JobError(Exception):
    """A program that cannot be measured; the text gives the reason."""


class Process:
    """Facts from /proc about a process; OSError if it is gone."""

    def __init__(self, pid):
        self.pid = pid
        with open(f"/proc/{pid}/stat") as file:
            before, after = file.read().rsplit(")", 1)
        fields = after.split()
        self.name, self.session = before.split("(", 1)[1], int(fields[3])
        self.cpu_seconds = (int(fields[11]) + int(fields[12])) / TICKS

    def peak_bytes(self):
        """Peak of the resident memory."""
        with open(f"/proc/{self.pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
        return 0  # a zombie


class Job:
    def __init__(self, name, commands, log, limit_s=600):
        """commands: (arguments, added environment) for each process. log: file for standard error. limit_s: time limit of
        a start or a round."""
        self.name, self.commands, self.log, self.limit_s = name, commands, log, limit_s
        self.processes, self.lines = [], []  # lines: unread output of each process, None at its end
        self.peak_bytes = 0
        self.idle_cpu_seconds = 0.0  # used between rounds; should be 0
        self._cpu_when_paused = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Starts the processes and waits until they are ready for the first round."""
        with open(self.log, "w") as log:
            for arguments, environment in self.commands:
                process = subprocess.Popen(
                    arguments,
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
                self.processes.append(process)
                self.lines.append(queue.Queue())
                threading.Thread(target=self._read, args=(process.stdout, self.lines[-1]), daemon=True).start()
        self._until_ready()
        self._pause()

    def round(self):
        """Runs a round. Returns milliseconds per step."""
        self._resume()
        self._tell("round")
        values = self._until_ready()
        self._pause()
        if "step_ms" not in values:
            raise JobError(f"{self.name}: a round printed no step_ms")
        return float(values["step_ms"])

    def end(self):
        """Ends the program. Returns its last output by key."""
        self._resume()
        self._tell("end")
        values, deadline = {}, time.monotonic() + self.limit_s
        while (line := self._next_line(self.lines[0], deadline)) is not None:
            self._keep(line, values)
        for process in self.processes:
            if self._wait(process, deadline) != 0:
                raise JobError(self._reason())
        return values

    def kill(self):
        self._signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    try:
                        stream.close()
                    except OSError:  # the last write did not arrive
                        pass

    def _members(self):
        """All processes of the started sessions."""
        sessions = {process.pid for process in self.processes}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    process = Process(int(entry))
                except OSError:
                    continue
                if process.session in sessions:
                    yield process

    def _signal(self, number):
        for process in self._members():
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                pass

    def _pause(self):
        self._signal(signal.SIGSTOP)
        members = list(self._members())
        self.peak_bytes = max(self.peak_bytes, sum(p.peak_bytes() for p in members if p.name not in LAUNCHERS))
        self._cpu_when_paused = sum(process.cpu_seconds for process in members)

    def _resume(self):
        if self._cpu_when_paused is not None:
            self.idle_cpu_seconds += sum(process.cpu_seconds for process in self._members()) - self._cpu_when_paused
            self._cpu_when_paused = None
        self._signal(signal.SIGCONT)

    def _tell(self, line):
        for process in self.processes:
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except OSError:
                raise JobError(self._reason()) from None

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.put(line)
        lines.put(None)

    def _next_line(self, lines, deadline):
        """None at the end of the output."""
        try:
            return lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise JobError(f"{self.name}: not done after {self.limit_s} s") from None

    def _wait(self, process, deadline):
        try:
            return process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise JobError(f"{self.name}: has not ended after {self.limit_s} s") from None

    @staticmethod
    def _keep(line, values):
        key, separator, text = line.rstrip("\n").partition(": ")
        if separator:
            values[key] = text

    def _until_ready(self):
        """Waits until all processes are ready. Returns the output of the first one by key."""
        deadline = time.monotonic() + self.limit_s
        printed = []
        for lines in self.lines:
            printed.append({})
            while "ready" not in printed[-1]:
                line = self._next_line(lines, deadline)
                if line is None:
                    raise JobError(self._reason())
                self._keep(line, printed[-1])
        return printed[0]

    def _reason(self):
        """The last line of its log, in which programs state why they end."""
        with open(self.log, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        own = [line for line in lines if line.startswith(("step:", "gpt2_torch:"))]  # not those of mpirun
        return f"{self.name}: {(own or lines or ['ended and said nothing'])[-1]}"
