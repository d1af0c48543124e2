# shellcheck shell=bash
# Sourced by the tests of tools/gpu_check. make_pack FOLDER PROGRAM makes a pack as --pack does, with the emulated GPU or
# no GPU instead of a real GPU.

fail() {
  echo "gpu_check: $*" >&2
  exit 1
}

make_pack() {
  mkdir -p "$1"/{bin,checks}
  ln -s "$(realpath "$2")" "$1/bin/mantissa"
  printf 'commit 0123456789ab\narchitectures sm_90a\n' >"$1/about"
  cp -L tests/tools/gpu_check/smoke.yaml "$1/"
}

# add_program PACK NAME FILE [FILTER]: for a GoogleTest program, lists only the cases that match FILTER.
add_program() {
  if [[ $# == 3 ]]; then ln -s "$(realpath "$3")" "$1/checks/$2"; return; fi
  printf '#!/bin/bash\nGTEST_FILTER=%q exec %q "$@"\n' "$4" "$(realpath "$3")" >"$1/checks/$2"
  chmod +x "$1/checks/$2"
}

# run_check STATUS OPTION...: writes the table to $TEST_TMPDIR/table and standard error to $TEST_TMPDIR/errors.
run_check() {
  local expected=$1 status=0
  shift
  tools/gpu_check "$@" >"$TEST_TMPDIR/table" 2>"$TEST_TMPDIR/errors" || status=$?
  [[ $status == "$expected" ]] || fail "status $status, expected $expected, from: $* $(cat "$TEST_TMPDIR/table" "$TEST_TMPDIR/errors")"
}

# expect_line FILE PATTERN: a line of the file matches this extended regular expression.
expect_line() {
  [[ $(grep -cE "^$2\$" "$TEST_TMPDIR/$1") == 1 ]] || fail "not exactly one line '$2' in the $1: $(cat "$TEST_TMPDIR/$1")"
}
