# shellcheck shell=bash
# Warns about limits of a container that would fail or slow down training later. Sourced by the entry point.

shm_enough_kib=1048576 # 1 GiB; the default of Docker and Kubernetes is 64 MiB

# warn_shm DIRECTORY: warns about too little shared memory.
warn_shm() {
  local kib
  kib=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 {print $2}') || kib=0
  ((kib < shm_enough_kib)) || return 0
  say "warning: $1 has $((kib / 1024)) MiB. smdp does not use it, but worker processes of PyTorch's DataLoader, NCCL" \
    "and Open MPI do, and die of a bus error when it is full. Start the container with --shm-size=8g or --ipc=host" \
    "(Kubernetes: an emptyDir with medium: Memory at /dev/shm). Or use num_workers=0, which loads data in the" \
    "training process and is slower."
}

# warn_memlock KIB DEVICES: warns about a limit of locked memory if the folder DEVICES lists network cards with RDMA.
warn_memlock() {
  local cards=("$2"/*)
  [[ $1 != unlimited && -e ${cards[0]} ]] || return 0
  say "warning: this machine has ${cards[*]##*/}, but at most $1 KiB of memory may be locked (ulimit -l). smdp does" \
    "not lock any, but NCCL and libfabric register memory with such cards, and otherwise fail or use TCP, which is" \
    "several times slower. Start the container with --ulimit memlock=-1 --device=/dev/infiniband (Kubernetes: the" \
    "capability IPC_LOCK)."
}
