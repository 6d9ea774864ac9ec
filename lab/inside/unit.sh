#!/bin/sh
# unit start|stop|restart|kill|status NAME: a service of this machine, kept running as systemd would keep it with Restart=always.
# /etc/lab-units/NAME holds USER, FILE (settings, NAME=value lines) and COMMAND; output goes to /var/log/NAME.log.
#   stop   SIGTERM, and SIGKILL after 20 s; it stays off until it is started
#   kill   SIGKILL; it is started again after a second
set -eu
[ $# -eq 2 ] || { echo "usage: unit start|stop|restart|kill|status NAME" >&2; exit 2; }
action=$1
name=$2
dir=/run/lab-units
[ -e "/etc/lab-units/$name" ] || { echo "unit: $name: no such service here; there are: $(ls /etc/lab-units)" >&2; exit 2; }
mkdir -p "$dir"

alive() { [ -e "$dir/$name.$1" ] && kill -0 "$(cat "$dir/$name.$1")" 2>/dev/null; }

case $action in
start)
    ! alive keeper || exit 0
    setsid "$0" keep "$name" </dev/null >>"/var/log/$name.log" 2>&1 &
    echo $! >"$dir/$name.keeper"
    ;;
keep)
    # shellcheck source=/dev/null
    . "/etc/lab-units/$name"
    while :; do
        # All three become the next, so that the process id is the service's.
        # shellcheck disable=SC2016,SC2086  # read by the inner shell; a list of words
        setpriv --reuid "$USER" --regid "$USER" --init-groups --reset-env sh -c '
            set -a; [ ! -e "$1" ] || . "$1"; set +a
            umask 077
            shift
            exec "$@"' service "$FILE" $COMMAND &
        echo $! >"$dir/$name.pid"
        status=0
        wait $! || status=$?
        echo "unit: $name ended with status $status"
        sleep 1
    done
    ;;
stop)
    ! alive keeper || kill -9 "$(cat "$dir/$name.keeper")"
    rm -f "$dir/$name.keeper"
    alive pid || exit 0
    pid=$(cat "$dir/$name.pid")
    kill "$pid"
    tries=0
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || kill -9 "$pid"
        sleep 0.1
    done
    ;;
restart)
    "$0" stop "$name"
    exec "$0" start "$name"
    ;;
kill) kill -9 "$(cat "$dir/$name.pid")" ;;
status)
    alive pid || { echo "$name is off"; exit 1; }
    echo "$name runs as process $(cat "$dir/$name.pid")"
    ;;
*) echo "unit: $action: not known" >&2; exit 2 ;;
esac
