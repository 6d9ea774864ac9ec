#!/bin/sh
# HTCondor starter hook: reports to Lark that a job starts, still runs, or has ended.
#
#   LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER, LARK_HOOK_PREPARE_JOB   starter_hook.sh start
#   LARK_HOOK_UPDATE_JOB_INFO                                      starter_hook.sh update
#   LARK_HOOK_JOB_EXIT                                             starter_hook.sh exit REASON
#
# HTCondor starts a hook without arguments of ours, so the action is taken from the name: link it as NAME-start,
# NAME-update and NAME-exit. Called by another name, the first argument is the action.
#
# Input: the job ad on standard input, the machine ad in the file $_CONDOR_MACHINE_AD.
# Output: ClassAd lines, which HTCondor merges into the job ad (start only); remarks on standard error.
# Status: always 0. What happens to the job is said in the output, so that an accident here is no accident of the job.
#
# Settings, from the environment or from /etc/lark/hook.conf (lines NAME=value; read, never executed; the environment wins):
#   LARK_URL         http://… or https://… of the controller; of several all, separated by commas or spaces
#   LARK_SOCKET      a Unix socket to speak to instead
#   LARK_TOKEN_FILE  a file with the bearer token
#   LARK_CA_FILE     PEM file of the authorities that may have signed the controller's certificate
#   LARK_CERT_FILE   a certificate (PEM) to show to the controller, with this host's name
#   LARK_KEY_FILE    its private key (PEM), where that is in a file of its own
#   LARK_TIMEOUT     seconds that the hook may take altogether (20; 1 to 600)
#   LARK_RETRIES     further tries after the first, where trying again makes sense (3; 0 to 20)
#   LARK_WAIT        seconds that the controller waits for the switches before it answers a start (2; 0 to 60)
#   LARK_ON_FAILURE  when the controller cannot be asked: start (default), hold, idle
#   LARK_STATE_DIR   where the job's id is kept (default: the job's scratch directory)
#
# Needs a POSIX shell, curl, and the usual small programs (cat, head, sed, tr, sha256sum, date, sleep); beside the worker
# service python3, too, so that no user who fills the queue of the service's socket keeps this job's hook out.

set -fu
LC_ALL=C
export LC_ALL
umask 077

MAX_AD=2097152     # bytes read of each ad; the controller accepts less, and refuses with the limit
LARGE_AD=196608    # bytes; of a larger job ad the longest lines are left out, so that the controller accepts it
LONG_LINE=8192     # bytes; what is longer is an environment or arguments, and no network policy asks for those
MAX_ANSWER=65536   # bytes read of an answer
HOLD_REFUSED=10    # HookStatusCode: the controller refused the job
IDLE_REFUSED=310   # HookStatusCode: the controller refused the job, and the site lets it go back to Idle
HOLD_FAILURE=20    # HookStatusCode: the controller could not be asked, LARK_ON_FAILURE=hold
IDLE_FAILURE=300   # HookStatusCode: the same, LARK_ON_FAILURE=idle
CANNOT_CONNECT=7   # curl's status where nobody accepts a connection
NEWLINE='
'
TAB='	'

say() { printf 'lark: %s\n' "$*" >&2; }

# Text as the inside of a ClassAd string: no quotes, backslashes or control characters, nothing but ASCII, not long.
quotable() { printf '%s' "$1" | tr '\n\t"\134' "  '/" | tr -cd ' -~' | head -c 400; }

action='' answered='' on_failure=start

# The end of every start: exactly one answer on standard output, whatever happened before.
answer() {
    [ -z "$answered" ] || return 0
    answered=yes
    printf '%s\n' "$1"
}

unmanaged() { # unmanaged WHY: the controller could not be asked
    say "$1"
    [ "$action" = start ] || return 0
    why=$(quotable "$1")
    case $on_failure in
        hold) answer "HookStatusCode = $HOLD_FAILURE${NEWLINE}HookStatusMessage = \"Lark: $why\"" ;;
        idle) answer "HookStatusCode = $IDLE_FAILURE${NEWLINE}HookStatusMessage = \"Lark: $why\"" ;;
        *) answer "LarkState = \"unmanaged\"${NEWLINE}LarkReason = \"$why\"" ;;
    esac
}

