#!/bin/bash
# tools/quickstart in a room where setup, Bazel, mpirun and the program are stand-ins: its help, its settings, Ctrl-C.
set -euo pipefail
tools=$PWD/tools
room=$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")
mkdir -p "$room/tools" "$room/bin" "$room/bazel-bin/tools" "$room/include/bits"
cp "$tools/quickstart" "$tools/supervise" "$room/tools/"
touch "$room/include/bits/stl_vector.h"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
stand_in() {
  printf '#!/bin/bash\n%s\n' "$2" >"$room/$1"
  chmod +x "$room/$1"
}
stand_in tools/setup "echo setup >>'$room/started'"
stand_in bin/bazel :
stand_in bin/g++ "printf 'search starts here:\n $room/include\nEnd of search list.\n' >&2"
# shellcheck disable=SC2016
stand_in bazel-bin/tools/mantissa 'case "$*" in *bad.key*) echo "error: unknown key" >&2; exit 2 ;; esac'
# shellcheck disable=SC2016
stand_in bin/mpirun "trap 'exit 75' USR1; trap 'exit 1' INT TERM; echo \"\$@\" >'$room/mpirun'
  if [[ \"\$*\" == *train.steps=999* ]]; then for ((i = 0; i < 200; ++i)); do sleep 0.1; done; fi"
export PATH="$room/bin:$PATH" CXX=g++ MANTISSA_CUDA=off

"$room/tools/quickstart" --help >"$room/log" 2>&1 || fail "--help: exit code $?"
grep -q 'tools/quickstart \[KEY=VALUE...\]' "$room/log" || fail "--help prints no usage: $(cat "$room/log")"
for word in --hlep steps; do
  code=0
  "$room/tools/quickstart" train.steps=5 "$word" >"$room/log" 2>&1 || code=$?
  [[ $code == 2 ]] || fail "$word: exit code $code"
  grep -q "'$word' is not a setting: expected KEY=VALUE" "$room/log" || fail "$word: $(cat "$room/log")"
done
[[ ! -e "$room/started" ]] || fail 'help or a wrong word started the setup'

code=0
"$room/tools/quickstart" bad.key=1 >"$room/log" 2>&1 || code=$?
[[ $code != 0 && ! -e "$room/mpirun" ]] || fail "a setting that is refused reached mpirun: $(cat "$room/log")"
grep -q 'error: unknown key' "$room/log" || fail "a refused setting: $(cat "$room/log")"

"$room/tools/quickstart" train.steps=5 >"$room/log" 2>&1 || fail "a training: $(cat "$room/log")"
grep -q 'quickstart: done. Checkpoints: runs/quickstart-' "$room/log" || fail "a training: $(cat "$room/log")"
grep -q 'train configs/quickstart.yaml .* train.steps=5$' "$room/mpirun" || fail "mpirun got: $(cat "$room/mpirun")"

rm "$room/mpirun"
set -m # jobs in groups of their own, as a terminal has them, in which SIGINT is not ignored
"$room/tools/quickstart" train.steps=999 >"$room/log" 2>&1 &
job=$!
for ((i = 0; i < 200; ++i)); do [[ ! -e "$room/mpirun" ]] || break && sleep 0.1; done
kill -INT -- "-$job"
code=0
wait "$job" || code=$?
[[ $code == 75 ]] || fail "Ctrl-C: exit code $code: $(cat "$room/log")"
grep -q 'To continue: .*train.run_dir=runs/quickstart-' "$room/log" || fail "Ctrl-C: $(cat "$room/log")"
echo passed
