#!/bin/sh
# on MACHINE [-u USER] [COMMAND [ARGUMENT…]]: run a command on a machine of the lab, a login shell if none is given.
usage() { echo "usage: on MACHINE [-u USER] [COMMAND [ARGUMENT...]]" >&2; exit 2; }
[ $# -ge 1 ] || usage
machine=$1
shift
user=root
if [ "$1" = -u ]; then
    [ $# -ge 2 ] || usage
    user=$2
    shift 2
fi
pid=$(cat "/lark/machines/$machine/pid" 2>/dev/null) || { echo "on: $machine: no such machine, or it is off" >&2; exit 125; }
[ $# -gt 0 ] || set -- bash --login
home=/root
[ "$user" = root ] || home=/home/$user
set -- nsenter --target "$pid" --mount --net --pid --uts --ipc --root --wdns="$home" \
    setpriv --reuid "$user" --regid "$user" --init-groups \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/lark/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash "$@"
exec "$@"
