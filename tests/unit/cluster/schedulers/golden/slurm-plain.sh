#!/bin/bash
#SBATCH --job-name=mnist-bsp
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@90
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=job-%j.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: sbatch job.sh
run_dir=/home/user/runs/mnist-bsp
job=$SLURM_JOB_ID
rm -f "$run_dir/job-$job.exit"

finish() {  # the exit code stays beside the log: `paceline submit --wait` reads it
    echo "$1" >"$run_dir/job-$job.exit"
    exit "$1"
}

# What the command finds: software, variables, and where it was submitted from.
cd /home/user || finish 1
set -u

# Slurm sends SIGUSR1 before the time limit, SIGTERM when the job is cancelled.
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline train -n 1 mnist &
pid=$!
[ -z "$signalled" ] || kill -USR1 "$pid"  # it came early

code=127
while :; do
    signalled=
    wait "$pid"; status=$?
    case $status in 127 | -1) ;; *) code=$status ;; esac  # 127, -1: bash forgot it
    [ -n "$signalled" ] || break  # a signal ends `wait`, not the command
done

# 75: saved before the end. 68: a host was lost. Unless it was cancelled,
# the job goes on from its newest checkpoint.
restarts=${SLURM_RESTART_COUNT:-0}
if { [ "$code" -eq 75 ] || [ "$code" -eq 68 ]; } && [ -z "$cancelled" ]; then
    if [ "$restarts" -lt 10 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 10"
        scontrol requeue "$SLURM_JOB_ID" && exit 75  # Slurm starts this script again
    fi
    echo "paceline: to go on, in $run_dir: sbatch job.sh"
fi

finish "$code"
