#!/bin/bash
# Two hosts on one machine, each with a network and a name of its own: two_hosts_test.sh PROGRAM
#
# mpirun starts a rank on each, and they train over TCP. The network is cut in mid-step: once so that packets vanish, once by
# taking a host's link down. The job must end on both hosts with the cause, and leave no process. When the network is back, the
# same command must end with the weights of a run that nobody disturbed. The switch is a third network namespace. This needs
# root or unprivileged user namespaces. If the kernel or a container provides neither, the test is skipped and says so.
set -euo pipefail
PATH+=:/usr/sbin:/sbin # Bazel's PATH lacks them

fail() {
  echo "two_hosts_test: $*" >&2
  exit 1
}

if [[ "$1" == --host ]]; then # as ssh: --host NAME COMMAND... runs the command on that host, without this environment
  host=$2
  shift 2
  exec env -i PATH="$PATH" ip netns exec "$host" unshare --uts "$BASH" -c \
    'hostname "$0"; export TMPDIR=/run/hosts/$0 OMP_NUM_THREADS=1; eval "$*"' "$host" "$@"
fi

if [[ "$1" != --inside ]]; then
  for tool in ip unshare mpirun mount ps strings; do command -v "$tool" >/dev/null || fail "'$tool' is not installed"; done
  namespaces=(unshare --mount --net --pid --ipc --uts --fork --kill-child)
  [[ $(id -u) == 0 ]] || namespaces+=(--user --map-root-user)
  if ! refusal=$("${namespaces[@]}" "$BASH" -c 'mount -t tmpfs tmpfs /run && ip netns add a && ip netns exec a true' 2>&1); then
    echo "two_hosts_test: skipped, no namespaces can be made here: $refusal"
    [[ -z "${XML_OUTPUT_FILE:-}" ]] ||
      echo '<testsuites><testsuite name="two_hosts_test"><testcase name="two_hosts_test"><skipped/></testcase></testsuite></testsuites>' >"$XML_OUTPUT_FILE"
    exit 0
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "${namespaces[@]}" --mount-proc "$BASH" "$(realpath "${BASH_SOURCE[0]}")" --inside "$(realpath "$1")" "$work"
  echo "two_hosts_test: passed"
  exit
fi

program=$2
work=$3
self=$(realpath "${BASH_SOURCE[0]}")

# Everything that the hosts make is gone with these namespaces.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
printf '127.0.0.1 localhost\n10.99.0.1 hosta\n10.99.0.2 hostb\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
ip netns add switch
ip -n switch link add bridge type bridge
ip -n switch link set bridge up
number=0
for host in hosta hostb; do
  number=$((number + 1))
  mkdir -p "/run/hosts/$host"
  ip netns add "$host"
  ip -n "$host" link set lo up
  ip link add eth0 netns "$host" type veth peer name "$host" netns switch
  ip -n "$host" addr add "10.99.0.$number/24" dev eth0
  ip -n "$host" link set eth0 up
  ip -n switch link set "$host" master bridge up
done

for i in {1..4000}; do echo -n "step $((i * i % 97)) of the loss "; done >"$work/text"
cat >"$work/config.yaml" <<CONFIG
model: {layers: 2, width: 32, heads: 4, context: 32, vocab: 256}
data: {train: [$work/text]}
train: {steps: 400, global_batch: 12, micro_batch: 2, log_interval: 100, eval_interval: 0, sample_tokens: 0, measure_peak: false}
optimizer: {lr: 3e-3, warmup_steps: 5}
checkpoint: {interval: 50}
watchdog: {deadline_s: 8}
device: cpu
CONFIG

start() { # start RUN: the command that a user gives on hosta
  "$BASH" "$self" --host hosta "exec mpirun --allow-run-as-root --bind-to none -np 2 --host hosta:1,hostb:1 \
    --mca plm_rsh_agent '$BASH $self --host' --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
    $program train $work/config.yaml train.run_dir=$work/$1"
}
weights_of() { (cd "$work/$1/checkpoints/step-00000400" && sha256sum -- * | grep -v manifest); }

start whole >"$work/whole.log" 2>&1 || fail "two hosts do not train: $(cat "$work/whole.log")"
grep -q "2 ranks (mpi)" "$work/whole.log" || fail "the ranks did not find each other: $(cat "$work/whole.log")"
[[ $(strings "$work/whole/black_box/rank-0001.box" | head -n 5) == *hostb* ]] || fail "rank 1 was not on hostb"
! grep -q "shared memory" "$work/whole.log" || fail "the ranks shared memory: $(cat "$work/whole.log")"
echo "passed: two hosts train"

processes() { ps -e -o pid=,stat=,comm= | grep -E " [^Z ]\S* +(${program##*/}|orted|mpirun)" || true; }

# disturb RUN CUT MEND CAUSE: the commands act on the network. The job must end by itself, with a log that matches CAUSE.
disturb() {
  local run=$1 cut=$2 mend=$3 cause=$4 code=0 job began second
  start "$run" >"$work/$run.log" 2>&1 &
  job=$!
  until [[ $(grep -c '"event":"step"' "$work/$run/metrics.jsonl" 2>/dev/null) -ge 60 ]]; do
    kill -0 "$job" 2>/dev/null || fail "$run ended before it was disturbed: $(cat "$work/$run.log")"
    sleep 0.01
  done
  [[ -n $(processes) ]] || fail "the processes of $run are not seen"
  $cut
  began=$SECONDS
  wait "$job" || code=$?
  echo "$run: mpirun's exit code is $code, $((SECONDS - began)) s after the network was cut"
  [[ $code != 0 && ! -e $work/$run/checkpoints/step-00000400 ]] || fail "$run was not disturbed: $(cat "$work/$run.log")"
  grep -Eq "$cause" "$work/$run.log" || fail "$run does not name the cause, $cause: $(cat "$work/$run.log")"
  for ((second = 0; second < 60; ++second)); do # the other host's daemon has the same patience
    [[ -n $(processes) ]] || break
    sleep 1
  done
  [[ -z $(processes) ]] || fail "$run left processes: $(processes)"
  "$program" postmortem "$work/$run" >"$work/postmortem" || fail "no report of $run"
  head -n 1 "$work/postmortem"
  # Each rank waited for the other, and none stood still.
  ! grep -q "stood still" "$work/postmortem" || fail "the report of $run blames a rank: $(cat "$work/postmortem")"
  $mend
  start "$run" >>"$work/$run.log" 2>&1 || fail "$run does not continue: $(cat "$work/$run.log")"
  [[ $(weights_of "$run") == "$(weights_of whole)" ]] || fail "$run did not end with the weights of an undisturbed run"
  echo "passed: $run"
}

disturb vanishing "ip -n switch link set hostb nomaster" "ip -n switch link set hostb master bridge" "watchdog: no progress"
disturb link_down "ip -n hostb link set eth0 down" "ip -n hostb link set eth0 up" "watchdog: no progress|rank . of 2, .* bytes: "
