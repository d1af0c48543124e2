#!/bin/bash
# The output of step that tools/bench/gpu reads, at given speeds: 100, 80 and 79.5 ms at micro-batches of 2, 4 and more;
# 10, 30 and 20 ms in rounds (--steps 7). From micro-batch OUT_OF_MEMORY_AT on, memory is exhausted. With BROKEN nothing
# works except the probe (--steps 1).
set -euo pipefail
micro_batch='' steps='' phases=0 graph=no export_to='' products=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    --micro-batch) micro_batch=$2 && shift ;;
    --steps) steps=$2 && shift ;;
    --phases) phases=$2 && shift ;;
    --export) export_to=$2 && shift ;;
    --products) products=yes ;;
    cuda.graph=true) graph=yes ;;
  esac
  shift
done
if [[ -n "$export_to" ]]; then
  touch "$export_to"
  exit 0
fi
if [[ -n "${BROKEN:-}" && $steps != 1 ]]; then
  echo "step: it is broken | really" >&2
  exit 1
fi
if [[ $steps != 1 && $micro_batch -ge ${OUT_OF_MEMORY_AT:-1000} ]]; then
  echo "step: [cuda] GPU 0 is out of memory: 'step arena' needs 1.0 MiB" >&2
  exit 1
fi
if [[ $products == yes ]]; then
  echo "products_bf16: 256 1e12 0.1 255 5e11 0.05 512 4e12 0.4"
  echo "products_e4m3: 256 2e12 0.1 512 6e12 0"
  exit 0
fi
case $steps,$micro_batch in
  7,*)
    round=$(($(cat "$TEST_TMPDIR/rounds.$graph" 2>/dev/null || echo 0) + 1))
    echo "$round" >"$TEST_TMPDIR/rounds.$graph"
    ms=$((round == 1 ? 10 : round == 2 ? 30 : 20))
    ;;
  *,2) ms=100 ;;
  *,4) ms=80 ;;
  *) ms=79.5 ;;
esac
echo "device: the fake GPU"
echo "losses: 6 5 4.25 3 3 3 3 3 3 3 1"
echo "tokens_per_step: 512"
echo "flops_per_step: 1e9"
echo "gemm_flops: 1e12"
echo "datasheet_flops: 2e12"
echo "step_ms: $ms"
[[ $phases == 0 || $graph == yes ]] || echo "phase_ms: data 1.000 forward 2.000 backward 3.000 reduce 0.500 decide 0.250 update 0.130 step 7.000"
echo "memory_bytes: 1073741824"
