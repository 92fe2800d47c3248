#!/bin/bash
#BSUB -J "mine"
#BSUB -n 1
#BSUB -R "span[ptile=1]"
#BSUB -o job-%J.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: bsub < job.sh
run_dir=/home/user/runs/mnist-bsp
job=$LSB_JOBID
rm -f "$run_dir/job-$job.exit"

finish() {  # the exit code stays beside the log: `paceline submit --wait` reads it
    echo "$1" >"$run_dir/job-$job.exit"
    exit "$1"
}

# What the command finds: software, variables, and where it was submitted from.
cd /home/user || finish 1
set -u

# LSF sends SIGUSR1 before the run limit and SIGUSR2 at it, SIGTERM by bkill.
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1 USR2
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM INT

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline run -n 1 -- mine.py &
pid=$!
[ -z "$signalled" ] || kill -USR1 "$pid"  # it came early

code=127
while :; do
    signalled=
    wait "$pid"; status=$?
    case $status in 127 | -1) ;; *) code=$status ;; esac  # 127, -1: bash forgot it
    [ -n "$signalled" ] || break  # a signal ends `wait`, not the command
done

finish "$code"