refused() { # refused WHY: the controller was asked and said no
    say "refused: $1"
    [ "$action" = start ] || return 0
    code=$HOLD_REFUSED
    # "refused" of a problem document is what the site chose for such jobs.
    printf '%s' "${body-}" | tr -d ' \n\t' | grep -q '"refused":"idle"' && code=$IDLE_REFUSED
    answer "HookStatusCode = $code${NEWLINE}HookStatusMessage = \"Lark refused this job: $(quotable "$1")\""
}

# shellcheck disable=SC2317  # called by the trap
leave() {
    trap - EXIT
    [ "$action" != start ] || [ -n "$answered" ] || unmanaged "the hook was interrupted"
    exit 0
}
trap leave EXIT
trap 'exit 0' HUP INT TERM
trap '' PIPE

# --- settings ---------------------------------------------------------------------------------------------------

trustworthy() { # trustworthy FILE: it belongs to root or to us, and no one else may write to it
    # shellcheck disable=SC2012  # one file, and only its mode and owner are looked at
    listed=$(ls -ldnL "$1" 2>/dev/null) || return 1
    case $listed in
        ?????w* | ????????w*) return 1 ;;
    esac
    # shellcheck disable=SC2086  # split into fields
    set -- $listed
    [ "$3" = 0 ] || [ "$3" = "$(id -u)" ]
}

read_settings() {
    unread='' conf=${LARK_HOOK_CONF:-/etc/lark/hook.conf}
    [ -r "$conf" ] || { unread=" (and $conf cannot be read)"; return 0; }
    if ! trustworthy "$conf"; then
        say "$conf is ignored: it must belong to root (or to the hook's user) and be writable by nobody else"
        return 0
    fi
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            LARK_*=*) ;;
            *) continue ;;
        esac
        name=${line%%=*} value=${line#*=}
        case $value in
            \"*\" | \'*\') value=${value#?} value=${value%?} ;;
        esac
        case $name in
            LARK_URL | LARK_SOCKET | LARK_TOKEN_FILE | LARK_CA_FILE | LARK_CERT_FILE | LARK_KEY_FILE | LARK_TIMEOUT | \
                LARK_RETRIES | LARK_WAIT | LARK_ON_FAILURE | LARK_STATE_DIR) eval ": \"\${$name=\$value}\"" ;;
            *) say "$conf: unknown setting $name" ;;
        esac
    done <"$conf"
}

number() { # number NAME VALUE DEFAULT LOW HIGH: VALUE if it is a whole number in the range, else DEFAULT
    case $2 in
        '') ;;
        *[!0-9]* | ??????*) say "$1: $2 is no whole number from $4 to $5; using $3" ;;
        *)
            [ "$2" -lt "$4" ] || [ "$2" -gt "$5" ] || { printf '%s' "$2"; return; }
            say "$1: $2 is not from $4 to $5; using $3"
            ;;
    esac
    printf '%s' "$3"
}

