#!/bin/bash
#$ -S /bin/bash
#$ -N digits
#$ -pe orte 16
#$ -l mem_free=750M
#$ -l gpu=2
#$ -l h_rt=36:00:00
#$ -q long
#$ -P physics
#$ -hold_jid 17,18
#$ -r y
#$ -notify
#$ -cwd
#$ -j y
#$ -o job-$JOB_ID.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: qsub job.sh
run_dir=/home/user/runs/mnist-bsp
job=$JOB_ID
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

# SIGUSR1 comes before the time limit, SIGUSR2 before Grid Engine kills the job (qdel).
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' USR2 TERM

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline train -n 8 --threads 2 mnist --target 'val_accuracy>=0.97' &
pid=$!
[ -z "$signalled" ] || kill -USR1 "$pid"  # it came early

# The warning, in good time before the limit.
(
    trap '' USR1 USR2
    trap 'kill $!; exit' TERM
    sleep 129300 &
    wait $! && kill -USR1 $$
) &
timer=$!

code=127
while :; do
    signalled=
    wait "$pid"; status=$?
    case $status in 127 | -1) ;; *) code=$status ;; esac  # 127, -1: bash forgot it
    [ -n "$signalled" ] || break  # a signal ends `wait`, not the command
done
kill "$timer" 2>/dev/null

# 75: saved before the end. 68: a host was lost. Unless it was cancelled,
# the job goes on from its newest checkpoint.
restarts=$(cat "$run_dir/job-$job.requeues" 2>/dev/null || echo 0)
if { [ "$code" -eq 75 ] || [ "$code" -eq 68 ]; } && [ -z "$cancelled" ]; then
    if [ "$restarts" -lt 3 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 3"
        echo "$((restarts + 1))" >"$run_dir/job-$job.requeues"
        exit 99  # Grid Engine starts this script again
    fi
    echo "paceline: to go on, in $run_dir: qsub job.sh"
fi

finish "$code"
