"""Requirements of a run, and the description of the machine: programs, PyTorch, libraries, processor."""

import datetime
import glob
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.path.abspath(__file__)).parents[3]
PACKAGES = ("libopenblas0-openmp", "libopenblas0-pthread", "libjemalloc2", "libtcmalloc-minimal4")  # Debian's
LIBRARIES = {
    "OpenBLAS (OpenMP)": "openblas-openmp/libopenblas.so.0",
    "OpenBLAS (pthreads)": "openblas-pthread/libopenblas.so.0",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}
VERSION = "import torch; print(torch.__version__)"


class SettingError(Exception):
    """A requirement is missing; the text says what to do."""


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def output_of(*command):
    """Output of the command, or None if it cannot run or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def require_success(what, *command):
    try:
        status = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, cwd=ROOT).returncode
    except OSError as error:
        status = error
    if status != 0:
        raise SettingError(f"{what}: {' '.join(map(str, command))}: {status if isinstance(status, OSError) else 'failed'}")


def cache_folder():
    folder = os.environ.get("MANTISSA_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mantissa"
    return Path(folder).absolute()


def build_programs():
    """Builds step and fma_peak. Returns their folder."""
    say("building //tools/bench:step and //tools/bench:fma_peak")
    require_success("setting up", ROOT / "tools/setup")
    require_success("building", "bazel", "build", "-c", "opt", "//tools/bench:step", "//tools/bench:fma_peak")
    binaries = subprocess.run(
        ["bazel", "info", "-c", "opt", "bazel-bin"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout.strip()
    return Path(binaries) / "tools/bench"


def require_programs(folder):
    for name in ("step", "fma_peak"):
        if not os.access(folder / name, os.X_OK):
            raise SettingError(f"{folder}: there is no program {name}; build //tools/bench:{name}, or leave --programs out")


def make_venv(folder):
    """The Python of a virtual environment with the newest PyTorch of pip. Keeps an existing one."""
    python = folder / "bin/python"
    if not python.exists():
        say(f"making a virtual environment in {folder}")
        require_success("a virtual environment (Debian: apt-get install python3-venv)", sys.executable, "-m", "venv", folder)
    if output_of(str(python), "-c", VERSION) is None:
        say(f"installing the newest PyTorch into {folder}: some GB")
        require_success("PyTorch", python, "-m", "pip", "install", "--upgrade", "torch", "numpy", "setuptools")
    return str(python)


def torch_version(python):
    """Version of torch. SettingError if it cannot be imported."""
    version = output_of(python, "-c", VERSION)
    if version is None:
        raise SettingError(f"torch not importable by {python}: give --venv DIR, or --no-torch to measure mantissa alone")
    return version.splitlines()[-1]


def import_gib(python):
    """Memory of a process that only imports torch."""
    text = output_of(python, "-c", "import torch; print(open('/proc/self/status').read())") or ""
    return next((int(line.split()[1]) / 2**20 for line in text.splitlines() if line.startswith("VmHWM:")), math.nan)


def find_libraries(download):
    """Paths by name, `None` for missing ones. download: Debian packages may be downloaded and unpacked in the cache; nothing
    is installed."""
    unpacked = cache_folder() / "debian"
    folders = ["/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib", f"{unpacked}/usr/lib/*-linux-gnu"]

    def find():
        return {
            name: next((path for folder in folders for path in sorted(glob.glob(f"{folder}/{file}"))), None)
            for name, file in LIBRARIES.items()
        }

    found = find()
    if download and None in found.values() and shutil.which("apt-get") and shutil.which("dpkg"):
        unpacked.mkdir(parents=True, exist_ok=True)
        say(f"fetching {', '.join(PACKAGES)} into {unpacked}, for PyTorch to try")
        for package in PACKAGES:
            subprocess.run(["apt-get", "-qq", "download", package], cwd=unpacked, stdout=sys.stderr, stderr=subprocess.DEVNULL)
        for archive in sorted(unpacked.glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, unpacked], stdout=sys.stderr)
            archive.unlink()
        found = find()
    return found


def debian_python():
    """Debian's Python with Debian's PyTorch, which uses OpenBLAS. SettingError if it is not installed."""
    if output_of("/usr/bin/python3", "-c", VERSION) is None:
        raise SettingError("--debian-torch: /usr/bin/python3 has no torch: apt-get install python3-torch libopenblas0-pthread")
    return "/usr/bin/python3"


def describe_machine():
    cpu = "unknown processor"
    with open("/proc/cpuinfo") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    for key, value in lines.items():
        if key.strip() == "model name":
            cpu = value.strip()
    flags = next((value.split() for key, value in lines.items() if key.strip() == "flags"), [])
    notable = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16") if flag in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "") if hasattr(platform, "freedesktop_os_release") else ""
    return f"{len(os.sched_getaffinity(0))} cores {cpu} ({' '.join(notable)}), {memory:.0f} GiB, {release}, Linux {platform.release()}"


def describe_programs(given):
    """given: the programs were not built from this tree."""
    commit = output_of("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD") or "unknown"
    changed = " with uncommitted changes" if output_of("git", "-C", str(ROOT), "status", "--porcelain") else ""
    compiler = (output_of("g++", "-dumpfullversion") or "unknown").strip()
    mpi = (output_of("mpirun", "--version") or "no mpirun").splitlines()[0]
    source = "programs given by --programs, built elsewhere" if given else f"commit {commit}{changed}, GCC {compiler}"
    return f"mantissa: {source}, {mpi}"


def describe_load():
    return f"load of the machine at the start {os.getloadavg()[0]:.2f}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
