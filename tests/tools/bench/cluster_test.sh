#!/bin/bash
# Refusals of tools/bench/cluster; no namespace stays behind.
set -uo pipefail

refuses() {  # STATUS TEXT COMMAND...
  local status=$1 text=$2 output
  shift 2
  output=$("$@" 2>&1)
  [[ $? == "$status" && "$output" == *"$text"* ]] && return
  echo "cluster_test: $*: expected status $status and '$text', got: $output" >&2
  exit 1
}

refuses 2 "no such program; build it" tools/bench/cluster --program /nowhere/mantissa
refuses 2 "invalid int value" tools/bench/cluster --steps many
if [[ $(id -u) != 0 ]]; then
  refuses 2 "need root" tools/bench/cluster --program /bin/true
elif ip netns add "mantissa_test$$" 2>/dev/null; then  # a program that fails at once
  ip netns del "mantissa_test$$"
  tools/bench/cluster --program /bin/false >/dev/null 2>&1 &
  cluster=$!
  wait "$cluster" && echo "cluster_test: a program that fails is no success" >&2 && exit 1
  left=$(ip netns list | grep "^mantissa$cluster" || true)
  [[ -z "$left" ]] || { echo "cluster_test: left behind: $left" >&2 && exit 1; }
else
  echo "cluster_test: this root may not make network namespaces: only the refusals are tested"
fi
