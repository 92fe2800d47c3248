#!/bin/bash
#PBS -N sweep
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l place=scatter
#PBS -l walltime=00:10:00
#PBS -J 1-2
#PBS -r y
#PBS -S /bin/bash
#PBS -j oe
#PBS -o pbs.^array_index^.log

# Written by `paceline submit`. A job that was stopped goes on from its checkpoint when
# this script is submitted again, from the directory it lies in: qsub job.sh
run_dir=/home/user/runs/mnist-bsp
job=${PBS_JOBID%%[.[]*}.$PBS_ARRAY_INDEX
exec >>"$run_dir/job-$job.log" 2>&1  # PBS knows no number of the job in -o
rm -f "$run_dir/job-$job.exit"

finish() {  # the exit code stays beside the log: `paceline submit --wait` reads it
    echo "$1" >"$run_dir/job-$job.exit"
    exit "$1"
}

# What the command finds: software, variables, and where it was submitted from.
cd /home/user || finish 1
set -u

# What each task of the array adds to the command.
case $PBS_ARRAY_INDEX in
    1) added=(--run-dir /home/user/runs/sweep/1 --set seed=1) ;;
    2) added=(--run-dir /home/user/runs/sweep/2 --set seed=2) ;;
    *) echo "paceline: there is no task $PBS_ARRAY_INDEX" >&2; finish 2 ;;
esac

# SIGUSR1 comes before the time limit, SIGTERM when the job is cancelled (qdel).
# Either lets Paceline save and end; SIGUSR1 does no harm if it comes twice.
pid= signalled= cancelled=
trap 'signalled=yes; kill -USR1 $pid 2>/dev/null' USR1
trap 'signalled=yes; cancelled=yes; kill -USR1 $pid 2>/dev/null' TERM USR2

# The command, in the background: bash heeds signals only while it waits.
/home/user/venv/bin/python -m paceline train -n 1 mnist "${added[@]}" &
pid=$!
[ -z "$signalled" ] || kill -USR1 "$pid"  # it came early

# The warning, in good time before the limit.
(
    trap '' USR1 USR2
    trap 'kill $!; exit' TERM
    sleep 510 &
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

finish "$code"
