#!/bin/sh
# Runs inside the bare room of bundle_test.sh, which contains only this shell: bare_room.sh BUNDLE RESULTS [older]
# "older": the system's glibc is older than the bundle needs.
set -eu
bundle=$1
results=$2 # prefix of all written folders and files
system=${3:-usual}

fail() {
  echo "bare_room: $*" >&2
  exit 1
}

# expect TEXT COMMAND...: the command must succeed and print TEXT; otherwise shows its output.
expect() {
  text=$1
  shift
  if output=$("$@" 2>&1); then status=0; else status=$?; fi
  [ "$status" = 0 ] || fail "status $status from: $*
$output"
  case $output in *"$text"*) ;; *) fail "no '$text' in the output of: $*
$output" ;; esac
  echo "passed: $*"
}

train() { # train RUN LAUNCHER...: trains a tiny model to its last step and checkpoint
  run=$1
  shift
  set -- "$@" "$bundle/bin/mantissa" train "$bundle/configs/quickstart.yaml" data.train=/text "train.run_dir=$results-$run" \
    model.layers=1 model.width=32 model.heads=2 model.context=16 train.steps=3 train.global_batch=2 train.micro_batch=1 \
    train.eval_interval=0 train.sample_tokens=0 optimizer.warmup_steps=1 checkpoint.interval=3
  expect "$ranks" "$@"
  whole=$output
  case $output in *"checkpoint saved to $results-$run"*) ;; *) fail "no checkpoint: $output" ;; esac
  output=${output#*local probe returned unhandled shell} # the user has no entry that names a shell
  output=${output#*"libcuda.so.1 was not found"}  # our own line
  case $output in *WARNING* | *ORTE_ERROR* | *"not found"*) fail "OpenMPI complains: $output" ;; esac
  [ -s "$results-$run/metrics.jsonl" ] || fail "no metrics in $results-$run"
}

[ -z "${HOME+set}" ] || fail "HOME is set: the room is not bare"
command -v ls >/dev/null && fail "there is an 'ls': the room is not bare"
export OMP_NUM_THREADS=1

if [ "$system" = older ] && MANTISSA_GLIBC=node "$bundle/bin/mantissa" --version >/dev/null 2>&1; then
  fail "the program starts with the system's glibc: it is not an older one"
fi
expect "width: 320" "$bundle/bin/mantissa" config "$bundle/configs/quickstart.yaml"
if "$bundle/bin/mantissa" config /absent.yaml 2>/dev/null; then status=0; else status=$?; fi
[ "$status" = 2 ] || fail "the launcher turned exit code 2 into $status"

ranks="1 rank (local)"
train one
expect "" "$bundle/bin/mantissa" generate "$results-one" --prompt "a" --tokens 4
ranks="2 ranks (mpi)"
train two "$bundle/bin/mpirun" -np 2 --oversubscribe
expect "done" "$bundle/bin/mantissa" postmortem "$results-two"
ranks="1 rank (mpi)"
train alone "$bundle/bin/mpirun" -np 1

# SIGTERM to mpirun: the ranks save and leave with code 75. Without programs, the shell waits in a loop.
run=$results-stopped
set -- "$bundle/bin/mantissa" train "$bundle/configs/quickstart.yaml" data.train=/text "train.run_dir=$run" \
  model.layers=1 model.width=32 model.heads=2 model.context=16 train.global_batch=2 train.micro_batch=1 \
  train.eval_interval=0 train.sample_tokens=0 checkpoint.interval=0 train.steps=1000000
"$bundle/bin/mpirun" -np 2 --oversubscribe "$@" >"$run.log" 2>&1 &
job=$!
until [ -s "$run/metrics.jsonl" ]; do
  kill -0 "$job" 2>/dev/null || fail "the run that is to be stopped did not start: $(while read -r line; do echo "$line"; done <"$run.log")"
done
kill -TERM "$job"
i=0
while [ $i -lt 20000 ]; do i=$((i + 1)); done
kill -TERM "$job" 2>/dev/null || : # a scheduler may send it twice
if wait "$job"; then status=0; else status=$?; fi
log=$(while read -r line; do echo "$line"; done <"$run.log")
[ "$status" = 75 ] || fail "a run that was stopped by SIGTERM left with $status: $log"
case $log in *"checkpoint saved to $run"*"stopped after step"*SIGUSR1*) ;; *) fail "no checkpoint, or no cause: $log" ;; esac
echo "passed: SIGTERM to mpirun"

# Libraries of the same names from a loaded environment module, useless here, change nothing. Nor does its OpenMPI.
for name in libmpi.so.40 libopen-rte.so.40 libopen-pal.so.40 libpmix.so.2 libdnnl.so.2 libstdc++.so.6 libgomp.so.1; do
  echo "not a library" >"/tmp/$name"
done
export LD_LIBRARY_PATH=/tmp OPAL_PREFIX=/absent OPAL_PKGLIBDIR=/absent
ranks="2 ranks (mpi)"
train module "$bundle/bin/mpirun" -np 2 --oversubscribe
unset LD_LIBRARY_PATH OPAL_PREFIX OPAL_PKGLIBDIR

# Two nodes. Like ssh, the remote shell passes none of this environment on and splits its command line at spaces. Each
# node has its own folder for temporary files: OpenMPI's daemons of one job on the same machine create the same folders and
# files at the same time, and otherwise one start in twenty fails.
case $bundle in *" "*) exit 0 ;; esac
variables="OPAL_PREFIX OPAL_LIBDIR OPAL_PKGLIBDIR OPAL_SYSCONFDIR OPAL_PKGDATADIR PMIX_PREFIX PMIX_LIBDIR PMIX_PKGLIBDIR
PMIX_SYSCONFDIR UCX_MODULE_DIR HWLOC_PLUGINS_PATH OMPI_MCA_plm_rsh_agent LD_LIBRARY_PATH"
agent="$results-agent"
{
  echo "node=\$1; shift; echo \"\$*\" >$results-started-\$node; unset" $variables
  echo "export TMPDIR=/tmp/\$node"
  echo "eval \"\$*\""
} >"$agent"
PATH=/bin
export PATH
# OpenMPI does not use loopback between nodes by default, and the room has no other network.
train nodes "$bundle/bin/mpirun" -np 2 --host nodea:1,nodeb:1 --mca plm_rsh_agent "/bin/sh $agent" \
  --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo
case $system-$whole in
  older-*"name service of the node"* | usual-*) ;;
  *) fail "the node's name service was not asked: $whole" ;;
esac
for node in nodea nodeb; do
  [ -s "$results-started-$node" ] || fail "nothing was started on $node"
done
