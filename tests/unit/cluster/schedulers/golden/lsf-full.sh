#!/bin/bash
#BSUB -J "digits"
#BSUB -n 16
#BSUB -R "span[ptile=8]"
#BSUB -R "rusage[mem=6000MB/host]"
#BSUB -gpu "num=2"
#BSUB -W 36:00
#BSUB -wa USR1 -wt 5
#BSUB -q long
#BSUB -P physics
#BSUB -w "done(17) && done(18)"
#BSUB -r
#BSUB -Q "99"
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
type module >/dev/null 2>&1 || . /etc/profile  # a batch shell may lack it
module load gcc/12 || finish 1
module load openmpi || finish 1
export OMP_PROC_BIND=false
export GREETING='it'"'"'s $HOME'
cd /home/user || finish 1
set -u

# LSF sends SIGUSR1 before the run limit and SIGUSR2 at it, SIGTERM by bkill.
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1 USR2
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM INT

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline train -n 8 --threads 2 mnist --target 'val_accuracy>=0.97' &
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
    if [ "$restarts" -lt 3 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 3"
        echo "$((restarts + 1))" >"$run_dir/job-$job.requeues"
        exit 99  # by -Q LSF starts this script again
    fi
    echo "paceline: to go on, in $run_dir: bsub < job.sh"
fi

finish "$code"
