#!/bin/bash
# A Python with a PyTorch 1.2.3 whose gpt2_torch.py runs at given speeds: 30, 33 and 40 ms in rounds (--steps 7). It is
# out of memory at micro-batch 8. NO_TORCH removes PyTorch; NO_COMPILER makes torch.compile fail.
set -euo pipefail
if [[ "$1" == -c ]]; then
  [[ -z "${NO_TORCH:-}" ]] || exit 1
  [[ "$2" != *version* ]] || echo 1.2.3
  exit 0
fi
[[ "$1" == bench/gpt2_torch.py && -f "$2" && "$*" == *"--device cuda --compile "* ]] || { echo "unexpected: $*" >&2 && exit 2; }
if [[ -n "${NO_COMPILER:-}" && "$*" == *"--compile yes"* ]]; then
  printf 'Traceback\ngpt2_torch: InductorError: Failed to find C compiler\n' >&2
  exit 1
elif [[ -z "${NO_COMPILER:-}" && "$*" == *"--compile no"* ]]; then
  echo "not compiled without need" >&2
  exit 2
fi
while [[ $# -gt 0 ]]; do
  case "$1" in
    --micro-batch) micro_batch=$2 ;;
    --steps) steps=$2 ;;
    --phases) phases=$2 ;;
  esac
  shift
done
if [[ $micro_batch == 8 ]]; then
  echo "gpt2_torch: out of memory: tried to allocate" >&2
  exit 3
fi
ms=$((micro_batch == 2 ? 100 : 90))
if [[ $steps == 7 ]]; then
  round=$(($(cat "$TEST_TMPDIR/rounds.torch" 2>/dev/null || echo 0) + 1))
  echo "$round" >"$TEST_TMPDIR/rounds.torch"
  ms=$((round == 1 ? 30 : round == 2 ? 33 : 40))
fi
echo "losses: 6 5.5 4 3 3 3 3 3 3 3 2"
echo "tokens_per_step: 512"
echo "step_ms: $ms"
[[ $phases == 0 ]] || echo "phase_ms: data 1.000 forward 4.000 backward 6.000 decide 0.250 update 0.130"
echo "memory_bytes: 2147483648"
