#!/bin/bash
# tools/bench/gpu with programs of given speeds, too little memory, and no PyTorch, C compiler or GPU: gpu_test.sh STEP
set -euo pipefail
step=$1
# shellcheck source=tests/tools/bench/make_pack.sh
source "$(dirname "${BASH_SOURCE[0]}")/make_pack.sh"
python=$(realpath tests/tools/bench/fake_python.sh)

echo "==== medians, spreads, shares, ratios round by round"
pack=$TEST_TMPDIR/fake
make_pack "$pack" tests/tools/bench/fake_step.sh
run_bench 0 --from "$pack" --models tiny --steps 7 --python "$python" --output "$TEST_TMPDIR/results/table.md"
expect_line table '- the fake GPU'
expect_line table '- NVIDIA driver .*, PyTorch 1\.2\.3'
expect_line table '- the program: commit 0123456789ab, kernels for sm_90a'
expect_line table '\| size \| bf16, TFLOP/s \| % of peak \| e4m3, TFLOP/s \| % of peak \| e4m3 / bf16 \|'
expect_line table '\| 256 \| 1\.00 \| 10\.0 \| 2\.00 \| 10\.0 \| 2\.00 \|'
expect_line table '\| 255 \| 0\.50 \| 5\.0 \| \| \| \|'
expect_line table '\| 512 \| 4\.00 \| 40\.0 \| 6\.00 \| \| 1\.50 \|'
expect_line table '8 sequences, 512 tokens, 1\.0* GFLOP a step; GEMM peak 1\.00 \(1\.00 – 1\.00\) TFLOP/s, data sheet 2\.0; .* 3 rounds of 7 steps\.'
expect_line table '\| mantissa \| 8 \| 20\.00 \(10\.00 – 30\.00\) \| 25600 \| 5\.0 \| 2\.5 \| 1\.00 \|'
expect_line table '\| mantissa, CUDA graph \| 8 \| 20\.00 \(10\.00 – 30\.00\) \| 25600 \| 5\.0 \| 2\.5 \| 1\.00 \|'
expect_line table '\| PyTorch \| 4 \| 33\.00 \(30\.00 – 40\.00\) \| 15515 \| 3\.0 \| 1\.5 \| 2\.00 \|'
expect_line table 'mantissa / PyTorch in tokens/s, round by round: 2\.000 \(1\.100 – 3\.000\)'
expect_line table 'mantissa, CUDA graph / PyTorch in tokens/s, round by round: 2\.000 \(1\.100 – 3\.000\)'
expect_line table '\| mantissa \| 1\.00 \| 2\.00 \| 3\.00 \| 0\.50 \| 0\.25 \| 0\.13 \|'
expect_line table '\| PyTorch \| 1\.00 \| 4\.00 \| 6\.00 \|  \| 0\.25 \| 0\.13 \|'
expect_line table '- mantissa, losses of the first 10 steps: 6 5 4\.25 3 3 3 3 3 3 3'
expect_line table '- the largest difference between mantissa and PyTorch: 0\.50000 nats'
expect_line table '- micro-batches tried: mantissa 2: 5120 tokens/s; mantissa 4: 6400 tokens/s; mantissa 8: 6440 tokens/s; torch 2: 5120 tokens/s; torch 4: 5689 tokens/s; torch 8: memory ended'
cmp "$TEST_TMPDIR/table" "$TEST_TMPDIR/results/table.md"

echo "==== memory ends at the usual micro-batch; no PyTorch; from an archive beside the script"
mkdir "$TEST_TMPDIR/carried folder"
tar -C "$pack" -czhf "$TEST_TMPDIR/carried folder/gpu.tar.gz" .
cp -L tools/bench/gpu "$TEST_TMPDIR/carried folder/"
(cd / && OUT_OF_MEMORY_AT=4 NO_TORCH=1 "$TEST_TMPDIR/carried folder/gpu" --models tiny --quick --python "$python") >"$TEST_TMPDIR/table"
expect_line table '\| mantissa \| 2 \| 100\.00 \(100\.00 – 100\.00\) \| 5120 \| 1\.0 \| 0\.5 \| 1\.00 \|'
expect_line table '- micro-batches tried: mantissa 4: memory ended; mantissa 2: 5120 tokens/s'
expect_line table '\| PyTorch \|  \| not run: torch not importable by .*fake_python\.sh \| \| \| \| \|'
! grep -q 'round by round' "$TEST_TMPDIR/table" || fail "a ratio without PyTorch"

echo "==== torch.compile does not work"
rm "$TEST_TMPDIR"/rounds.*
NO_COMPILER=1 run_bench 0 --from "$pack" --models tiny --steps 7 --python "$python"
expect_line table '\| PyTorch, not compiled \| 4 \| 33\.00 \(30\.00 – 40\.00\) \| .*'
expect_line table '- not compiled, because torch\.compile failed: gpt2_torch: InductorError: Failed to find C compiler'
expect_line table 'mantissa / PyTorch, not compiled in tokens/s, round by round: 2\.000 \(1\.100 – 3\.000\)'

echo "==== the program fails"
BROKEN=1 run_bench 1 --from "$pack" --models tiny --python "$python"
expect_line table '\| mantissa \|  \| not run: step: it is broken / really \| \| \| \| \|'
expect_line table '\| PyTorch \| 4 \| 90\.00 \(90\.00 – 90\.00\) \| 5689 \|  \|  \| 2\.00 \|'

echo "==== no GPU"
pack=$TEST_TMPDIR/none
make_pack "$pack" "$step"
CUDA_VISIBLE_DEVICES='' run_bench 2 --from "$pack" --output "$TEST_TMPDIR/results/table.md"
[[ -s "$TEST_TMPDIR/results/table.md" ]] || fail "a run that measured nothing took the tables of an earlier one with it"
grep -q 'nothing was measured: error: device: cuda cannot be used: ' "$TEST_TMPDIR/errors" || fail "no reason: $(cat "$TEST_TMPDIR/errors")"
[[ ! -s "$TEST_TMPDIR/table" ]] || fail "a table without a GPU"

echo "==== a command line that is wrong"
run_bench 2 --models 7b
expect_line errors "bench: --models: unknown model '7b'; expected: 124m, 1558m, tiny"
run_bench 2 --steps none
run_bench 2 --device tpu
run_bench 2 --python "$TEST_TMPDIR/no_python"
run_bench 2 --from "$TEST_TMPDIR"
run_bench 2 --pack
run_bench 1 --pack "$TEST_TMPDIR"
expect_line errors 'bench: .* is not a pack and not empty: choose another folder'
echo "gpu_test: passed"
