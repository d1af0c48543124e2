#!/bin/bash
# Counts of tools/build/left_out, in a separate workspace: left_out_test.sh LEFT_OUT CUDA_BZL
set -euo pipefail
export HOME=$TEST_TMPDIR
unset CUDA_HOME CUDA_PATH VIRTUAL_ENV

fail() {
  echo "left_out_test: $*" >&2
  exit 1
}
real_bazel=$(command -v bazel) || fail "no bazel in the PATH of tests: $PATH"
left_out=$(realpath "$1")
fragment=$(dirname "$(dirname "$(realpath "$2")")")/.bazelrc.debian  # where Debian's Bazel finds its rules
workspace=$TEST_TMPDIR/workspace
mkdir -p "$workspace/third_party" "$TEST_TMPDIR/bin"
cp -L "$2" "$workspace/third_party/"
touch "$workspace/third_party/BUILD" "$workspace/some_test.sh"
cat >"$workspace/WORKSPACE" <<'TEXT'
load("//third_party:cuda.bzl", "cuda_toolkit")

cuda_toolkit(name = "cuda", folders = [])
TEXT
cat >"$workspace/BUILD" <<'TEXT'
load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDNN_AVAILABLE", "NCCL_AVAILABLE")

filegroup(name = "always")

[
    sh_test(name = name, srcs = ["some_test.sh"], tags = tags)
    for name, tags, available in [
        ("plain_test", [], True),
        ("long_test", ["local", "slow"], True),
        ("slower_test", ["slower", "seldom-sanitized"], True),
        ("cuda_test", [], CUDA_AVAILABLE),
        ("gpu_test", ["gpu"], CUDA_AVAILABLE),
        ("by_hand_test", ["manual"], CUDA_AVAILABLE),
        ("nccl_test", [], NCCL_AVAILABLE),
        ("cudnn_test", [], CUDNN_AVAILABLE),
    ]
    if available
]

[filegroup(name = "kernels") for _ in range(1 if CUDA_AVAILABLE else 0)]
TEXT
cat >"$TEST_TMPDIR/bin/bazel" <<TEXT
#!/bin/bash
exec "$real_bazel" --nohome_rc --output_user_root="$TEST_TMPDIR/bazel" $([[ ! -f "$fragment" ]] || printf '"--bazelrc=%s"' "$fragment") "\$@"
TEXT
chmod +x "$TEST_TMPDIR/bin/bazel"
export PATH=$TEST_TMPDIR/bin:$PATH
cd "$workspace"
trap 'bazel shutdown' EXIT

# expect TEXT ARGUMENT...: left_out must print exactly TEXT.
expect() {
  local text=$1 said
  shift
  bazel query //:all >/dev/null 2>"$TEST_TMPDIR/log" || fail "$(cat "$TEST_TMPDIR/log")"
  said=$("$left_out" "$@")
  [[ "$said" == "$text" ]] || fail "$*: expected:
$text
got:
$said"
}

slow="left out, slow: 1 test(s); tools/test --slow runs them"
export MANTISSA_CUDA=off
expect "left out, no CUDA: 3 target(s), including 2 test(s); MANTISSA_CUDA=off
left out, no NCCL: 1 target(s), including 1 test(s); needs CUDA's headers
left out, no cuDNN: 1 target(s), including 1 test(s); needs CUDA's headers
$slow" product //...
expect "" product //third_party/...
expect "$slow
left out of the sanitizers: 1 test(s); tools/test --slow runs them" all //:all -//:cuda_test -//:gpu_test -//:kernels -//:nccl_test -//:cudnn_test

# A toolkit with NCCL.
mkdir -p "$TEST_TMPDIR"/cuda/{bin,lib64,include/nvtx3}
printf '#!/bin/sh\n[ "$1" != --version ] || echo V13.0.88\n' >"$TEST_TMPDIR/cuda/bin/nvcc"
chmod +x "$TEST_TMPDIR/cuda/bin/nvcc"
touch "$TEST_TMPDIR"/cuda/{lib64/libcudart_static.a,include/{nccl,cuda_runtime,nvtx3/nvToolsExt}.h}
echo '#define CUDART_VERSION 13000' >"$TEST_TMPDIR/cuda/include/cuda_runtime_api.h"
export MANTISSA_CUDA=on CUDA_HOME=$TEST_TMPDIR/cuda CUDNN_HOME=
expect "left out, need a GPU: 1 test(s), only built; tools/gpu_check runs them" slow //:gpu_test //:long_test
expect "left out, need a GPU: 1 test(s), built by tools/test --all; tools/gpu_check runs them" product //:gpu_test
said=$("$left_out" slow //...)
[[ "$said" != *"no CUDA"* && "$said" != *"no NCCL"* && "$said" != *slow* ]] || fail "with CUDA and NCCL it printed: $said"
echo "left_out_test: passed"
