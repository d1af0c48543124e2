#!/bin/bash
# A bundle with cuDNN: bundle_cudnn_test.sh BUNDLE_TOOL PROGRAM PROGRAM_WITHOUT_CUDNN LIBRARY_TEST TOOLKIT
#
# Runs the cuDNN test that needs no GPU on the bundle's libraries. The loader reports which libraries it opened.
set -euo pipefail

fail() {
  echo "bundle_cudnn_test: $*" >&2
  exit 1
}
bundle_tool=$1
program=$2
without_cudnn=$3
library_test=$4
export CUDA_HOME=$5
bundle=$(realpath -m "$TEST_TMPDIR/bundle")

"$bundle_tool" --program "$program" --output "$bundle" --with-cudnn
grep -q '^So are cuDNN and libnvrtc' "$bundle/README" || fail "the README does not say that cuDNN is there"
install -m 755 "$library_test" "$bundle/libexec/library_test"
patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$bundle/libexec/library_test"
env -i LD_DEBUG=files LD_DEBUG_OUTPUT="$TEST_TMPDIR/loader" CUDA_HOME="$CUDA_HOME" "$bundle/libexec/library_test" --gtest_color=no |
  tee "$TEST_TMPDIR/log"
grep -q '  PASSED  ' "$TEST_TMPDIR/log" || fail "no case of $library_test passed"
! grep -q '  SKIPPED ' "$TEST_TMPDIR/log" || fail "$library_test was skipped"
opened=$(sed -nE 's/.*calling init: (.*lib(cudnn|nvrtc|cublas|nccl).*)/\1/p' "$TEST_TMPDIR"/loader.* | sort -u | xargs -r realpath)
[[ "$opened" == *"$bundle/lib/libcudnn_graph.so"* ]] || fail "cuDNN's graphs were not opened from the bundle, but: $opened"
elsewhere=$(grep -vF "$bundle/lib/" <<<"$opened") || true
[[ -z "$elsewhere" ]] || fail "these were not opened from the bundle: $elsewhere"

# The bundle has the libraries that are opened by name on a GPU, all of the same version.
for name in libnvrtc.so libnvrtc-builtins.so libcublasLt.so libnccl.so libcudnn_engines_runtime_compiled.so; do
  compgen -G "$bundle/lib/$name.*" >/dev/null || fail "there is no $name in the bundle"
done
builtins=$(basename "$bundle"/lib/libnvrtc-builtins.so.*)
grep -aqF "$builtins" "$bundle"/lib/libnvrtc.so.* || fail "libnvrtc asks for another than $builtins"

echo "==== a program that would not open cuDNN"
if "$bundle_tool" --program "$without_cudnn" --output "$TEST_TMPDIR/none" --with-cudnn 2>"$TEST_TMPDIR/refusal"; then fail "not refused"; fi
grep -q "built without cuDNN" "$TEST_TMPDIR/refusal" || fail "refused for another reason: $(cat "$TEST_TMPDIR/refusal")"
echo "bundle_cudnn_test: passed"
