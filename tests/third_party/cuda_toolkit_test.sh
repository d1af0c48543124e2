#!/bin/bash
# Tests which folders third_party/cuda.bzl accepts as CUDA toolkits, its messages for the others, and the architectures
# that each toolkit supports: cuda_toolkit_test.sh CUDA_BZL
#
# Runs in its own workspace. Its toolkits are folders of empty headers and an nvcc that only prints its version. `print`
# in a BUILD file shows the results. The machine's own toolkits are not searched.
set -euo pipefail
export HOME=$TEST_TMPDIR
unset CUDA_HOME CUDA_PATH CUDNN_HOME NCCL_HOME VIRTUAL_ENV MANTISSA_CUDA CC

fail() {
  echo "cuda_toolkit_test: $*" >&2
  exit 1
}
command -v bazel >/dev/null || fail "there is no bazel in $PATH, where tests find programs"
repository=$(dirname "$(dirname "$(realpath "$1")")")

# All programs except nvcc.
programs=$TEST_TMPDIR/programs
mkdir "$programs"
while read -r -d : folder; do ln -s -t "$programs" "$folder"/* 2>/dev/null || true; done <<<"$PATH:"  # of two, the first stays
rm -f "$programs/nvcc"
PATH=$programs

workspace=$TEST_TMPDIR/workspace
mkdir -p "$workspace"/{third_party,tools/build}
cp -L third_party/cuda.bzl "$workspace/third_party/"
cp -L tools/build/{cuda,defs}.bzl "$workspace/tools/build/"
touch "$workspace/third_party/BUILD"
cat >"$workspace/WORKSPACE" <<'TEXT'
load("//third_party:cuda.bzl", "cuda_toolkit")

cuda_toolkit(name = "cuda", folders = [])
TEXT
cat >"$workspace/tools/build/BUILD" <<'TEXT'
load("//tools/build:cuda.bzl", "cuda_archs")

cuda_archs(name = "cuda_archs", build_setting_default = ["sm_90a"])
TEXT
cat >"$workspace/BUILD" <<'TEXT'
load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDA_VERSION", "CUDNN_AVAILABLE", "NCCL_AVAILABLE", "NVCC")

print("found: CUDA=%s NCCL=%s cuDNN=%s %s %s" % (CUDA_AVAILABLE, NCCL_AVAILABLE, CUDNN_AVAILABLE, CUDA_VERSION, NVCC))
TEXT
# Shows Debian's Bazel where its rules are.
options=()
[[ ! -f "$repository/.bazelrc.debian" ]] || options=("--bazelrc=$repository/.bazelrc.debian")

run_bazel() { (cd "$workspace" && bazel --nohome_rc --output_user_root="$TEST_TMPDIR/bazel" "${options[@]}" "$@"); }
trap 'run_bazel shutdown' EXIT

# make_toolkit FOLDER VERSION [RUNTIME]: an nvcc of VERSION with headers of RUNTIME, by default the same.
make_toolkit() {
  local version=${3:-$2}
  mkdir -p "$1"/{bin,lib64,include/nvtx3}
  cat >"$1/bin/nvcc" <<NVCC
#!/bin/sh
[ "\$1" != --version ] || echo "Cuda compilation tools, release ${2%.*}, V$2"
NVCC
  chmod +x "$1/bin/nvcc"
  touch "$1"/{include/cuda_runtime.h,include/nvtx3/nvToolsExt.h,lib64/libcudart_static.a}
  IFS=. read -r major minor _ <<<"$version"
  echo "#define CUDART_VERSION  $((major * 1000 + minor * 10))" >"$1/include/cuda_runtime_api.h"
}

# expect succeeds|fails TEXT VARIABLE=VALUE... -- BAZEL_ARGUMENT...: checks the exit status and that the output has
# TEXT.
expect() {
  local outcome=$1 text=$2 ended=succeeds variables=()
  shift 2
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  (export "${variables[@]}" && run_bazel "$@") >"$TEST_TMPDIR/log" 2>&1 </dev/null || ended=fails
  [[ $ended == "$outcome" ]] && tr '\n' ' ' <"$TEST_TMPDIR/log" | grep -qF -- "$text" ||
    fail "with ${variables[*]}: bazel $* $ended; expected that it $outcome and says '$text':
$(cat "$TEST_TMPDIR/log")"
  echo "passed: $text"
}
left_out() { grep -qF "$1" "$TEST_TMPDIR"/bazel/*/external/cuda/left_out || fail "left_out does not say: $1, but: $(cat "$TEST_TMPDIR"/bazel/*/external/cuda/left_out)"; }