check_settings() {
    case ${LARK_ON_FAILURE:-start} in
        start | hold | idle) on_failure=${LARK_ON_FAILURE:-start} ;;
        *) say "LARK_ON_FAILURE: $LARK_ON_FAILURE is none of start, hold, idle; using start" ;;
    esac
    timeout=$(number LARK_TIMEOUT "${LARK_TIMEOUT:-}" 20 1 600)
    retries=$(number LARK_RETRIES "${LARK_RETRIES:-}" 3 0 20)
    wait=$(number LARK_WAIT "${LARK_WAIT:-}" 2 0 60)
    token='' bases='' count=0 problem="neither LARK_URL nor LARK_SOCKET is set$unread"
    given=$(printf '%s' "${LARK_URL:-}" | tr , ' ')
    [ -z "${LARK_SOCKET:-}" ] || given=http://localhost
    for base in $given; do
        problem=
        case $base in
            *[!!-~]*) problem="LARK_URL holds characters that a URL may not" && return 1 ;;
            http://?* | https://?*) bases="$bases${base%/} " count=$((count + 1)) ;;
            *) problem="LARK_URL: $base does not begin with http:// or https://" && return 1 ;;
        esac
    done
    [ -z "$problem" ] || return 1
    if [ -n "${LARK_TOKEN_FILE:-}" ]; then
        { token=$(head -c 4096 <"$LARK_TOKEN_FILE" | tr -d '\r\n'); } 2>/dev/null
        problem="LARK_TOKEN_FILE: no token can be read from $LARK_TOKEN_FILE"
        [ -n "$token" ] || return 1
        problem="LARK_TOKEN_FILE: what stands in $LARK_TOKEN_FILE is no bearer token"
        case $token in
            *[!A-Za-z0-9._~+/=-]*) return 1 ;;
        esac
    fi
    problem="LARK_KEY_FILE is the key of a certificate, and LARK_CERT_FILE is not set"
    [ -z "${LARK_KEY_FILE:-}" ] || [ -n "${LARK_CERT_FILE:-}" ] || return 1
    # A colon would be read as the begin of the key's passphrase.
    case ${LARK_CERT_FILE:-} in
        *:* | *\\*) problem="LARK_CERT_FILE: the path has a colon or backslash" && return 1 ;;
    esac
    for file in "${LARK_CERT_FILE:-}" "${LARK_KEY_FILE:-}"; do
        problem="LARK_CERT_FILE, LARK_KEY_FILE: $file cannot be read"
        [ -z "$file" ] || [ -r "$file" ] || return 1
    done
    problem="curl is not installed"
    command -v curl >/dev/null 2>&1
}

# --- what the ads say ---------------------------------------------------------------------------------------------

# limited SECONDS COMMAND...: the command, ended after that time where there is a program to do so.
limited() {
    if command -v timeout >/dev/null 2>&1; then timeout "$@"; else shift && "$@"; fi
}

read_ads() {
    # NUL bytes cannot be held by a shell; that they are dropped is remarked on by some shells.
    { job_ad=$(limited "$timeout" head -c "$MAX_AD"); } 2>/dev/null
    machine_ad=
    if [ -n "${_CONDOR_MACHINE_AD:-}" ] && [ -f "$_CONDOR_MACHINE_AD" ] && [ -r "$_CONDOR_MACHINE_AD" ]; then
        { machine_ad=$(limited 2 head -c "$MAX_AD" "$_CONDOR_MACHINE_AD"); } 2>/dev/null
    else
        say "no machine ad: _CONDOR_MACHINE_AD is ${_CONDOR_MACHINE_AD:-not set}"
    fi
    leave_out
}

# A job must not be held for an environment of a megabyte or a title in Latin-1: what the controller would refuse is
# left out, an attribute at a time. The job's identity cannot be left out; without it the controller refuses.
leave_out() {
    whole=$job_ad
    if [ "${#job_ad}" -gt "$LARGE_AD" ]; then
        job_ad=$(printf '%s\n' "$job_ad" | sed -E "/^.{$LONG_LINE}/d")
    fi
    case $job_ad in
        *[!\ -~"$TAB$NEWLINE"]*)
            # Every line that is text where text is UTF-8; all lines where the system has no such locale.
            job_ad=$(printf '%s\n' "$job_ad" | LC_ALL=C.UTF-8 grep -ax '.*')
            ;;
    esac
    [ "$job_ad" = "$whole" ] || say "attributes of the job ad that are too long or not UTF-8 are left out"
}

# attribute NAME AD: the value of a string or number, as it stands in an ad in old syntax; the last one counts.
attribute() {
    # One process, as each costs a millisecond of the job's start: what matches is held, and the last of it printed.
    printf '%s\n' "$2" | sed -n "/^[[:space:]]*$1[[:space:]]*=/{
        s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*//
        s/[[:space:]]*\$//
        s/^\"\(.*\)\"\$/\1/
        h
    }
    \${
        x
        p
    }"
}

