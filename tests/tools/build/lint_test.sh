#!/bin/bash
# tools/lint in a small repository. Each rule finds its violation, and only the intended rules fail the run.
set -euo pipefail
lint=$PWD/tools/lint
cd "$TEST_TMPDIR"
mkdir -p repository/{tools/build,core/base,core/ops/{a,b},amp,comm,models}
cd repository
cp "$lint" tools/
cp "$(dirname "$lint")"/build/lint_*.py tools/build/
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
printf '%s\n' {core,amp,comm,models,tools,scripts}' 9999 99 x' 'sum 9999 core' 'BUILD 9' >tools/build/budgets
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
printf '// Reads it. Which is slow.\nint b;  // Of all\n\n// The sum\n// What follows is\nint c;\n' >core/ops/comment.h
printf '// The sum that\n// those ranks hold. That is all.\nint d;  // that\nint e;  // that\n' >core/ops/pronoun.h
printf '// See core/ops/comment.h and core/ops/nowhere.h.\nint f;\n' >core/ops/path.h
seq -f 'int v%g;' 401 >core/ops/long.h
{ echo 'inline void g() {' && seq -f '  int v%g;' 59 && echo '}'; } >core/ops/function.h
{ echo 'inline int h(int a) {' && seq -f '  a += %g;' 58 && echo '}'; } >core/ops/short.h
for number in $(seq 41); do echo "int n;" >"models/n$number.h"; done
mkdir core/new
touch core/new/floor.h core/ops/{kind.inc,BUILD.bazel} kind.hpp
printf '#include %s\n' '<core/base/a.h>' '"../base/a.h"' '"core/ops/../base/a.h"' '"core/base/a.inc"' PATH \
  '"core/base/a.h"' '<vector>' >core/ops/include.h
heads=(
  'auto f = [](int a) {' 'F f = [] {' 'const R r = add("a", [&]() -> int {' 'bool operator==(A a, A b) {'
  'extern "C" int f() {' 'struct A* f() {' 'A::A() : a_{1} {' 'A::A(B b = {}) : a_(1), b_{b, {}} {'
  'template <class T, std::enable_if_t<A<T> && (B > 1), int> = 0> void f(T a) {'
  'template <class T> requires (sizeof(T) > 4) void f(T a) {' 'void f(auto a) requires requires { a.b(); } {'
)
others=(
  'struct A : B<int> {' 'struct alignas(8) A : B {' 'extern "C" {' 'int a[] = {'
  'template <class T> concept A = requires(T a) {'
)
bodies() { for head in "$@"; do printf '%s\n' "$head" && seq -f '  v%g;' 59 && echo '};'; done; }
bodies "${heads[@]}" >core/ops/functions.h
bodies "${others[@]}" >core/ops/others.h
{ echo 'def f():' && seq -f '    v = %g' 60; } | tee tools/function.py | sed '1i #!/usr/bin/env python3' >tools/function
hashes=(core/BUILD tools/pronoun tools/pronoun.{py,sh,bzl,yaml})
printf '\x23 The sum that\n\x23 those ranks hold.\na = 1  \x23 that\nb = 2  \x23 that and those\n' |
  tee "${hashes[@]}" >/dev/null
printf '// The sum that\n// those ranks hold, see core/nowhere.js.\n' >tools/pronoun.js
expect 1
for name in core/new/floor.h core/ops/{kind.inc,BUILD.bazel} kind.hpp; do has "^$name:1: place: "; done
for line in 1 2 3 4 5; do has "^core/ops/include.h:$line: layer: write "; done
lacks '^core/ops/include.h:[67]: layer'
for number in "${!heads[@]}"; do has "^core/ops/functions.h:$((61 * number + 1)): function-size: 61 lines"; done
lacks '^core/ops/others.h:[0-9]+: function-size'
has '^tools/function.py:1: function-size: 61 lines'
has '^tools/function:2: function-size: 61 lines'
for name in "${hashes[@]}" tools/pronoun.js; do has "^$name:2: pronoun: 'that' and 'those'"; done
for name in "${hashes[@]}"; do has "^$name:4: pronoun: " && lacks "^$name:3"; done
has '^tools/pronoun.js:2: dead-path: '
rm -r core/{new,BUILD} core/ops/{kind.inc,BUILD.bazel,include.h,functions.h,others.h} kind.hpp tools/{function,pronoun}*

