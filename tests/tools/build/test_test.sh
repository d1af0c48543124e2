#!/bin/bash
# Checks how tools/test --slow handles fuzzing, with stand-ins for Bazel, setup and the search itself.
set -euo pipefail
script=$PWD/tools/test
cd "$TEST_TMPDIR"
mkdir -p repository/{tools/build,tests/tools/config} bin
cp "$script" repository/tools/
cd repository
export PATH=$TEST_TMPDIR/bin:$PATH

stand_in() {  # stand_in PATH: its text comes from standard input
  { echo '#!/bin/bash' && cat; } >"$1"
  chmod +x "$1"
}
stand_in tools/setup <<<'echo "setup $*"'
stand_in tools/build/left_out <<<'true'
stand_in "$TEST_TMPDIR/bin/bazel" <<<'[[ $1 != test ]] || echo "//core:a_test  PASSED in 0.1s" && echo "bazel $*" >>../bazel.log'
stand_in tests/tools/config/fuzz <<<'echo "fuzz $*"; cat fuzz_output; exit "$(cat fuzz_status)"'

# expect STATUS LAST_LINE [ARGUMENT...]
expect() {
  local status=0 wanted=$1 last=$2
  shift 2
  tools/test --no-sanitizers "$@" >"$TEST_TMPDIR/out" 2>&1 || status=$?
  if [[ $status == "$wanted" && $(tail -n 1 "$TEST_TMPDIR/out") == "$last" ]]; then return; fi
  echo "FAILED: tools/test $*: status $status, expected $wanted and the last line '$last'" >&2
  cat "$TEST_TMPDIR/out" >&2
  exit 1
}
has() { grep -qxF -- "$1" "$TEST_TMPDIR/out" || { echo "FAILED: no line '$1'" >&2 && cat "$TEST_TMPDIR/out" >&2 && exit 1; }; }

printf '%s\n' 'config passed' 'manifest passed' >fuzz_output
echo 0 >fuzz_status
expect 0 "3 passed, 0 failed" --slow
has "fuzz 600"
has "setup --slow-tests"
FUZZ_SECONDS=5 expect 0 "3 passed, 0 failed" --slow
has "fuzz 5"

grep -q "GTEST_ALSO_RUN_DISABLED_TESTS=1" ../bazel.log || { echo "FAILED: --slow leaves out cases" >&2 && exit 1; }
rm ../bazel.log

# Without --slow, and for some targets only, there is none.
expect 0 "1 passed, 0 failed"
has "setup --tests"
! grep -q "GTEST_ALSO_RUN_DISABLED_TESTS" ../bazel.log || { echo "FAILED: without --slow all cases run" >&2 && exit 1; }
expect 0 "1 passed, 0 failed" --slow //core/...

printf '%s\n' 'config passed' 'manifest failed: build/fuzz/manifest.crash-1, build/fuzz/manifest.log' >fuzz_output
echo 1 >fuzz_status
expect 1 "2 passed, 1 failed" --slow

echo 'error: it does not compile' >fuzz_output
expect 1 "1 passed, 1 failed" --slow

echo 'clang++ with libFuzzer is not installed' >fuzz_output
echo 3 >fuzz_status
expect 0 "1 passed, 0 failed" --slow
has "left out, fuzzing: clang++ with libFuzzer is not installed"

# Laboratory, scripts and benches only with --all, or if they are named.
: >../bazel.log
expect 0 "1 passed, 0 failed"
grep -q -- " -- //\.\.\. .* -//tests/tools/lab/\.\.\." ../bazel.log || { echo "FAILED: the laboratory is tested" >&2 && exit 1; }
grep -q -- "--build_tests_only .*-with-all\|-with-all.* --build_tests_only" ../bazel.log || { echo "FAILED: programs for GPUs are built" >&2 && exit 1; }
has "left out, sanitizers, and laboratory, scripts, benches, models on the emulated GPU (tools/test --all runs them):"
: >../bazel.log
expect 0 "1 passed, 0 failed" --all
expect 0 "1 passed, 0 failed" //tests/tools/lab/...
! grep -q -- "-//tests\|-with-all" ../bazel.log || { echo "FAILED: --all leaves out the laboratory" >&2 && exit 1; }