# The controller's id of a run: the first 16 hexadecimal digits of the SHA-256 of GlobalJobId, JobCurrentStartDate and
# slot. Computed here, so that a job can be ended even when the answer to its start was lost.
compute_id() {
    global=$(attribute '[Gg][Ll][Oo][Bb][Aa][Ll][Jj][Oo][Bb][Ii][Dd]' "$job_ad")
    started=$(attribute '[Jj][Oo][Bb][Cc][Uu][Rr][Rr][Ee][Nn][Tt][Ss][Tt][Aa][Rr][Tt][Dd][Aa][Tt][Ee]' "$job_ad")
    slot=$(attribute '[Nn][Aa][Mm][Ee]' "$machine_ad")
    slot=${slot:-$(attribute '[Rr][Ee][Mm][Oo][Tt][Ee][Hh][Oo][Ss][Tt]' "$job_ad")}
    slot=${slot:-$(attribute '[Mm][Aa][Cc][Hh][Ii][Nn][Ee]' "$machine_ad")}
    case $started in '' | *[!0-9]*) started=0 ;; esac
    [ -n "$global" ] && [ -n "$slot" ] || return 0
    printf '%s\n%s\n%s' "$global" "$started" "$slot" | sha256sum 2>/dev/null | head -c 16
}

is_id() {
    case $1 in *[!0-9a-f]*) return 1 ;; esac
    [ "${#1}" = 16 ]
}

id_file() {
    directory=${LARK_STATE_DIR:-${_CONDOR_SCRATCH_DIR:-}}
    [ -n "$directory" ] && printf '%s/.lark_job_id.%s' "$directory" "$(printf '%s' "${_CONDOR_SLOT:-slot}" | tr -cd 'A-Za-z0-9_')"
}

save_id() {
    # The worker service finds the caller's job by itself, and the scratch directory's files are the job's output.
    [ -z "${LARK_SOCKET:-}" ] || return 0
    file=$(id_file) || return 0
    # Never through a link that somebody else has put there: the old file goes, the new one must not exist.
    { rm -f "$file" && (set -C && printf '%s\n' "$1" >"$file"); } 2>/dev/null || say "the job's id cannot be kept in $file"
}

saved_id() {
    file=$(id_file) || return 0
    [ -f "$file" ] && [ ! -L "$file" ] && trustworthy "$file" && { head -c 16 "$file"; } 2>/dev/null
}

# --- asking the controller ----------------------------------------------------------------------------------------

# Seconds of a clock that only grows. The time of day may be set back, and the job's start would wait for as long.
now() {
    { read -r uptime _ </proc/uptime; } 2>/dev/null || uptime=$(date +%s)
    printf '%s' "${uptime%%.*}"
}

# Stands in for curl where the socket's queue is full: curl gives up at once, and this waits in the kernel for room.
WAITING_CLIENT='
import http.client, signal, socket, sys
seconds, where, method, path, most = sys.argv[1:]
signal.alarm(int(seconds))
link = http.client.HTTPConnection("lark")
link.sock = socket.socket(socket.AF_UNIX)
try:
    link.sock.connect(where)
except OSError as error:
    sys.exit(f"curl: (7) Could not connect: {error.strerror}")
kinds = {"Accept": "text/plain", "Content-Type": "text/plain; charset=utf-8"}
link.request(method, path, sys.stdin.buffer.read(), kinds)
answer = link.getresponse()
sys.stdout.buffer.write(b"%b\nhttp-status %d" % (answer.read(int(most)), answer.status))
'

