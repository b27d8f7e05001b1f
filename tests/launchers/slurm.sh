#!/usr/bin/env bash
# Runs a command inside a Slurm of its own: a controller and several node daemons, all on this
# machine, which end with the command.
#
#   tests/launchers/slurm.sh NODES COMMAND...
#
# Exit status 77 where Slurm or munge is missing, or cannot run here; the reason is printed.
set -u
nodes=$1
shift

missing() {
  echo "skipped: $*"
  exit 77
}
PATH=$PATH:/usr/sbin:/sbin
for program in munged mungekey srun sinfo slurmctld slurmd; do
  command -v "$program" > /dev/null || missing "$program is not installed (Debian: slurm-wlm, munge)"
done
[ "$(id -u)" = 0 ] || missing "slurmd starts tasks as root alone"

folder=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null; done
  for pid in "${pids[@]}"; do wait "$pid" 2> /dev/null; done
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A port below those that the kernel gives away, and one for each node behind it.
port=$((20000 + $$ % 10000))
host=$(hostname -s)
plugins=${CHORUS_TEST_SLURM_PLUGINS:-}
mkdir "$folder/state" "$folder/munge"
chmod 711 "$folder"
chmod 700 "$folder/munge"
{
  echo "ClusterName=chorus"
  echo "SlurmctldHost=$host(127.0.0.1)"
  echo "SlurmctldPort=$port"
  echo "SlurmUser=root"
  echo "AuthType=auth/munge"
  echo "AuthInfo=socket=$folder/munge.socket"
  echo "SlurmdParameters=config_overrides"
  echo "StateSaveLocation=$folder/state"
  echo "SlurmctldPidFile=$folder/slurmctld.pid"
  echo "SlurmdPidFile=$folder/slurmd-%n.pid"
  echo "SlurmdSpoolDir=$folder/spool-%n"
  echo "ProctrackType=proctrack/pgid"
  echo "TaskPlugin=task/none"
  echo "SwitchType=switch/none"
  echo "MpiDefault=none"
  echo "SelectType=select/cons_tres"
  echo "SelectTypeParameters=CR_CPU"
  echo "ReturnToService=2"
  echo "KillWait=2"
  [ -z "$plugins" ] || echo "PluginDir=$plugins"
  for i in $(seq "$nodes"); do
    echo "NodeName=node$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=8 State=UNKNOWN"
  done
  echo "PartitionName=all Nodes=node[1-$nodes] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8"
} > "$folder/slurm.conf"
export SLURM_CONF=$folder/slurm.conf

mungekey --create --keyfile="$folder/munge/key" 2> /dev/null ||
  dd if=/dev/urandom of="$folder/munge/key" bs=128 count=1 status=none
chmod 600 "$folder/munge/key"
munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/munge/key" \
  --log-file="$folder/munge/log" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
  > "$folder/munged.out" 2>&1 &
pids+=($!)
slurmctld -D -f "$SLURM_CONF" > "$folder/slurmctld.out" 2>&1 &
pids+=($!)
for i in $(seq "$nodes"); do
  slurmd -D -N "node$i" -f "$SLURM_CONF" > "$folder/slurmd$i.out" 2>&1 &
  pids+=($!)
done
for _ in $(seq 300); do
  [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = "$nodes" ] && break
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2> /dev/null || {
      tail -n 3 "$folder"/*.out
      missing "a daemon of Slurm ended at once"
    }
  done
  sleep 0.1
done
[ "$(sinfo -h -t idle -o %D 2> /dev/null)" = "$nodes" ] || {
  sinfo
  tail -n 3 "$folder"/*.out
  missing "the nodes of Slurm are not idle within 30 s"
}
"$@"
