#!/bin/bash
# Own models and own loops from a bundle alone: development_test.sh BUNDLE_TOOL PROGRAM
#
# In empty folders, CMake and Bazel build the projects of examples/ against a bundle. The loop and the plugin train on 1 and 2
# ranks. Plugins that do not fit are refused.
set -euo pipefail
PATH+=:/usr/sbin:/sbin # Bazel's PATH lacks them
unset CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH

fail() {
  echo "development_test: $*" >&2
  exit 1
}
for tool in cmake bazel; do command -v "$tool" >/dev/null || fail "'$tool' is not installed: run tools/setup --tests"; done
fragment=$(dirname "$(realpath "$1")")/../.bazelrc.debian  # where Debian's Bazel finds its rules
room=$(mktemp -d "${TEST_TMPDIR:-/tmp}/room.XXXXXX")
bundle=$room/bundle
"$1" --program "$2" --output "$bundle" --development
sources=$(dirname "$(realpath "$1")")/..
for name in "$(realpath "$sources")" bazel-out; do
  ! grep -rlF "$name" "$bundle"/{BUILD,WORKSPACE,include,examples,share/mantissa} || fail "these name $name"
done
export OMP_NUM_THREADS=1
mpirun=("$bundle/bin/mpirun" -np 2 --oversubscribe)
[[ $(id -u) != 0 ]] || mpirun+=(--allow-run-as-root)

# expect CODE TEXT COMMAND...: the command must end with this exit code and print the text.
expect() {
  local code=0 expected=$1 text=$2
  shift 2
  "$@" >"$room/log" 2>&1 || code=$?
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, from: $*: $(cat "$room/log")"
  [[ "$(tr -s ' \n' ' ' <"$room/log")" == *"$text"* ]] || fail "no '$text' from: $*: $(cat "$room/log")"
  echo "passed: ${*##*/}"
}
falls() { awk '/ loss [0-9]/ { sub(/.* loss /, ""); if (!n++) first = $1; last = $1 } END { exit !(n > 1 && last < 0.8 * first) }' "$1"; }

for i in $(seq 1 400); do echo "$i: the quick brown fox jumps over the lazy dog, and the dog sleeps on."; done >"$room/text"

echo "==== CMake"
cp -r "$bundle/examples" "$room/own"
cd "$room/own"
cmake -S . -B build -DCMAKE_PREFIX_PATH="$bundle" >"$room/log" 2>&1 || fail "cmake: $(cat "$room/log")"
cmake --build build -j 2 >"$room/log" 2>&1 || fail "cmake --build: $(cat "$room/log")"
build/own_loop "$room/text" 60 >"$room/one" || fail "own_loop left with $?"
"${mpirun[@]}" build/own_loop "$room/text" 60 >"$room/two" || fail "own_loop on two ranks left with $?"
falls "$room/one" || fail "the loss does not fall: $(cat "$room/one")"
falls "$room/two" || fail "the loss does not fall: $(cat "$room/two")"
# The first loss is that of the same batch and weights; sums of two halves differ in the last of the printed digits at most.
awk 'FNR == 1 { loss[NR] = $4; ++n } END { for (i in loss) { if (low == "" || loss[i] < low) low = loss[i]; if (loss[i] > high) high = loss[i] }
  exit !(n == 2 && high - low < 3e-6) }' "$room/one" "$room/two" || fail "one rank: $(head -n 1 "$room/one"), two: $(head -n 1 "$room/two")"

echo "==== the model as a plugin"
settings=(data.train="$room/text" train.steps=40 train.eval_interval=0 train.sample_tokens=8 train.log_interval=1 train.measure_peak=false
  train.run_dir="$room/run" optimizer.warmup_steps=2 checkpoint.interval=20)