# One request. Sets: status (000 where there was no answer), code, body, problem.
request() { # request SECONDS METHOD PATH BODY
    # The body goes in by one pipe, the token by another: neither a file nor an argument list ever holds the token.
    config=
    [ -z "$token" ] || config="header = \"Authorization: Bearer $token\""
    {
        reply=$(
            printf '%s' "$4" | {
                [ -z "$waits" ] || {
                    python3 -IS -c "$WAITING_CLIENT" "$1" "$LARK_SOCKET" "$2" "$3" "$MAX_ANSWER" 2>&1
                    printf '\ncurl-status %s' "$?"
                    exit
                }
                exec 4<&0
                printf '%s\n' "$config" | {
                    curl -q --config - --silent --show-error --noproxy '*' --globoff --max-time "$1" \
                        --connect-timeout "$1" --request "$2" --header 'Accept: text/plain' \
                        --header 'Content-Type: text/plain; charset=utf-8' --header 'Expect:' \
                        ${LARK_SOCKET:+--unix-socket "$LARK_SOCKET"} ${LARK_CA_FILE:+--cacert "$LARK_CA_FILE"} \
                        ${LARK_CERT_FILE:+--cert "$LARK_CERT_FILE"} ${LARK_KEY_FILE:+--key "$LARK_KEY_FILE"} \
                        --data-binary @/dev/fd/4 --write-out '\nhttp-status %{http_code}' "$base$3" 2>&1
                    printf '\ncurl-status %s' "$?"
                }
            } | head -c "$MAX_ANSWER" | tr -d '\r'
        )
    } 2>/dev/null
    status=000 body='' where=${LARK_SOCKET:-$base}
    code=${reply##*"${NEWLINE}curl-status "}
    case $code in
        0) ;;
        '' | *[!0-9]*) problem="the answer from $where is longer than $MAX_ANSWER bytes" && return ;;
        *)
            problem=$(printf '%s\n' "$reply" | sed -n 's/^.*curl: ([0-9]*) //p' | head -n 1)
            problem="no answer from $where: ${problem:-curl failed with status $code}"
            return
            ;;
    esac
    reply=${reply%"${NEWLINE}curl-status "*}
    body=${reply%"${NEWLINE}http-status "*}
    status=${reply##*"${NEWLINE}http-status "}
    problem="$where answered with status $status"
}

# Ask one controller after the other until there is an answer that more asking would not change, or the time is over.
# All that the hook asks may be asked again, of another controller too: a run has one id everywhere. A retry is used up
# when none of them has answered, but for one that stands by: then another one is about to become active.
ask() { # ask METHOD PATH BODY [SECONDS THAT THE CONTROLLER MAY TAKE]
    left=$retries pause=1 waits='' untried=$count standby='' others=''
    while :; do
        remaining=$((deadline - $(now)))
        if [ "$remaining" -le 0 ]; then
            problem="${problem:-no answer from $where} (gave up after $timeout s)"
            return
        fi
        share=$((remaining / (left * count + untried)))
        least=$((${4:-0} + 2))
        [ "$share" -ge "$least" ] || share=$least
        [ "$share" -le "$remaining" ] || share=$remaining
        base=${bases%% *}
        request "$share" "$1" "$2" "$3"
        if [ "$code" = "$CANNOT_CONNECT" ] && [ -S "${LARK_SOCKET:-}" ] && [ -z "$waits" ]; then
            waits=yes
            continue
        fi
        case $status$body in
            000*) ;;
            503*urn:lark:problem:standby*) standby=standby ;;
            429* | 5??*) others=yes ;;
            *) return ;; # by the first of the list, as which it stays
        esac
        bases="${bases#* }$base " untried=$((untried - 1))
        [ "$untried" = 0 ] || continue
        untried=$count
        if [ "$standby$others" = standby ]; then
            pause=1
        else
            [ "$left" -gt 0 ] || return
            left=$((left - 1))
        fi
        [ $((deadline - $(now))) -gt "$pause" ] || return
        say "$problem; trying again"
        sleep "$pause"
        pause=$((pause * 2)) standby='' others=''
    done
}

