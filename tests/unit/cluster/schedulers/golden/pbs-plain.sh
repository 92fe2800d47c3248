#!/bin/bash
#PBS -N mnist-bsp
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
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
cd /home/user || finish 1
set -u

# SIGUSR1 comes before the time limit, SIGTERM when the job is cancelled (qdel).
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM USR2

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
restarts=${PACELINE_REQUEUES:-0}
if { [ "$code" -eq 75 ] || [ "$code" -eq 68 ]; } && [ -z "$cancelled" ]; then
    if [ "$restarts" -lt 10 ]; then
        echo "paceline: back into the queue, time $((restarts + 1)) of at most 10"
        export PACELINE_REQUEUES="$((restarts + 1))"
        next=$(cd "$run_dir" &&
            qsub -v PACELINE_REQUEUES -W depend=afterany:"$PBS_JOBID" job.sh) &&
            echo "${next%%.*}" >"$run_dir/job-$job.next" && exit 75
    fi
    echo "paceline: to go on, in $run_dir: qsub job.sh"
fi

finish "$code"
