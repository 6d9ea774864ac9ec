#!/bin/sh
# First process of one machine of the pool: machine.sh NAME. Runs in fresh mount, network, PID, UTS and IPC namespaces.
# What the machine writes stays in /lark/machines/NAME/upper, so that a machine started again finds its disk; /run and /tmp
# are new at every start.
set -e
name=$1
dir=/lark/machines/$name
mkdir -p "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=/lark/lower,upperdir=$dir/upper,workdir=$dir/work" "$name" "$dir/root"
mkdir -p "$dir/root/lark/run" "$dir/root/lark/old"
mount --rbind /lark/run "$dir/root/lark/run"
mount --bind /dev "$dir/root/dev"
cd "$dir/root"
pivot_root . lark/old
cd /
. /lark/run/code/lab/inside/mounts.sh
umount -l /lark/old
hostname "$name.lab.test"
echo "$name.lab.test" > /etc/hostname
ip link set lo up
# The shell waits for a program that never ends, and buries every orphan meanwhile.
touch /run/machine-is-up
sleep infinity &
while :; do wait || :; done
