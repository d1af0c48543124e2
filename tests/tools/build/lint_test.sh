#!/bin/bash
# tools/lint in a small repository. Each rule finds its violation, and only the intended rules fail the run.
set -euo pipefail
lint=$PWD/tools/lint
cd "$TEST_TMPDIR"
mkdir -p repository/{tools,core/base,core/ops,amp,comm,models}
cd repository
cp "$lint" tools/
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.c
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null

fail() {
  echo "FAILED: $*" >&2
  cat "$TEST_TMPDIR/out" >&2
  exit 1
}
# expect STATUS [ARGUMENT...]: runs lint, without clang-tidy.
expect() {
  local wanted=$1 status=0
  shift
  tools/lint --no-tidy "$@" >"$TEST_TMPDIR/out" 2>&1 || status=$?
  [[ $status == "$wanted" ]] || fail "lint $*: status $status instead of $wanted"
}
has() { grep -qE -- "$1" "$TEST_TMPDIR/out" || fail "no line matches: $1"; }
lacks() { ! grep -qE -- "$1" "$TEST_TMPDIR/out" || fail "a line matches: $1"; }
commit() { git add -A && git commit -qm "$1"; }

printf 'BasedOnStyle: Google\n' >.clang-format
printf '// What old code says.\nint old_value;\n' >core/base/old.h
git init -q .
commit first
printf 'int a;\n' >core/base/a.h
commit second

# A clean change. The old comment causes a warning, which is only counted.
expect 0 --all
has '^1 warning\(s\) of comment in unchanged files'
has '^tools/lint: [0-9]+ files, 0 with clang-tidy: no errors$'
lacks 'old.h'
expect 0 --all -v
has '^core/base/old.h:1: comment: \(warning\) '
expect 0
has '^tools/lint: 1 files'

# Each rule, in untracked files.
printf '#include "core/ops/a.h"\n' >core/base/up.h
printf '#include "comm/a.h"\n#include "core/ops/a.h"\n' >amp/beside.h
printf '#include <cuda_runtime.h>\n#include <mpi.h>\n' >comm/vendor.h
printf '// Reads it. Which is slow.\nint b;  // Of all\n\n// The one\n// What follows is\nint c;\n' >core/ops/comment.h
seq -f 'int v%g;' 401 >core/ops/long.h
for number in $(seq 41); do echo "int n;" >"models/n$number.h"; done
expect 1
has '^core/base/up.h:1: layer: core/ops/a.h: core/base must not include core/ops, which stands above it$'
has '^amp/beside.h:1: layer: comm/a.h: amp must not include comm, which stands beside it$'
lacks '^amp/beside.h:2'
has '^comm/vendor.h:1: vendor: only core/cuda/'
has '^comm/vendor.h:2: vendor: only comm/mpi/'
has '^core/ops/comment.h:1: comment: '
has '^core/ops/comment.h:2: comment: '
lacks '^core/ops/comment.h:5'
has '^core/ops/long.h:401: file-size: \(warning\) 401 lines'
has '^models/:1: folder-size: 41 files'
has '^tools/lint: 47 files, 0 with clang-tidy: 7 error\(s\)$'

# The comment rule applies only to lines that a change touches.
commit third
printf 'int old_value;  // Whose\n' >>core/base/old.h
expect 1
has '^core/base/old.h:1: comment: \(warning\)'
has '^core/base/old.h:3: comment: a sentence'
has ': 8 error\(s\)$'
expect 1 core/base/up.h
has '^core/base/up.h:1: layer'
expect 2 core/base/nowhere.h
has 'no such file: core/base/nowhere.h'

if command -v clang-format >/dev/null && [[ $(clang-format --version) == *" version 14."* ]]; then
  git checkout -q core/base/old.h
  printf 'int   wide;\n' >core/base/wide.h
  expect 1
  has '^core/base/wide.h:1: format: not formatted'
  expect 0 --fix core/base/wide.h
  [[ $(cat core/base/wide.h) == "int wide;" ]] || fail "--fix did not format the file"
fi
echo "lint_test: passed"
