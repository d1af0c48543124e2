# shellcheck shell=bash
# For tests of tools/bench/gpu. make_pack FOLDER PROGRAM makes a pack like that of --pack, with PROGRAM in place of
# step.

fail() {
  echo "bench: $*" >&2
  exit 1
}

make_pack() {
  mkdir -p "$1/bench"
  ln -s "$(realpath "$2")" "$1/bench/step"
  cp -L tools/bench/{gpt2_torch.py,tables.sh} tests/tools/bench/tiny.yaml "$1/bench/"
  printf 'commit 0123456789ab\narchitectures sm_90a\n' >"$1/about"
}

# run_bench STATUS OPTION...: writes the tables to $TEST_TMPDIR/table and standard error to $TEST_TMPDIR/errors.
run_bench() {
  local expected=$1 status=0
  shift
  tools/bench/gpu "$@" >"$TEST_TMPDIR/table" 2>"$TEST_TMPDIR/errors" || status=$?
  [[ $status == "$expected" ]] || fail "status $status, expected $expected, from: $* $(cat "$TEST_TMPDIR/table" "$TEST_TMPDIR/errors")"
}

# expect_line FILE PATTERN: a line of the file matches this extended regular expression.
expect_line() {
  [[ $(grep -cE "^$2\$" "$TEST_TMPDIR/$1") == 1 ]] || fail "not exactly one line '$2' in the $1: $(cat "$TEST_TMPDIR/$1" "$TEST_TMPDIR/errors")"
}
