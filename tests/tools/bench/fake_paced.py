"""A program that runs rounds on demand, with given times, losses and faults."""

import argparse
import os
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--ms", default="10")
parser.add_argument("--losses", default="3 2 1")
parser.add_argument("--flops", default="1e9")
parser.add_argument("--mib", type=int, default=0, help="of memory")
parser.add_argument("--spin", action="store_true", help="a thread that is always busy")
parser.add_argument("--hang", action="store_true", help="is never ready")
parser.add_argument("--fail", help="ends with this as its last words")
parser.add_argument("--fail-at-round", type=int)
parser.add_argument("--status-of-rank-1", type=int, default=0)
arguments = parser.parse_args()


def spin():
    while True:
        pass


memory = bytearray(b"x") * (arguments.mib << 20)
if arguments.hang:
    time.sleep(600)
if arguments.fail:
    print(f"{arguments.fail}\n", file=sys.stderr)
    sys.exit(1)
if arguments.spin:
    threading.Thread(target=spin, daemon=True).start()
times, rounds = arguments.ms.split(","), 0
while True:
    print("ready: yes", flush=True)
    line = sys.stdin.readline().strip()
    if line == "end":
        break
    assert line == "round", line
    rounds += 1
    if rounds == arguments.fail_at_round:
        sys.exit(f"gpt2_torch: failed | at round {rounds}")
    print(f"step_ms: {times[(rounds - 1) % len(times)]}")
print(f"losses: {arguments.losses}\nflops_per_step: {arguments.flops}", flush=True)
if os.environ.get("RANK") == "1":
    sys.exit(arguments.status_of_rank_1)
