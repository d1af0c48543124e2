#!/bin/bash
# Writes the sources of a page as C++ constants (model_page_sources.h) to standard output: embed.sh HTML CSS JS...
set -euo pipefail

constant() {  # NAME FILE...
  local name=$1
  shift
  if grep -n ')page"' "$@" >&2; then
    echo "embed.sh: the line above would end the C++ string that holds it" >&2
    exit 1
  fi
  printf 'const std::string_view %s = R"page(' "$name"
  cat "$@"
  printf ')page";\n'
}

html=$1 css=$2
shift 2
cat <<'TEXT'
#include "tools/analyze/page/model_page_sources.h"

namespace mantissa {

TEXT
constant kPageHtml "$html"
constant kPageCss "$css"
constant kPageScript "$@"
echo "}  // namespace mantissa"