mantissa=$bundle/bin/mantissa
expect 0 "checkpoint saved" "${mpirun[@]}" "$mantissa" train own_model/own_model.yaml "${settings[@]}"
cp "$room/log" "$room/train.log"
falls "$room/train.log" || fail "the loss does not fall: $(cat "$room/train.log")"
grep -q "plugin: $room/own/build/own_model.so" "$room/run/config.yaml" || fail "the run does not keep the path: $(head "$room/run/config.yaml")"
grep -q 'plugin_digest: "\?[0-9a-f]\{16\}' "$room/run/config.yaml" || fail "the run does not keep the digest"
expect 0 "" "$mantissa" generate "$room/run" --prompt "the quick" --tokens 8
expect 0 "resumed" "${mpirun[@]}" "$mantissa" train "$room/run/config.yaml" train.steps=50
expect 0 "same bits: 3 of 3 runs" "$mantissa" prove own_model/own_model.yaml data.train="$room/text" optimizer.warmup_steps=2 --ranks 1,2 --threads 1 --steps 4
cd "$room"
expect 0 "perplexity" "$mantissa" evaluate run --text text

echo "==== refusals"
configuration=own/own_model/own_model.yaml
plugin=own/build/own_model.so
expect 2 "model 'parallel' has no option 'turns'; it has: rounds" "$mantissa" config $configuration "${settings[@]}" 'model.options=[turns=2]'
expect 2 "expected rounds=NUMBER, got 'rounds=x'" "$mantissa" config $configuration "${settings[@]}" 'model.options=[rounds=x]'
expect 2 "there are: encoder, gpt, parallel" "$mantissa" config $configuration "${settings[@]}" model.name=paralel
expect 2 "'$room/text' is not a plugin" "$mantissa" config $configuration "${settings[@]}" model.plugin=text
cp $plugin kept.so
# As if the headers had changed: another stamp, in the same length.
sed -E 's/(mantissa plugin: headers )[0-9a-f]{16}/\10123456789abcdef/' kept.so >other.so
expect 2 "was compiled with headers 0123456789abcdef" "$mantissa" config $configuration "${settings[@]}" model.plugin=other.so
{ cat kept.so && echo "further bytes"; } >$plugin
expect 2 "has changed since the run began" "$mantissa" generate run --prompt "the" --tokens 4
rm $plugin
expect 2 "give model.plugin=FILE if it has moved" "$mantissa" generate run --prompt "the" --tokens 4
mv kept.so $plugin
expect 0 "" "$mantissa" generate run --prompt "the" --tokens 4
# A plugin with the library in it, as a project of one's own may link it by mistake.
g++ -std=c++20 -fPIC -shared -I "$bundle/include" own/own_model/own_model.cc -o copy.so -Wl,--whole-archive "$bundle/lib/libmantissa.a" \
  -Wl,--no-whole-archive >"$room/log" 2>&1 || cat "$plugin" <(echo "mantissa registry of models") >copy.so
expect 2 "has a copy of our library in it" "$mantissa" config $configuration "${settings[@]}" model.plugin=copy.so

echo "==== Bazel"
mkdir "$room/bazel"
cp -r "$bundle"/examples/{BUILD,WORKSPACE,own_loop,own_model} "$room/bazel/"
sed -i "s|path = \"..\"|path = \"$bundle\"|" "$room/bazel/WORKSPACE"
cd "$room/bazel"
options=(--nohome_rc --output_user_root="$room/output" --host_jvm_args=-Xmx512m)
# Without mold, which the fragment names for our own links.
if [[ -f "$fragment" ]]; then
  grep '^common' "$fragment" >"$room/bazelrc"
  options+=(--bazelrc="$room/bazelrc")
fi
trap 'HOME=$room bazel "${options[@]}" shutdown >/dev/null 2>&1; chmod -R u+w "$room/output"' EXIT
HOME=$room bazel "${options[@]}" build -c opt :all >"$room/log" 2>&1 || fail "bazel: $(cat "$room/log")"
"${mpirun[@]}" bazel-bin/own_loop "$room/text" 10 >"$room/log" || fail "own_loop of Bazel left with $?"
diff <(head -n 1 "$room/two") <(head -n 1 "$room/log") || fail "Bazel's own_loop computes something else than CMake's"
expect 0 "name: parallel" "$mantissa" config "$bundle/examples/own_model/own_model.yaml" data.train="$room/text" model.plugin=bazel-bin/own_model.so
echo "development_test: passed"
