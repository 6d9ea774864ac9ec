#!/bin/sh
# First process of the lab, in User Mode Linux and natively: LAB_KIND says in which. The root is read-only and shared by all
# machines; the run's directory is at /mnt. Makes a writable root over it, and hands over to the agent.
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t proc proc /proc
if [ "$LAB_KIND" = uml ]; then
    # A first process that just ends leaves this kernel in a panic that does not end.
    exec 9> /proc/sysrq-trigger
    trap 'echo o >&9; sleep 10' EXIT
fi
mount -t tmpfs -o mode=755,size=90% lab /tmp
if [ "$LAB_KIND" = uml ]; then
    # All others are loaded when they are first asked for.
    modprobe -a overlay openvswitch veth
fi
mkdir /tmp/lab /tmp/lab/upper /tmp/lab/work /tmp/lab/root
mount -t overlay -o lowerdir=/,upperdir=/tmp/lab/upper,workdir=/tmp/lab/work lab /tmp/lab/root
cd /tmp/lab/root
mkdir -p lark/lower lark/run lark/machines
pivot_root . lark/lower
cd /
if [ "$LAB_KIND" = uml ]; then
    mount -t hostfs -o hostfs=/mnt run /lark/run
else
    mount --bind /lark/lower/mnt /lark/run
fi
mount --bind /lark/lower/tmp /lark/machines
# One set of devices for all machines; terminals and shared memory are each machine's own.
mount -t tmpfs -o mode=755,size=16m dev /dev
mkdir /dev/pts /dev/shm /dev/net
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/full c 1 7
mknod -m 666 /dev/random c 1 8
mknod -m 666 /dev/urandom c 1 9
mknod -m 666 /dev/tty c 5 0
mknod -m 666 /dev/net/tun c 10 200
[ "$LAB_KIND" != uml ] || mknod -m 600 /dev/ttyS0 c 4 64
. /lark/run/code/lab/inside/mounts.sh
ip link set lo up
hostname lab
export PYTHONPATH=/lark/run/code PYTHONDONTWRITEBYTECODE=1
install -m 755 /lark/run/code/lab/inside/on.sh /usr/local/bin/on
if [ "$LAB_KIND" = uml ]; then
    python3 -m lab.inside.agent "$LAB_CHANNEL" 9>&- &
else
    # The channel may have any number, 9 as well.
    python3 -m lab.inside.agent "$LAB_CHANNEL" &
fi
# The shell waits for the agent and buries every orphan meanwhile.
wait $!
