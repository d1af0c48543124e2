#!/bin/bash
# The table of a whole run on the emulated GPU, then with a program that uses another learning rate on it:
# emulated_run_test.sh PROGRAM KERNEL_TEST OP_TEST MODEL_TEST TRAINING_TEST RANK_HASHES
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/make_pack.sh"

pack=$TEST_TMPDIR/pack
make_pack "$pack" "$1"
add_program "$pack" kernel_cuda_test "$2" '*Norm*'
add_program "$pack" op_cuda_test "$3"
add_program "$pack" model_cuda_test "$4"
add_program "$pack" training_cuda_test "$5"
add_program "$pack" rank_hashes "$6"
mkdir -p "$pack/tests/models/data"
cp -L tests/models/data/*.safetensors "$pack/tests/models/data/"

run_check 0 --from "$pack" --only kernels,ops,models,train,smoke
expect_line table '\| models \| Gpt/PyTorchLowCurve \| [0-9]+ \| passed \| .*'
expect_line table '\| train \| GpuTraining.LearnsInFp32WhatTheCpuLearns \| 1 \| passed \| .*'
expect_line table '\| train \| Dtype/GpuTrainingIn.SixteenBitsLearnsWhatTheCpuLearnsOnTwoRanks/bf16 \| 1 \| passed \| .*'
cat "$TEST_TMPDIR/table"

rm "$pack/bin/mantissa"
cat >"$pack/bin/mantissa" <<PROGRAM
#!/bin/bash
[[ \$1 != train || "\$*" == *device=cpu* ]] || set -- "\$@" optimizer.lr=2e-3
exec "$(realpath "$1")" "\$@"
PROGRAM
chmod +x "$pack/bin/mantissa"
run_check 1 --from "$pack" --only train
expect_line table '\| train \| GpuTraining.LearnsInFp32WhatTheCpuLearns \| 1 \| FAILED: .* \| .*'
expect_line table '\| train \| GpuTraining.AnOverflowIsSkippedReportedAndLeavesTheRunAsOnTheCpu \| 1 \| FAILED: .* \| .*'
expect_line table '\| train \| GpuTraining.TwoAndFourRanksOnOneGpuLearnWhatOneLearns \| 1 \| passed \| .*' # all alike wrong
echo "emulated_run_test: passed"