look=(query //:all)
make_toolkit "$TEST_TMPDIR/cuda-12.2" 12.2.140
make_toolkit "$TEST_TMPDIR/cuda-12.3" 12.3.107
make_toolkit "$TEST_TMPDIR/cuda-12.6" 12.6.85
make_toolkit "$TEST_TMPDIR/cuda-12.8" 12.8.93
make_toolkit "$TEST_TMPDIR/mixed" 13.0.88 12.2.140

echo "==== a toolkit that is named must be one, and new enough"
expect succeeds "found: CUDA=True NCCL=False cuDNN=False 12.3.107 $TEST_TMPDIR/cuda-12.3/bin/nvcc" "CUDA_HOME=$TEST_TMPDIR/cuda-12.3" -- "${look[@]}"
left_out "NCCL: no nccl.h"
left_out "cuDNN: no cudnn_graph.h"
expect fails "nvcc 12.2.140 is older than 12.3" "CUDA_HOME=$TEST_TMPDIR/cuda-12.2" -- "${look[@]}"
expect fails "include/cuda_runtime_api.h is of CUDA 12.2, older than 12.3" "CUDA_PATH=$TEST_TMPDIR/mixed" -- "${look[@]}"
expect fails "is not a CUDA toolkit: no bin/nvcc" "CUDA_HOME=$TEST_TMPDIR/absent" -- "${look[@]}"

echo "==== one that is found and is too old is none"
expect succeeds "found: CUDA=False" "PATH=$TEST_TMPDIR/cuda-12.2/bin:$PATH" -- "${look[@]}"
left_out "CUDA: no CUDA toolkit of 12.3 or newer"
left_out "$TEST_TMPDIR/cuda-12.2 (nvcc 12.2.140 is older than 12.3)"
expect fails "MANTISSA_CUDA=on, but there is no CUDA toolkit" MANTISSA_CUDA=on "PATH=$TEST_TMPDIR/cuda-12.2/bin:$PATH" -- "${look[@]}"
expect succeeds "building for the CPU only: MANTISSA_CUDA=off" MANTISSA_CUDA=off "CUDA_HOME=$TEST_TMPDIR/cuda-12.3" -- "${look[@]}"
left_out "CUDA: MANTISSA_CUDA=off"

echo "==== wheels: those of CUDA 13 are a toolkit, those of CUDA 12 have no nvcc"
old=$TEST_TMPDIR/venv12/lib/python3.11/site-packages/nvidia
mkdir -p "$old"/cuda_nvcc/{bin,include,nvvm} "$old"/cuda_runtime/{include,lib}
touch "$old"/cuda_nvcc/bin/ptxas "$old"/cuda_runtime/{include/cuda_runtime.h,lib/libcudart_static.a}
expect succeeds "found: CUDA=False" "VIRTUAL_ENV=$TEST_TMPDIR/venv12" -- "${look[@]}"
left_out "$old/cuda_nvcc (no bin/nvcc: the nvidia-*-cu12 wheels have none, those of CUDA 13 do)"
new=$TEST_TMPDIR/venv13/lib/python3.11/site-packages/nvidia
make_toolkit "$new/cu13" 13.0.88
mv "$new/cu13/lib64" "$new/cu13/lib"
mkdir -p "$new"/{nccl,cudnn}/include
touch "$new"/{nccl/include/nccl.h,cudnn/include/cudnn_graph.h}
printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 16\n' >"$new/cudnn/include/cudnn_version.h"
expect succeeds "found: CUDA=True NCCL=True cuDNN=True 13.0.88 $new/cu13/bin/nvcc" "VIRTUAL_ENV=$TEST_TMPDIR/venv13" -- "${look[@]}"

echo "==== an architecture that the toolkit does not know"
archs=(build --nobuild //tools/build:cuda_archs)
expect succeeds "" "CUDA_HOME=$TEST_TMPDIR/cuda-12.6" -- "${archs[@]}" --//tools/build:cuda_archs=sm_80,sm_89,sm_90a
expect fails "sm_100a needs CUDA 12.8 or newer, and this build uses 12.6.85 ($TEST_TMPDIR/cuda-12.6/bin/nvcc)" \
  "CUDA_HOME=$TEST_TMPDIR/cuda-12.6" -- "${archs[@]}" --//tools/build:cuda_archs=sm_80,sm_100a
expect succeeds "" "CUDA_HOME=$TEST_TMPDIR/cuda-12.8" -- "${archs[@]}" --//tools/build:cuda_archs=sm_100a
expect fails "expected one or more of sm_80, sm_89, sm_90a, sm_100a, separated by commas, got 'sm_70'" \
  "CUDA_HOME=$TEST_TMPDIR/cuda-12.8" -- "${archs[@]}" --//tools/build:cuda_archs=sm_70
echo "cuda_toolkit_test: passed"
