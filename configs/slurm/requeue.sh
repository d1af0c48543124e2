# For the batch scripts of this folder: run_and_requeue COMMAND...
#
# Runs the command, which starts the ranks, and passes signals of Slurm on as SIGUSR1: the ranks then save a checkpoint and end
# with exit code 75. In that case the job goes back to the queue; its next start continues the training. Other codes end the job.
# A job that is being cancelled is not requeued.

stop_ranks() {
  echo "$(date '+%F %T') job $SLURM_JOB_ID: $1: the ranks are told to save and to leave"
  kill -USR1 "$ranks" 2>/dev/null
}

run_and_requeue() {
  local code=0
  trap 'stop_ranks SIGUSR1' USR1
  trap 'stop_ranks SIGTERM' TERM
  "$@" &
  ranks=$!
  while :; do # a signal ends wait, not the ranks
    wait "$ranks" && code=0 || code=$?
    kill -0 "$ranks" 2>/dev/null || break
  done
  echo "$(date '+%F %T') job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): exit code $code"
  if [[ $code == 75 && $(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID") == RUNNING ]]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60 # Slurm ends this script
  fi
  exit "$code"
}
