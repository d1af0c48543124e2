#!/bin/bash
# Starts a Slurm of one node and submits the batch scripts of a bundle to it: slurm_test.sh PROGRAM BUNDLE_TOOL
#
# Jobs are preempted, told to stop, stopped by Ctrl-C and cancelled; if they continue, they must end with the weights of a run that nobody
# stopped. All files are in one folder in /tmp; the daemons end with the test.
set -euo pipefail
PATH+=:/usr/sbin:/sbin # Bazel's PATH lacks them
program=$(realpath "$1")
bundle_tool=$(realpath --no-symlinks "$2") # beside it are the files that it copies
work=$(mktemp -d -p /tmp) # a short path: it holds a Unix socket
export SLURM_CONF=$work/slurm.conf
unset HOME

fail() {
  echo "slurm_test: $*" >&2
  tail -n 30 "$work"/*.log >&2 || true
  exit 1
}

clean_up() {
  scancel --user="$(id -un)" 2>/dev/null || true
  local file
  for file in slurmd slurmctld munged; do
    [[ ! -f $work/$file.pid ]] || kill "$(cat "$work/$file.pid")" 2>/dev/null || true
  done
  sleep 1
  rm -rf "$work"
}
trap clean_up EXIT

# wait_for SECONDS WHAT COMMAND...: until the command succeeds
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || fail "waited in vain for $what"
    sleep 0.1
  done
}

start_slurm() {
  local tool host port
  for tool in munged slurmctld slurmd sbatch; do
    command -v "$tool" >/dev/null || fail "'$tool' is not installed; tools/setup --tests installs it (Debian: slurm-wlm, munge)"
  done
  host=$(hostname -s)
  port=$((20000 + $$ % 10000 * 2))
  mkdir "$work/state" "$work/spool"
  (umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
  chmod 755 "$work"
  munged --force --key-file="$work/munge.key" --socket="$work/munge.sock" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munge.seed"
  cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
JobRequeue=1
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 CoresPerSocket=2 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=$host MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
CONF
  # Two GPUs in name only: jobs count them, nobody opens them.
  printf 'Name=gpu File=%s\n' /dev/null /dev/zero >"$work/gres.conf"
  slurmctld -f "$SLURM_CONF"
  slurmd -f "$SLURM_CONF" -N "$host"
  wait_for 60 "the node" bash -c 'sinfo --noheader --format=%T | grep -q idle'
}

prepare() { # a bundle and a configuration
  export MANTISSA_ROOT=$work/root OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  "$bundle_tool" --program "$program" --output "$MANTISSA_ROOT" >"$work/bundle.log" 2>&1 || fail "no bundle was made"
  local i
  for i in {1..4000}; do echo -n "step $((i * i % 97)) of the loss "; done >"$work/text"
  cat >"$work/config.yaml" <<CONFIG
model: {layers: 2, width: 32, heads: 4, context: 32, vocab: 256}
data: {train: [$work/text]}
train: {steps: 100, global_batch: 12, micro_batch: 2, log_interval: 500, eval_interval: 0, sample_tokens: 0, measure_peak: false}
optimizer: {lr: 3e-3, warmup_steps: 5}
checkpoint: {interval: 0}
device: cpu
CONFIG
}

# linger RUN SECONDS: from step 21 on, a start of this run sleeps so long in each step. It is then not over when Slurm stops it,
# however fast the machine is.
linger() {
  { cat "$work/config.yaml" && echo "test: {faults: [{kind: sleep, rank: 0, step: 21, steps: 80, seconds: $2}]}"; } >"$work/$1.yaml"
}
hurry() { cp "$work/config.yaml" "$work/$1.yaml"; } # its next start does not

# submit SCRIPT RUN [OPTION...]: prints the job's number. The log is RUN.log. Any run but `whole` lingers.
submit() {
  local script=$1 run=$2
  shift 2
  if [[ $run == whole ]]; then hurry whole; elif [[ ! -e $work/$run.yaml ]]; then linger "$run" 0.3; fi
  sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output="$work/$run.log" --chdir="$work" "$@" \
    "$MANTISSA_ROOT/configs/slurm/$script" "$work/$run.yaml" "train.run_dir=$work/$run"
}

state_is() { scontrol --oneliner show job "$1" | grep -qE "JobState=($2) "; }
steps_done() { [[ $(grep -c '"event":"step"' "$work/$1/metrics.jsonl") -ge 20 ]]; }
weights_of() { (cd "$work/$1/checkpoints/step-00000100" && sha256sum -- * | grep -v manifest); }

finish() { # finish JOB RUN: it completes, with the weights of the run `whole`
  wait_for 120 "the end of job $1 ($2)" state_is "$1" "COMPLETED|FAILED|CANCELLED|NODE_FAIL|TIMEOUT"
  state_is "$1" COMPLETED || fail "job $1 ($2) did not complete: $(scontrol --oneliner show job "$1")"
  [[ $2 == whole || $(weights_of "$2") == "$(weights_of whole)" ]] || fail "the weights of $2 are not those of an uninterrupted run"
  echo "passed: $2"
}

# Slurm lets a requeued job wait for two minutes; a node refuses a job that it ended in the same second.
continue_requeued() { # continue_requeued JOB RUN CAUSE
  wait_for 60 "the requeue of job $1 ($2)" state_is "$1" PENDING
  grep -q "stopped after step .*: $3, on rank" "$work/$2.log" || fail "$2 does not name $3 as the cause"
  [[ ! -e $work/$2/checkpoints/step-00000100 ]] || fail "$2 was at its end before it was stopped"
  hurry "$2"
  scontrol update "JobId=$1" StartTime=now+3
  finish "$1" "$2"
}

start_slurm
prepare
finish "$(submit cpu.sbatch whole)" whole

# preempt JOB RUN: a job of the partition with priority takes the node; Slurm sends a signal, and requeues the job.
preempt() {
  wait_for 60 "steps of job $1" steps_done "$2"
  local high
  high=$(sbatch --parsable --partition=high --ntasks=2 --output=/dev/null --wrap true)
  wait_for 60 "the job with priority" state_is "$high" COMPLETED
}

# Slurm's default: SIGTERM to the tasks.
job=$(submit gpu.sbatch preempted --gpus-per-node=2)
preempt "$job" preempted
continue_requeued "$job" preempted SIGTERM

# On several nodes, Slurm ends mpirun's daemons along with the ranks: mpirun has another exit code than they.
mkdir -p "$work/lost/bin"
cp -r "$MANTISSA_ROOT/configs" "$work/lost"
ln -s "$program" "$work/lost/bin/mantissa"
printf '#!/bin/sh\nshift 2\nsrun --mpi=pmix --cpus-per-task=1 "$@" || exit 205\n' >"$work/lost/bin/mpirun"
chmod 755 "$work/lost/bin/mpirun"
job=$(MANTISSA_ROOT=$work/lost submit mpirun.sbatch lost_daemon)
preempt "$job" lost_daemon
continue_requeued "$job" lost_daemon SIGTERM

# Without preemption, such a code ends the job.
printf '#!/bin/sh\nexit 205\n' >"$work/lost/bin/mpirun"
job=$(MANTISSA_ROOT=$work/lost submit mpirun.sbatch failing)
wait_for 60 "the end of job $job" state_is "$job" FAILED
grep -q "start 1: exit code 205" "$work/failing.log" || fail "the job of an mpirun with exit code 205 ended otherwise"
echo "passed: failing"

# SIGUSR1 before the ranks can take it kills them, or srun and mpirun drop it: the job is requeued all the same.
printf '#!/bin/sh\nkill -USR1 $$\n' >"$work/lost/bin/mpirun"
job=$(MANTISSA_ROOT=$work/lost submit mpirun.sbatch killed_early)
wait_for 60 "the end of the ranks of job $job" grep -q "start 1: exit code 138" "$work/killed_early.log"
wait_for 60 "the requeue of job $job" state_is "$job" PENDING
scancel "$job"
printf '#!/bin/bash\ntrap "((++signals > 1)) && exit 75" USR1\ntouch told_early\nwhile :; do sleep 0.1; done\n' >"$work/lost/bin/mpirun"
job=$(MANTISSA_ROOT=$work/lost submit mpirun.sbatch told_early)
wait_for 60 "the ranks of job $job" test -e "$work/told_early"
scancel --batch --signal=USR1 "$job"
wait_for 60 "the requeue of job $job" state_is "$job" PENDING
grep -q "start 1: exit code 75" "$work/told_early.log" || fail "the job whose first SIGUSR1 was dropped ended otherwise"
scancel "$job"
echo "passed: early signals"

# A script that is not submitted from the bundle says where it looked.
mkdir "$work/sources"
cp -r "$MANTISSA_ROOT/configs" "$work/sources"
job=$(MANTISSA_ROOT=$work/sources submit cpu.sbatch elsewhere)
wait_for 60 "the end of job $job" state_is "$job" FAILED
grep -q "no bundle in $work/sources: submit from the folder of the bundle" "$work/elsewhere.log" || fail "a job without a bundle does not say so"
echo "passed: elsewhere"

# SIGUSR1 to the batch script, as from --signal=B:USR1@300; the script requeues its job. That of a short job comes too early.
job=$(submit mpirun.sbatch signalled --time=10)
wait_for 60 "steps of job $job" steps_done signalled
scancel --batch --signal=USR1 "$job"
continue_requeued "$job" signalled SIGUSR1
grep -q "s before the time limit: give a longer --time" "$work/signalled.log" || fail "a short job is not told to be longer"
read -r left advised <<<"$(sed -nE 's/.* ([0-9]+) s before the time limit.*USR1@([0-9]+).*/\1 \2/p' "$work/signalled.log" | head -1)"
((advised < left)) || fail "the advised signal comes $advised s before the limit, and the one that was too early $left s"
if grep -A9 "start 1: exit code 75" "$work/signalled.log" | grep -E "SIGTERM|Terminated"; then
  fail "the end of a requeued job's script looks like another signal to the ranks"
fi

# A node may refuse the step of a job that starts again at once, and srun has exit code 0 then. Whether it does depends on the
# second, and in some it refuses the batch script as well, so that Slurm ends the job: here, the second start has no step.
printf '#!/bin/sh\n[ "$SLURM_RESTART_COUNT" != 1 ] || exit 0\nshift 2\nexec srun --mpi=pmix --cpus-per-task=1 "$@"\n' >"$work/lost/bin/mpirun"
job=$(MANTISSA_ROOT=$work/lost submit mpirun.sbatch refused_step)
wait_for 60 "steps of job $job" steps_done refused_step
scancel --batch --signal=USR1 "$job"
wait_for 60 "the requeue of job $job" state_is "$job" PENDING
hurry refused_step
scontrol update "JobId=$job" StartTime=now+3
wait_for 60 "the second start of job $job" grep -q "start 2: exit code 0" "$work/refused_step.log"
wait_for 60 "the second requeue of job $job" state_is "$job" PENDING
grep -q "the run is not done, and goes back to the queue" "$work/refused_step.log" || fail "a job without its step is requeued without a reason"
scontrol update "JobId=$job" StartTime=now+3
finish "$job" refused_step

# With this setting, preemption sends SIGUSR1 to the batch script, too.
echo "SlurmctldParameters=preempt_send_user_signal" >>"$SLURM_CONF"
scontrol reconfigure
job=$(submit mpirun.sbatch preempted_mpirun)
preempt "$job" preempted_mpirun
continue_requeued "$job" preempted_mpirun SIGUSR1
! grep -q "longer --time" "$work/preempted_mpirun.log" || fail "a job of a day is told to be longer"

# A job that is cancelled saves its state, and stays cancelled. Slurm sends SIGTERM to all its processes, OpenMPI's among them.
for script in cpu mpirun; do
  run=cancelled_$script
  job=$(submit $script.sbatch $run)
  wait_for 60 "steps of job $job" steps_done $run
  scancel "$job"
  wait_for 60 "the end of job $job" state_is "$job" CANCELLED
  wait_for 60 "the end of the script of job $job" grep -q "start 1: exit code" "$work/$run.log"
  grep -q "start 1: exit code 75" "$work/$run.log" || fail "the job that was cancelled ($run) did not end with exit code 75"
  grep -q "stopped after step" "$work/$run.log" || fail "the job that was cancelled ($run) saved nothing"
  compgen -G "$work/$run/checkpoints/step-*" >/dev/null || fail "the job that was cancelled ($run) has no checkpoint"
  echo "passed: $run"
done

# One task of an array is told to stop: it alone is requeued. The other lingers to its end.
linger sweep 0.1
job=$(submit sweep.sbatch sweep --array=0-1 --cpus-per-task=1 --output="$work/sweep-%a.log")
second=runs/sweep-$job/lr-3e-4
wait_for 120 "steps of task 1 of job $job" steps_done "$second"
scancel --batch --signal=USR1 "${job}_1"
wait_for 60 "the requeue of task 1 of job $job" grep -q "start 1: exit code 75" "$work/sweep-1.log"
wait_for 60 "the requeue of task 1 of job $job" state_is "${job}_1" PENDING
hurry sweep
scontrol update "JobId=${job}_1" StartTime=now+3
wait_for 120 "the end of the sweep" bash -c "! squeue --noheader | grep -q ."
grep -q "start 2: exit code 0" "$work/sweep-1.log" || fail "task 1 of the sweep did not continue"
grep -q "start 1: exit code 0" "$work/sweep-0.log" || fail "task 0 of the sweep was started more than once"
for rate in 1e-4 3e-4; do
  [[ -d $work/runs/sweep-$job/lr-$rate/checkpoints/step-00000100 ]] || fail "the sweep has no result for rate $rate"
done
echo "passed: sweep"

# By hand: Ctrl-C, then the same line again.
by_hand() {
  env --default-signal=INT "$MANTISSA_ROOT/configs/slurm/interactive.sh" --cpus-per-task=1 -- train "$work/interactive.yaml" \
    "train.run_dir=$work/interactive"
}
linger interactive 0.3
by_hand >"$work/interactive.log" 2>&1 &
job=$!
wait_for 60 "steps by hand" steps_done interactive
pkill -INT -P "$(pgrep -P "$job" salloc)" srun || fail "no srun below interactive.sh"
wait "$job" && code=0 || code=$?
[[ $code == 75 ]] || fail "Ctrl-C to interactive.sh gave exit code $code: $(cat "$work/interactive.log")"
hurry interactive
by_hand >>"$work/interactive.log" 2>&1 || fail "interactive.sh: $(cat "$work/interactive.log")"
[[ $(weights_of interactive) == "$(weights_of whole)" ]] || fail "the weights of interactive.sh are not those of an uninterrupted run"
if output=$("$MANTISSA_ROOT/configs/slurm/interactive.sh" train 2>&1); then fail "interactive.sh without --: $output"; fi
echo "passed: interactive"

# Tasks that are alone in MPI would train a model each.
if output=$(srun --mpi=none --ntasks=2 "$MANTISSA_ROOT/bin/mantissa" train "$work/config.yaml" 2>&1); then
  fail "two tasks without PMIx trained: $output"
fi
[[ $output == *"srun --mpi=pmix"* ]] || fail "two tasks without PMIx are not told how to start: $output"
echo "passed: without PMIx"
