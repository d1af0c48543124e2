# shellcheck shell=bash
# Sourced by the tests of tools/bench/gpu: make_pack FOLDER PROGRAM makes a pack by hand, to be run in place of what --pack
# makes, with another program in place of step.

fail() {
  echo "bench: $*" >&2
  exit 1
}

make_pack() {
  mkdir -p "$1/bench"
  ln -s "$(realpath "$2")" "$1/bench/step"
  cp -L tools/bench/{gpt2_model.py,gpt2_start.py,gpt2_torch.py,tables.sh} tests/tools/bench/tiny.yaml "$1/bench/"
  printf 'commit 0123456789ab\narchitectures sm_90a\n' >"$1/about"
}

# run_bench STATUS OPTION...: leaves the tables in $TEST_TMPDIR/table, what went to standard error in $TEST_TMPDIR/errors.
run_bench() {
  local expected=$1 status=0
  shift
  tools/bench/gpu "$@" >"$TEST_TMPDIR/table" 2>"$TEST_TMPDIR/errors" || status=$?
  [[ $status == "$expected" ]] || fail "status $status, expected $expected, from: $* $(cat "$TEST_TMPDIR/table" "$TEST_TMPDIR/errors")"
}

# expect_line FILE PATTERN: one line of the file is it, as an extended regular expression.
expect_line() {
  [[ $(grep -cE "^$2\$" "$TEST_TMPDIR/$1") == 1 ]] || fail "not exactly one line '$2' in the $1: $(cat "$TEST_TMPDIR/$1" "$TEST_TMPDIR/errors")"
}
