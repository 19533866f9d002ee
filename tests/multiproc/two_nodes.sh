#!/usr/bin/env bash
# Runs four ranks of a command on two simulated machines, two ranks on each.
#
#   two_nodes.sh mesh|mpi FOLDER COMMAND...
#
# A machine is a network, mount, IPC, UTS and PID namespace with a /dev/shm of its own; a bridge joins the
# two. mesh: the ranks meet at 10.77.0.1 over TCP. mpi: mpirun stands beside them, starts the ranks of both
# through this script and has them talk TCP only. FOLDER is an empty directory for the namespaces. Output and exit
# code are those of rank 0 or of mpirun. Exit code 77: no right to make namespaces.
set -euo pipefail

enter() {
  local ns
  # Through the outer /proc: inside a machine its processes have other numbers.
  ns=$folder/proc/$(<"$folder/pid$1")/ns
  shift
  nsenter --net="$ns/net" --mount="$ns/mnt" --ipc="$ns/ipc" --uts="$ns/uts" --pid="$ns/pid_for_children" -- "$@"
}

# mpirun calls: two_nodes.sh agent HOST COMMAND...
if [[ $1 == agent ]]; then
  folder=$TWO_NODES_FOLDER
  node=$((${2##*.} - 1))
  shift 2
  enter "$node" bash -c "$*"
  exit
fi

if [[ $1 != inside ]]; then
  isolated=(unshare --net --mount --pid --fork --kill-child --mount-proc)
  if ! "${isolated[@]}" true 2>/dev/null; then
    echo "no right to make namespaces" >&2
    exit 77
  fi
  exec "${isolated[@]}" "$0" inside "$@"
fi

mode=$2
folder=$3
shift 3
mkdir "$folder/proc"
mount --bind /proc "$folder/proc"
for i in 0 1; do
  unshare --net --mount --ipc --uts --pid --fork --kill-child --mount-proc bash -c \
    "hostname node$i && mount -t tmpfs none /dev/shm && ip link set lo up && touch '$folder/ready$i' && exec sleep infinity" &
  echo $! >"$folder/pid$i"
done
for i in 0 1; do
  for _ in $(seq 1000); do
    [[ -e $folder/ready$i ]] && break
    sleep 0.01
  done
done
ip link add switch type bridge
ip address add 10.77.0.3/24 dev switch
ip link set lo up
ip link set switch up
for i in 0 1; do
  ip link add "port$i" master switch type veth peer name "veth$i" netns "$(<"$folder/pid$i")"
  ip link set "port$i" up
  enter "$i" ip address add "10.77.0.$((i + 1))/24" dev "veth$i"
  enter "$i" ip link set "veth$i" up
done

if [[ $mode == mpi ]]; then
  export TWO_NODES_FOLDER=$folder
  mpirun --host 10.77.0.1:2,10.77.0.2:2 --bind-to none -n 4 \
    --mca plm_rsh_agent "$(realpath "$0") agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
    "$@"
  exit
fi
export PENSTOCK_SIZE=4 PENSTOCK_LOCAL_SIZE=2 PENSTOCK_ADDRESS=10.77.0.1:7077
for rank in 3 2 1; do
  PENSTOCK_RANK=$rank PENSTOCK_LOCAL_RANK=$((rank % 2)) enter "$((rank / 2))" "$@" &
done
PENSTOCK_RANK=0 PENSTOCK_LOCAL_RANK=0 enter 0 "$@"
