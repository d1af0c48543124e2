#!/bin/bash
# The public headers are commented, and tools/docs notices what is not: docs_test.sh DOCS_TOOL
set -euo pipefail

fail() {
  echo "docs_test: $*" >&2
  exit 1
}
command -v doxygen >/dev/null || fail "'doxygen' is not installed: run tools/setup --tests"
docs=$(realpath "$1")
"$docs" --check

room=$TEST_TMPDIR/room
mkdir -p "$room/tools/build" "$room/core"
cp "$docs" "$room/tools/docs"
echo core/thing.h >"$room/tools/build/public_headers"
# check TEXT...: these lines, and no others, are found in thing.h, which is standard input.
check() {
  local code=0 text
  cat >"$room/core/thing.h"
  "$room/tools/docs" --check >"$room/log" 2>&1 || code=$?
  [[ $code == "$(($# > 0 ? 1 : 0))" ]] || fail "exit code $code: $(cat "$room/log")"
  for text in "$@"; do grep -qF -- "$text" "$room/log" || fail "no '$text' in: $(cat "$room/log")"; done
  grep -q "1 headers, $# comments are missing" "$room/log" || fail "other findings: $(cat "$room/log")"
}
check <<'CODE'
// Thing: in the opening comment.
#pragma once

namespace mantissa {

class Thing {
 public:
  // Takes a number.
  explicit Thing(int number);
  ~Thing();

  // Does one thing, and another.
  void one();
  void another();
  int number() const { return number_; }

 private:
  int number_;
  void hidden();
};

// A free function.
void call(Thing& thing);

}  // namespace mantissa
CODE
check "core/thing.h:6: no comment: class Other {" "core/thing.h:8: no comment: void one();" "core/thing.h:14: no comment: void call(Other& other);" <<'CODE'
// Things.
#pragma once

namespace mantissa {

class Other {
 public:
  void one();

  // Has a comment.
  void another();
};

void call(Other& other);

}  // namespace mantissa
CODE
"$room/tools/docs" --output "$room/pages" >/dev/null && fail "comments are missing, and the exit code is 0"
[[ -f "$room/pages/html/index.html" ]] || fail "no pages are made"
echo "docs_test: passed"
