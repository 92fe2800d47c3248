#!/bin/bash
#PBS -N digits
#PBS -l select=2:ncpus=8:mpiprocs=4:ompthreads=2:mem=6000mb:ngpus=2
#PBS -l place=scatter
#PBS -l walltime=36:00:00
#PBS -q long
#PBS -A physics
#PBS -W depend=afterok:17:18
#PBS -r y
#PBS -S /bin/bash
#PBS -j oe
#PBS -o pbs.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: qsub job.sh
run_dir=/home/user/runs/mnist-bsp
job=${PBS_JOBID%%[.[]*}
exec >>"$run_dir/job-$job.log" 2>&1  # PBS knows no number of the job in -o
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

# SIGUSR1 comes before the time limit, SIGTERM when the job is cancelled (qdel).
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM USR2

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
restarts=${PACELINE_REQUEUES:-0}
if { [ "$code" -eq 75 ] || [ "$code" -eq 68 ]; } && [ -z "$cancelled" ]; then
    if [ "$restarts" -lt 3 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 3"
        export PACELINE_REQUEUES="$((restarts + 1))"
        next=$(cd "$run_dir" &&
            qsub -v PACELINE_REQUEUES -W depend=afterany:"$PBS_JOBID" job.sh) &&
            echo "${next%%.*}" >"$run_dir/job-$job.next" && exit 75
    fi
    echo "paceline: to go on, in $run_dir: qsub job.sh"
fi

finish "$code"
