#!/bin/bash
# Writes the sources of a page as a C++ constant to standard output: embed.sh HEADER CONSTANT HTML -- CSS... -- JS...
# HEADER declares CONSTANT as `extern const PageSources` (page_document.h); files of a kind are put behind each other.
set -euo pipefail

text() {  # FIELD FILE...
  local field=$1
  shift
  if grep -n ')page"' "$@" >&2; then
    echo "embed.sh: the line above would end the C++ string that holds it" >&2
    exit 1
  fi
  printf '    .%s = R"page(' "$field"
  cat "$@"
  printf ')page",\n'
}

header=$1 constant=$2 html=$3
shift 4
styles=()
while [ "$1" != -- ]; do
  styles+=("$1")
  shift
done
shift
printf '#include "%s"\n\nnamespace mantissa {\n\nconst PageSources %s = {\n' "$header" "$constant"
text html "$html"
text style "${styles[@]}"
text script "$@"
printf '};\n\n}  // namespace mantissa\n'
