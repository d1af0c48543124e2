#!/bin/bash
# tools/gpu_check with programs that pass, fail, skip, crash and hang, with a sanitizer, and without a GPU:
# gpu_check_test.sh EMULATED_PROGRAM PROGRAM ROW_KINDS KERNEL_TEST
set -euo pipefail
emulated=$1
program=$2
row_kinds=$3
kernel_test=$4
source "$(dirname "${BASH_SOURCE[0]}")/make_pack.sh"

echo "==== one row for whatever a program does"
pack=$TEST_TMPDIR/kinds
make_pack "$pack" "$emulated"
add_program "$pack" kernel_cuda_test "$row_kinds"
run_check 1 --from "$pack" --only kernels,nccl --limit 8 --output "$TEST_TMPDIR/results/kinds.md"
expect_line table '- GPU 0 \(.*emulated.*'
expect_line table '- the program: commit 0123456789ab, kernels for sm_90a'
expect_line table '\| kernels \| Passes \| 2 \| passed \| [0-9.]+ \|'
expect_line table '\| kernels \| Skips \| 1 \| not run: there is no such thing here \| [0-9.]+ \|'
expect_line table '\| kernels \| SkipsSome \| 2 \| passed; 1 not run: version 1 found, 2 needed \| [0-9.]+ \|'
expect_line table '\| kernels \| Fails \| 3 \| FAILED: Fails.WithAMessage: Expected equality .*left / right \| [0-9.]+ \|'
expect_line table '\| kernels \| Crashes \| 1 \| FAILED: ended with status 134, in Crashes.InTheMiddle \| [0-9.]+ \|'
expect_line table '\| kernels \| Throws \| 1 \| FAILED: Throws.AnError: C\+\+ exception .*out of luck.* \| [0-9.]+ \|'
expect_line table '\| kernels \| Hangs \| 1 \| FAILED: not done after 8 s, in Hangs.ForEver \| 8\.[0-9]+ \|'
expect_line table '\| nccl \| .* \| 0 \| not run: the program was built without NCCL \|  \|'
expect_line table '2 passed, 4 failed, 2 not run'
grep -q 'the second failure' "$TEST_TMPDIR/errors" || fail "the log of a row that failed is missing: $(cat "$TEST_TMPDIR/errors")"
cmp "$TEST_TMPDIR/table" "$TEST_TMPDIR/results/kinds.md"

echo "==== a program that is not there, and nothing that passes"
run_check 1 --from "$pack" --only ops
expect_line table '\| ops \| op_cuda_test \| 0 \| FAILED: .*'
run_check 1 --from "$pack" --only nccl
expect_line table '0 passed, 0 failed, 1 not run'

echo "==== all well, unpacked from an archive beside the script"
pack=$TEST_TMPDIR/well
make_pack "$pack" "$emulated"
add_program "$pack" kernel_cuda_test "$kernel_test" 'Add.*:Cast.*:Dropout.*:Fill.*:Split.*'
add_program "$pack" op_cuda_test "$kernel_test" 'CrossEntropy.*'
mkdir "$TEST_TMPDIR/carried folder"
tar -C "$pack" -czhf "$TEST_TMPDIR/carried folder/gpu_check.tar.gz" .
cp -L tools/gpu_check "$TEST_TMPDIR/carried folder/"
(cd / && "$TEST_TMPDIR/carried folder/gpu_check" --only ops,smoke) >"$TEST_TMPDIR/table"
expect_line table '\| ops \| CrossEntropy \| [0-9]+ \| passed \| .*'
expect_line table '\| smoke \| .* \| 1 \| passed: loss 6\.[0-9]+ -> [0-9.]+, [0-9]+ tokens/s .*, [0-9]+\.[0-9] MiB of GPU memory \| .*'
expect_line table '2 passed, 0 failed, 0 not run'

echo "==== compute-sanitizer: nothing found, something found, a GPU that it does not know"
mkdir "$TEST_TMPDIR/tools"
export PATH="$TEST_TMPDIR/tools:$PATH"
cat >"$TEST_TMPDIR/tools/compute-sanitizer" <<'SANITIZER'
#!/bin/bash
[[ -n "${MANTISSA_TEST_SAMPLE:-}" ]] || exit 3
case "$*" in
  "--tool memcheck --error-exitcode 9"*) ;;
  "--tool racecheck --error-exitcode 9"*) ;;
  *) exit 4 ;;
esac
while [[ "$1" != checks/* ]]; do shift; done
echo "========= COMPUTE-SANITIZER"
[[ -z "${REFUSE:-}" ]] || { echo "========= Error: Device not supported. Please refer to the documentation" && exit 1; }
"$@" || exit
[[ -z "${FINDING:-}" || "$1" != "checks/$FINDING" ]] || { echo "========= Invalid __global__ read of size 4 bytes" && exit 9; }
SANITIZER
chmod +x "$TEST_TMPDIR/tools/compute-sanitizer"
run_check 0 --from "$pack" --only sanitizer
expect_line table '12 passed, 0 failed, 0 not run'
FINDING=op_cuda_test run_check 1 --from "$pack" --only sanitizer
expect_line table '\| sanitizer \| racecheck CrossEntropy \| [0-9]+ \| FAILED: Invalid __global__ read of size 4 bytes \| .*'
expect_line table '10 passed, 2 failed, 0 not run'
REFUSE=1 run_check 1 --from "$pack" --only sanitizer
expect_line table '\| sanitizer \| memcheck \| 0 \| not run: compute-sanitizer says: Error: Device not supported\..* \|  \|'

echo "==== a run that learns nothing"
sed -i 's/lr: 1e-2/lr: 0.0/' "$pack/smoke.yaml"
run_check 1 --from "$pack" --only smoke
expect_line table '\| smoke \| .* \| 1 \| FAILED: .* \| .*'

echo "==== no GPU"
pack=$TEST_TMPDIR/none
make_pack "$pack" "$program"
CUDA_VISIBLE_DEVICES='' run_check 2 --from "$pack" --output "$TEST_TMPDIR/none.md"
grep -q 'nothing was checked: .*device: cuda cannot be used: ' "$TEST_TMPDIR/errors" || fail "no reason: $(cat "$TEST_TMPDIR/errors")"
[[ ! -s "$TEST_TMPDIR/table" && ! -e "$TEST_TMPDIR/none.md" ]] || fail "a table without a GPU"

echo "==== a command line that is wrong"
run_check 2 --only kernel
expect_line errors "gpu_check: --only: unknown group 'kernel'; .*"
run_check 2 --limit soon
run_check 2 --nccl "$TEST_TMPDIR"
run_check 2 --from "$TEST_TMPDIR"
run_check 2 --pack
run_check 1 --pack "$TEST_TMPDIR"
expect_line errors 'gpu_check: .* is not a pack and not empty: choose another folder'
echo "gpu_check_test: passed"
