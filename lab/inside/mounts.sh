# Sourced: mounts what a machine has beside its root and /dev. The root is the current one and writable.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir /run/lock