# The readable part of a refusal: "detail" of a problem document, or the text.
reason() {
    case $body in
        *'"detail"'*)
            flat=$(printf '%s' "$body" | tr '\n\t' '  ')
            printf '%s' "${flat#*\"detail\"}" | sed -nE 's/^ *: *"(([^"\\]|\\.)*)".*/\1/p' |
                sed -E 's/\\\\/\//g; s/\\u[0-9a-fA-F]{4}/?/g; s/\\n/ /g; s/\\(.)/\1/g'
            ;;
        *'<'*'>'*) ;;
        *) printf '%s' "$body" | head -n 3 ;;
    esac
}

why() {
    text=$(reason)
    printf '%s' "${text:-$problem}"
}

# Only lines that are an attribute with a plain value are passed on.
classad_lines() {
    printf '%s\n' "$body" | sed -nE \
        '/^[A-Za-z_][A-Za-z0-9_]* = ("([^"\\[:cntrl:]]|\\["\\])*"|-?[0-9]+(\.[0-9]+)?|[Tt]rue|[Ff]alse|[Uu]ndefined)$/p'
}

# --- the three actions --------------------------------------------------------------------------------------------

register() {
    problem=
    ask POST "/v1/jobs?wait=$wait" "$job_ad$NEWLINE------$NEWLINE$machine_ad" "$wait"
    case $status in
        2??)
            lines=$(classad_lines)
            id=$(attribute LarkJobId "$lines")
            if is_id "$id"; then
                save_id "$id"
                case $(attribute LarkState "$lines") in
                    refused)
                        id=$(attribute LarkReason "$lines")
                        refused "${id:-no reason was given}"
                        ;;
                    ended) refused "this run has ended, so its address is not its own any more" ;;
                    *) [ "$action" != start ] || answer "$lines" ;;
                esac
            else
                unmanaged "$where sent an answer without a job id (is it a Lark controller?)"
            fi
            ;;
        400 | 409 | 413 | 415 | 422)
            case $body in
                # LARK_WAIT is beyond what this controller allows: the site's mistake, not the job's.
                *urn:lark:problem:parameters*) unmanaged "$(why)" ;;
                *) refused "$(why)" ;;
            esac
            ;;
        *) unmanaged "$(why)" ;;
    esac
}

# The id that the ads give, then the one that was kept, until the controller accepts one. Sets status.
ask_by_id() { # ask_by_id METHOD SUFFIX BODY
    computed=$(compute_id)
    kept=$(saved_id)
    status=404
    problem="the ads do not say which job this is, and no id was kept"
    is_id "$computed" && ask "$1" "/v1/jobs/$computed$2" "$3"
    [ "$status" = 404 ] && is_id "$kept" && [ "$kept" != "$computed" ] && ask "$1" "/v1/jobs/$kept$2" "$3"
    return 0
}

update() {
    ask_by_id POST /renew ''
    case $status in
        2??) ;;
        404 | 410) register ;; # its start was not heard: then this is
        *) say "not renewed: $(why)" ;;
    esac
}

finish() {
    ask_by_id DELETE '' "$job_ad"
    case $status in
        400 | 413 | 415 | 422) # the exit ad is not acceptable; that the job has ended still counts
            say "exit ad: $(why)"
            ask_by_id DELETE '' ''
            ;;
    esac
    case $status in
        2??) file=$(id_file) && rm -f "$file" 2>/dev/null ;;
        404 | 410) say "the controller does not know this job" ;;
        *) say "not ended: $(why); its lease will end it" ;;
    esac
}

main() {
    case ${0##*/} in
        *-start) action="start" ;;
        *-update) action="update" ;;
        *-exit) action="exit" ;;
        *) action=${1:-} ;;
    esac
    case $action in
        start | update | exit) ;;
        *) say "usage: starter_hook.sh start|update|exit [REASON] (got: ${1:-nothing})"; return ;;
    esac
    read_settings
    check_settings || { unmanaged "$problem"; return; }
    where=${LARK_SOCKET:-$bases}
    deadline=$(($(now) + timeout))
    read_ads
    case $action in
        start) register ;;
        update) update ;;
        exit) finish ;;
    esac
}

main "$@"
exit 0
