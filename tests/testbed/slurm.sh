#!/usr/bin/env bash
# A real Slurm on this machine: munged, slurmctld and a slurmd on each of the hosts that hosts.sh has made.
#   slurm.sh up DIR NAME...   nodes of 8 CPUs with 2 GPUs each (character devices that look like some); prints SLURM_CONF=...
#                             TESTBED_TREE=1: under two leaf switches, half of them each (topology/tree)
#   slurm.sh down DIR         cancel the jobs, end the daemons (by pid), remove DIR
# Then: SLURM_CONF=DIR/slurm.conf hosts.sh on head sbatch ...     Root; Debian: apt-get install slurm-wlm munge
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,6s/^# *//p' "$0" >&2; exit 2; }
on() { "$here/hosts.sh" on "$@"; }

# A zombie counts as ended: it may wait long for its parent.
alive() { [ -e "/proc/$1/stat" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

up() {
  local dir=$1 name number=0 nodes="" cpus=8 gpus=2 idle=0
  shift
  down "$dir"
  mkdir -p "$dir"/{state,spool,log,run,dev,tmp,munge/key,munge/run,munge/log}
  chmod 755 "$dir" "$dir/munge/run"
  chmod 700 "$dir/munge/key" "$dir/munge/log" # munged refuses keys that others could read, and a socket that they cannot
  head -c 1024 /dev/urandom >"$dir/munge/key/key"
  chmod 400 "$dir/munge/key/key"
  munged --key-file="$dir/munge/key/key" --socket="$dir/munge/run/socket" --pid-file="$dir/munge/run/munged.pid" \
    --log-file="$dir/munge/log/log" --seed-file="$dir/munge/key/seed" --num-threads=2
  for name in "$@"; do
    number=$((number + 1))
    nodes+="NodeName=$name NodeAddr=10.77.0.$number"$'\n'
    mkdir -m 1777 "$dir/tmp/$name"
  done
  for number in $(seq 0 $((gpus - 1))); do mknod "$dir/dev/nvidia$number" c 1 3; done # of regular files Slurm makes no CUDA_VISIBLE_DEVICES
  while IFS= read -r line; do
    if [ "$line" = @NODES@ ]; then printf '%s' "$nodes"; else printf '%s\n' "$line"; fi
  done <"$here/slurm.conf.in" | sed -e "s|@DIR@|$dir|g; s|@CPUS@|$cpus|; s|@GPUS@|$gpus|" >"$dir/slurm.conf"
  if [ -n "${TESTBED_TREE:-}" ]; then
    echo 'TopologyPlugin=topology/tree' >>"$dir/slurm.conf"
    local half=$(($# / 2)) all=("$@")
    printf 'SwitchName=leaf1 Nodes=%s\nSwitchName=leaf2 Nodes=%s\nSwitchName=root Switches=leaf[1-2]\n' \
      "$(IFS=,; echo "${all[*]:0:half}")" "$(IFS=,; echo "${all[*]:half}")" >"$dir/topology.conf"
  fi
  printf 'AutoDetect=off\nName=gpu File=%s/dev/nvidia[0-%d] Flags=nvidia_gpu_env\n' "$dir" $((gpus - 1)) >"$dir/gres.conf"
  echo 'CgroupPlugin=cgroup/v1' >"$dir/cgroup.conf" # named, never used: autodetect fails where /sys/fs/cgroup is not mounted
  export SLURM_CONF=$dir/slurm.conf
  trap '[ $? = 0 ] || { echo "slurm.sh failed; the last log lines:"; tail -n 4 "$dir"/log/*.log; } >&2' EXIT
  on head slurmctld -c
  for _ in $(seq 100); do on head scontrol ping 2>/dev/null | grep -q 'is UP' && break; sleep 0.1; done
  for name in "$@"; do on "$name" slurmd -N "$name"; done
  for _ in $(seq 150); do
    idle=$(on head sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)
    [ "$idle" = $# ] && break
    sleep 0.2
  done
  [ "$idle" = $# ] || { on head sinfo -N -l >&2; exit 1; }
  echo "SLURM_CONF=$dir/slurm.conf"
}

down() {
  local dir=$1 jobs pids="" left="" process pid
  [ -d "$dir" ] || return 0
  export SLURM_CONF=$dir/slurm.conf
  if [ -e "$dir/run/slurmctld.pid" ]; then
    jobs=$(timeout 5 "$here/hosts.sh" on head squeue -h -o %A 2>/dev/null | sort -u || true)
    # shellcheck disable=SC2086 # one word a job
    [ -z "$jobs" ] || timeout 5 "$here/hosts.sh" on head scancel $jobs 2>/dev/null || true
    for _ in $(seq 50); do
      [ -n "$(timeout 5 "$here/hosts.sh" on head squeue -h 2>/dev/null)" ] || break
      sleep 0.2
    done
  fi
  pids=$(cat "$dir"/run/*.pid "$dir"/munge/run/*.pid 2>/dev/null || true)
  # Step daemons may outlive their slurmd; ours have our SLURM_CONF in their environment.
  for process in /proc/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in
    slurmstepd | slurmd | slurmctld)
      if grep -qzx "SLURM_CONF=$dir/slurm.conf" "$process/environ" 2>/dev/null; then pids+=" ${process#/proc/}"; fi
      ;;
    esac
  done
  for pid in $pids; do kill -TERM "$pid" 2>/dev/null || true; done
  for _ in $(seq 100); do
    left=""
    for pid in $pids; do if alive "$pid"; then left+=" $pid"; fi; done
    [ -n "$left" ] || break
    sleep 0.1
  done
  for pid in $left; do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
}

[ $# -gt 1 ] || usage
case $1 in
up) [ $# -gt 2 ] || usage ;;&
up | down) "$@" ;;
*) usage ;;
esac