expect 1
has '^core/base/up.h:1: layer: core/ops/a.h: core/base must not include core/ops, which stands above it$'
has '^amp/beside.h:1: layer: comm/a.h: amp must not include comm, which stands beside it$'
lacks '^amp/beside.h:2'
has '^comm/vendor.h:1: vendor: only core/cuda/'
has '^comm/vendor.h:2: vendor: only comm/mpi/'
has '^core/ops/comment.h:1: comment: '
has '^core/ops/comment.h:2: comment: '
lacks '^core/ops/comment.h:5'
has "^core/ops/pronoun.h:2: pronoun: 'that' and 'those' within 12 words"
lacks '^core/ops/pronoun.h:[34]'
has '^core/ops/path.h:1: dead-path: there is no core/ops/nowhere.h$'
has '^core/ops/long.h:401: file-size: 401 lines'
has '^core/ops/function.h:1: function-size: 61 lines'
lacks '^core/ops/short.h'
has '^tools/lint: 51 files, 0 with clang-tidy: 11 error\(s\)$'

# Rules about the tree.
printf '#include "core/ops/b/b.h"\n' >core/ops/a/a.h
printf '#include "core/ops/a/a.h"\n' >core/ops/b/b.h
printf '%s\n' '# room lines files why' 'core 100 20 x' 'amp 1 1 x' 'models 41 40 x' 'tools 2000 9 x' 'sum 3 amp+comm' \
  'BUILD 1' 'scripts 1 9 x' >tools/build/budgets
printf 'a\nb\n' >core/BUILD
expect 1 --all
has '^core/ops/a/:1: circle: core/ops/a, core/ops/b include each other$'
has '^models/:1: folder-size: 41 files'
has '^tools/build/budgets:1: budget: comm: 2 lines in a room without a budget$'
has '^tools/build/budgets:2: budget: core: [0-9]+ lines, at most 100$'
has '^tools/build/budgets:3: budget: amp: 2 lines, at most 1$'
has '^tools/build/budgets:4: budget: models: 41 files, at most 40$'
has '^tools/build/budgets:6: budget: amp\+comm: 4 lines, at most 3$'
has '^tools/build/budgets:7: budget: BUILD files: 2 lines, at most 1$'
has '^tools/build/budgets:8: budget: scripts: [0-9]+ lines, at most 1$'
lacks 'budget: tools'
has '^arrows up: 2, circles of folders: 1$'
rm tools/build/budgets
expect 1
for row in sum BUILD scripts; do has "^tools/build/budgets:1: budget: there is no row '$row'$"; done
has '^tools/build/budgets:1: budget: models: 41 lines in a room without a budget$'
git checkout -q tools/build/budgets
rm -r core/ops/[ab] core/BUILD

# The comment rule applies only to lines that a change touches.
commit third
printf 'int old_value;  // Whose\n' >>core/base/old.h
expect 1
has '^core/base/old.h:1: comment: \(warning\)'
has '^core/base/old.h:3: comment: a sentence'
has ': 12 error\(s\)$'
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

# The hook refuses a commit with a finding, and does not replace a hook.
rm models/n41.h
git add -A && git commit -qm fourth
expect 0 --install-hook
printf '#include "core/ops/a.h"\n' >core/base/again.h
git add -A
! git commit -qm fifth 2>/dev/null >/dev/null || fail "the hook let a wrong include pass"
printf 'int i;\n' >core/base/again.h
git add -A && git commit -qm fifth >/dev/null 2>&1 || fail "the hook refused a clean commit"
printf 'sum 1 core\n' >>tools/build/budgets
! git commit -qam sixth >/dev/null 2>&1 || fail "the hook let the sum of a budget pass"
expect 2 --install-hook
has 'is already there$'
echo "lint_test: passed"
