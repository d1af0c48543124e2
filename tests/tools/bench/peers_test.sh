#!/bin/bash
# Runs the tests of tools/bench/peers, which is written in Python: peers_test.sh
set -euo pipefail
command -v python3 >/dev/null || { echo "python3 is missing, which tools/setup installs" >&2 && exit 1; }
exec python3 -W error::ResourceWarning tests/tools/bench/peers_test.py -v
