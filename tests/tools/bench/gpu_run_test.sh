#!/bin/bash
# Whole runs of tools/bench/gpu, without PyTorch: gpu_run_test.sh STEP EMULATED_STEP
set -euo pipefail
# shellcheck source=tests/tools/bench/make_pack.sh
source "$(dirname "${BASH_SOURCE[0]}")/make_pack.sh"
number='[0-9]+\.[0-9]+'
spread="$number \($number – $number\)"

echo "==== on the CPU"
make_pack "$TEST_TMPDIR/cpu" "$1"
run_bench 0 --from "$TEST_TMPDIR/cpu" --device cpu --quick --python "$(type -P false)"
expect_line table '- cpu: .*'
expect_line table "\| mantissa \| 4 \| $spread \| [0-9]+ \| $number \|  \| $number \|"
expect_line table '\| PyTorch \|  \| not run: torch not importable by .*false \| \| \| \| \|'
expect_line table "\| mantissa \| $number \| $number \| $number \| $number \| $number \| $number \|"
expect_line table "- mantissa, losses of the first 10 steps:( $number){10}"
! grep -q 'CUDA graph' "$TEST_TMPDIR/table" || fail "a CUDA graph on a CPU"

echo "==== on the emulated GPU"
make_pack "$TEST_TMPDIR/emulated" "$2"
run_bench 0 --from "$TEST_TMPDIR/emulated" --models tiny --steps 2 --rounds 1 --quick --python "$(type -P false)"
expect_line table '- cuda: GPU 0 \(.*emulated.*'
expect_line table "\| mantissa \| 4 \| $spread \| [0-9]+ \| $number \|  \| $number \|"
expect_line table "\| mantissa, CUDA graph \| 4 \| $spread \| [0-9]+ \| $number \|  \| $number \|"
expect_line table "\| mantissa \| $number \| $number \| $number \| $number \| $number \| $number \|"
# A captured step has the same losses.
eager=$(sed -nE 's/^- mantissa, losses[^:]*://p' "$TEST_TMPDIR/table")
captured=$(sed -nE 's/^- mantissa, CUDA graph, losses[^:]*://p' "$TEST_TMPDIR/table")
[[ -n "$eager" && "$eager" == "$captured" ]] || fail "losses '$eager' and in a CUDA graph '$captured'"
echo "gpu_run_test: passed"
