# For the batch scripts of this folder: run_and_requeue COMMAND...
#
# Runs the command, which starts the ranks, and passes signals of Slurm on as SIGUSR1: the ranks then save a checkpoint and end
# with exit code 75. In that case the job goes back to the queue; its next start continues the training. So it does after code
# 138 of a training, where SIGUSR1 came before the ranks could take it, and after code 0 of a later start whose ranks did not
# start. Other codes end the job, except while it is being preempted: mpirun then has a code of its own, since Slurm ends its
# daemons on the other nodes.
# A job that is being cancelled is not requeued.

ranks= # the process that starts them
told= # to save and to leave
reminder= # the process that repeats it
job=$SLURM_JOB_ID
[[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # the first's ID stands for the whole array

retry() { # COMMAND...: several times, until it succeeds: Slurm's controller may be busy, or start anew
  local pause
  for pause in 0 1 2 4; do sleep "$pause" && "$@" && return; done
  return 1
}

is_preempted() { # since its last start
  local shown
  shown=$(SLURM_TIME_FORMAT=standard retry scontrol --oneliner show job "$job")
  [[ $shown =~ \ StartTime=([0-9T:-]+)\ .*\ PreemptTime=([0-9T:-]+)\  && ! ${BASH_REMATCH[2]} < ${BASH_REMATCH[1]} ]]
}

# Again and again: srun and mpirun drop a signal that comes while they start the ranks. To the ranks, several are as one.
tell_ranks() {
  kill -USR1 "$ranks" 2>/dev/null
  [[ -z $reminder ]] || return 0
  for _ in {1..12}; do sleep 5 && kill -USR1 "$ranks" || exit; done 2>/dev/null &
  reminder=$!
}

stop_ranks() {
  echo "$(date '+%F %T') job $job: $1: the ranks are told to save and to leave"
  told=yes
  [[ -z $ranks ]] || tell_ranks
  [[ $1 == SIGUSR1 ]] && ! is_preempted || return # preemption brings the end near, whatever --time was
  local end left
  end=$(date --date="$(SLURM_TIME_FORMAT=standard squeue --noheader --format=%e --jobs="$job")" +%s 2>/dev/null) || return
  left=$((end - $(date +%s)))
  if ((SECONDS < left && left < 900)); then # farther from the end, it is not of the time limit
    echo "job $job: that was $SECONDS s after the start and $left s before the time limit: give a longer --time," \
      "or a signal nearer to it: --signal=B:USR1@$((left / 2))"
  fi
}

# Finds PROGRAM train CONFIG SETTINGS..., the end of the command: how to call the program here, within its container if it has
# one but without a launcher there, and the words after `train`. Fails for other verbs.
find_training() {
  program=() training=()
  local container= launcher=
  while [[ $# -gt 1 ]]; do
    if [[ "${1##*/} $2" =~ ^(apptainer|docker|podman|singularity)\ (exec|run)$ ]]; then
      container=yes program=()
    elif [[ -n $container && ${1##*/} =~ ^mpi(run|exec)$ ]]; then
      launcher=${#program[@]}
    fi
    [[ -n $container ]] || program=()
    program+=("$1")
    shift
    if [[ $1 == train && ${program[-1]##*/} == mantissa* ]]; then
      training=("${@:2}")
      [[ -z $launcher ]] || program=("${program[@]:0:launcher}" "${program[-1]}")
      return 0
    fi
  done
  return 1
}

# Whether the run is stopped, was killed, or ended with fewer steps than the command asks for. A node refuses a step while it still
# ends the start before, and srun has exit code 0 then.
is_unfinished() {
  find_training "$@" || return 1
  local config run shown state=0
  if ! config=$("${program[@]}" config "${training[@]}" 2>/dev/null); then
    echo "job $job: whether the run is done is not known: \`${program[*]} config\` does not run here"
    return 1
  fi
  run=$(sed -n 's/^ *run_dir: *//p' <<<"$config" | sed '/^"/{s/^"\(.*\)"$/\1/; s/\\\(.\)/\1/g; }; q')
  [[ -e $run/lock || -e $run/metrics.prom ]] || return 0 # no rank came as far as its folder
  shown=$("${program[@]}" status "$run" 2>/dev/null) || state=$?
  case $state in 75 | 12 | 10 | 11) return 0 ;; esac # no rank is left: what seems to run was killed a moment ago, on another node
  [[ $state == 0 && $config =~ \ stop_at_step:\ 0 && $shown =~ ^done:\ step\ [0-9]+\ of\ ([0-9]+) ]] || return 1
  ((BASH_REMATCH[1] < $(sed -n '/^train:/,/^[^ ]/s/^  steps: \([0-9]*\).*/\1/p' <<<"$config")))
}

run_and_requeue() {
  local code=0
  trap 'stop_ranks SIGUSR1' USR1
  trap 'stop_ranks SIGTERM' TERM
  "$@" &
  ranks=$!
  [[ -z $told ]] || tell_ranks
  while :; do # a signal ends wait, not the ranks
    wait "$ranks" && code=0 || code=$?
    kill -0 "$ranks" 2>/dev/null || break
  done
  if ((code > 128)); then # perhaps of a signal that came just before the end; 127: the shell has forgotten the process
    local again=0
    wait "$ranks" 2>/dev/null || again=$?
    ((again == 127)) || code=$again
  fi
  echo "$(date '+%F %T') job $job, start $((${SLURM_RESTART_COUNT:-0} + 1)): exit code $code"
  [[ -z $reminder ]] || { kill "$reminder" && wait "$reminder"; } 2>/dev/null
  if ((code == 0 && ${SLURM_RESTART_COUNT:-0} > 0)) && is_unfinished "$@"; then
    echo "job $job: the run is not done, and goes back to the queue: its ranks did not start"
    code=75
  fi
  if [[ $code != 0 ]] && { [[ $code == 75 ]] || { [[ $code == 138 ]] && find_training "$@"; } || is_preempted; }; then
    local state
    state=$(retry squeue --noheader --format=%T --jobs="$job") || state=unknown
    if [[ $state == RUNNING ]]; then
      trap - TERM
      retry scontrol requeue "$job" && exec sleep 60 # Slurm ends this script by SIGTERM
      state=unknown
    fi
    [[ $state != unknown ]] || echo "job $job is not requeued, since Slurm did not answer; to continue: scontrol requeue $job"
  fi
  exit "$code"
}
