#!/bin/bash
#BSUB -J "sweep[1-2]"
#BSUB -n 1
#BSUB -R "span[ptile=1]"
#BSUB -W 00:10
#BSUB -wa USR1 -wt 2
#BSUB -r
#BSUB -Q "99"
#BSUB -o job-%J.%I.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: bsub < job.sh
run_dir=/home/user/runs/mnist-bsp
job=$LSB_JOBID.$LSB_JOBINDEX
rm -f "$run_dir/job-$job.exit"

finish() {  # the exit code stays beside the log: `paceline submit --wait` reads it
    echo "$1" >"$run_dir/job-$job.exit"
    exit "$1"
}

# What the command finds: software, variables, and where it was submitted from.
cd /home/user || finish 1
set -u

# What each task of the array adds to the command.
case $LSB_JOBINDEX in
    1) added=(--run-dir /home/user/runs/sweep/1 --set seed=1) ;;
    2) added=(--run-dir /home/user/runs/sweep/2 --set seed=2) ;;
    *) echo "paceline: there is no task $LSB_JOBINDEX" >&2; finish 2 ;;
esac

# LSF sends SIGUSR1 before the run limit and SIGUSR2 at it, SIGTERM by bkill.
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1 USR2
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM INT

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline train -n 1 mnist "${added[@]}" &
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
restarts=$(cat "$run_dir/job-$job.requeues" 2>/dev/null || echo 0)
if { [ "$code" -eq 75 ] || [ "$code" -eq 68 ]; } && [ -z "$cancelled" ]; then
    if [ "$restarts" -lt 10 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 10"
        echo "$((restarts + 1))" >"$run_dir/job-$job.requeues"
        exit 99  # by -Q LSF starts this script again
    fi
    echo "paceline: to go on, in $run_dir: bsub < job.sh"
fi

finish "$code"
