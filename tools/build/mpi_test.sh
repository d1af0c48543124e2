#!/bin/bash
# Runs a program under mpirun inside a test: mpi_test.sh RANKS PROGRAM [ARGUMENT...]
# Each output line is marked with its rank. The status is that of mpirun: not 0 if any rank fails.
set -u

if [[ "$1" == --rank ]]; then  # one rank, started by mpirun below
  shift
  # Only rank 0 writes GoogleTest's report, which is a single file.
  if [[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" != 0 ]]; then
    unset XML_OUTPUT_FILE GTEST_OUTPUT TEST_PREMATURE_EXIT_FILE
  fi
  exec "$@"
fi

ranks=$1
program=$2
shift 2
[[ "$program" == /* ]] || program="./$program"

command -v mpirun >/dev/null || {
  echo "mpi_test: mpirun is not installed. On Debian: apt install openmpi-bin, or run tools/setup" >&2
  exit 127
}

export OMP_NUM_THREADS="${OMP_PER_RANK:-1}"
# Cross-memory attach needs ptrace rights, which containers and sandboxes often lack. Two copies always work.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
# OpenMPI itself leaks, so AddressSanitizer must not search for leaks.
[[ -z "${ASAN_OPTIONS:-}" ]] || export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
# A private folder with a short path for OpenMPI's sockets; two tests must not share it.
scratch=$(mktemp -d "/tmp/mpi_test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export OMPI_MCA_orte_tmpdir_base="$scratch"

options=(-np "$ranks")
if mpirun --version 2>/dev/null | grep -q "Open MPI"; then
  options+=(--oversubscribe --bind-to none --tag-output)
  [[ $(id -u) != 0 ]] || options+=(--allow-run-as-root)
fi

# By name: a full path would make OpenMPI use that folder as its prefix.
mpirun "${options[@]}" "$BASH" "${BASH_SOURCE[0]}" --rank "$program" "$@" </dev/null
status=$?
if [[ $status != 0 ]]; then
  echo "mpi_test: FAILED with status $status: mpirun ${options[*]} $program $*  (OMP_NUM_THREADS=$OMP_NUM_THREADS)" >&2
fi
exit "$status"
