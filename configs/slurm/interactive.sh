#!/bin/bash
# Runs the program by hand on nodes of Slurm, and gives them back at its end. Its output comes to this terminal.
#
#   configs/slurm/interactive.sh [OPTION OF SALLOC...] -- train CONFIG [KEY=VALUE...]
#
# Upon Ctrl-C the ranks save a checkpoint and end with exit code 75. The script finds the program in its own bundle, or in the
# folder that MANTISSA_ROOT names. docs/cluster.md explains the options of srun.
root=${MANTISSA_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
options=()
while [[ $# -gt 0 && $1 != -- ]]; do
  options+=("$1")
  shift
done
if [[ $# -lt 2 ]]; then
  echo "usage: $0 [OPTION OF SALLOC...] -- train CONFIG [KEY=VALUE...]" >&2
  exit 2
fi
shift

# --disable-status: srun passes the first Ctrl-C on to the ranks. Otherwise it shows their state, and waits for a second one.
# shellcheck disable=SC2016 # salloc's shell expands the variable
exec salloc --nodes=1 --ntasks=2 --cpus-per-task=8 --time=1:00:00 "${options[@]}" bash -c '
  exec srun --mpi=pmix --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 --disable-status "$@"' \
  interactive.sh "$root/bin/mantissa" "$@"
