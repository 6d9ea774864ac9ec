/* Reservations for MPI applications; lark_mpi.h says what it does, and the Python package lark_mpi does the same.
 *
 * In order: answers in JSON, requests at the worker's socket, rates, flows and their renewal, the communicator.
 */
#define _GNU_SOURCE

#include "lark_mpi.h"

#include <errno.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TEXT LARK_MPI_TEXT
#define ID 32
#define HOST 256
#define ADDRESSES 4
#define SOCKET_PATH "/run/lark-worker/worker.sock"
/* Seconds to wait for room in the service's queue, and for an answer. */
#define SECONDS 20.0
/* A further try has no more time than what is left of the patience, but so many seconds. */
#define SHORTEST_TRY 1.0
/* Seconds to ask again where the service is starting, or turns a job away that asks too often; between two requests
 * first so many, then twice as many each time, and no more than the last figure: of a job hundreds of ranks may ask. */
#define PATIENCE 30.0
#define RENEWAL_PATIENCE 2.0
#define PAUSE 0.5
#define LONGEST_PAUSE 4.0
#define BUSY 429
#define AWAY 503
#define NOT_FOUND 404
/* A renewal without an answer is tried again, as often in a lease. */
#define AGAIN_IN_A_LEASE 12
/* Seconds for the answer to what is given back where nobody has answered before. */
#define BRIEFLY 2.0
/* Seconds to wait for the queues: while something stands in their way, and while they are being made. */
#define WAIT 10
#define LONGEST_QUEUES 30
#define LEASE 300.0
#define SHORTEST_LEASE 3.0
#define LONGEST_LEASE 86400.0
/* Seconds of a lease for each flow: a worker accepts five requests a second of a job, of which three in each lease are
 * renewals. */
#define SECONDS_FOR_EACH 1.0
/* Numbers of shares, from 1 on. */
#define NUMBERS 999999999999ull
#define MOST_RATE 1.25e12
/* Bytes of an answer, and levels of JSON in it. */
#define MAX_ANSWER ((size_t)16 << 20)
#define MAX_DEPTH 64
/* Numbers of answers are less. */
#define LARGEST 1e300
/* Seconds that one request waits for a change, and between two that are answered at once: first so many, then twice as
 * many each time, and no more than the last figure. */
#define LONGEST_WAIT 30.0
#define PACE 2.0
#define SLOWEST_PACE 16.0
/* Seconds between two requests that wait for less than that. Changes come no more often, and a program that looks for one in
 * each step of a loop would leave its renewals no requests. */
#define LEAST_WAIT 1.0
/* A version, as it stands in a query. */
#define VERSION 256
/* Between a reservation's id and the number of a share of it. */
#define SHARE 's'

/* ---- Answers in JSON: checked as a whole first, and then read member by member ---- */

typedef struct {
    const unsigned char *at, *end;
} json;

static void space(json *in) {
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r')) in->at++;
}

static int next_is(json *in, char wanted) {
    space(in);
    if (in->at == in->end || *in->at != (unsigned char)wanted) return 0;
    in->at++;
    return 1;
}

static int hex4(json *in, unsigned long *code) {
    if (in->end - in->at < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = *in->at++;
        unsigned value;
        if (c >= '0' && c <= '9') value = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') value = (c | 32) - 'a' + 10;
        else return 0;
        *code = *code << 4 | value;
    }
    return 1;
}

/* Appends a character, whole or not at all; what has no room is left out. */
static void put(unsigned long code, char *out, size_t size, size_t *length) {
    unsigned char bytes[4];
    size_t count;
    if (code < 0x20 || code == 0x7f) code = '?';
    if (code < 0x80) {
        bytes[0] = (unsigned char)code;
        count = 1;
    } else if (code < 0x800) {
        bytes[0] = (unsigned char)(0xc0 | code >> 6);
        bytes[1] = (unsigned char)(0x80 | (code & 0x3f));
        count = 2;
    } else if (code < 0x10000) {
        bytes[0] = (unsigned char)(0xe0 | code >> 12);
        bytes[1] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (unsigned char)(0x80 | (code & 0x3f));
        count = 3;
    } else {
        bytes[0] = (unsigned char)(0xf0 | code >> 18);
        bytes[1] = (unsigned char)(0x80 | (code >> 12 & 0x3f));
        bytes[2] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        bytes[3] = (unsigned char)(0x80 | (code & 0x3f));
        count = 4;
    }
    if (out && *length + count < size) {
        memcpy(out + *length, bytes, count);
        *length += count;
    }
}

/* A character of UTF-8, of more than one byte. */
static int multibyte(json *in, unsigned long *code) {
    unsigned char first = *in->at++;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    static const unsigned long least[] = {0, 0x80, 0x800, 0x10000};
    if (first < 0xc2 || first > 0xf4 || in->end - in->at < more) return 0;
    *code = first & (0x3fu >> more);
    for (int i = 0; i < more; i++) {
        if ((*in->at & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (*in->at++ & 0x3f);
    }
    return *code >= least[more] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
}

static int escape(json *in, unsigned long *code) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    unsigned long low;
    if (in->at == in->end) return 0;
    unsigned char c = *in->at++;
    if (c != 'u') {
        const char *found = c ? strchr(names, c) : NULL;
        if (!found) return 0;
        *code = (unsigned char)meant[found - names];
        return 1;
    }
    if (!hex4(in, code)) return 0;
    if (*code >= 0xd800 && *code < 0xdc00 && in->end - in->at >= 6 && in->at[0] == '\\' && in->at[1] == 'u') {
        json ahead = {in->at + 2, in->end};
        if (hex4(&ahead, &low) && low >= 0xdc00 && low < 0xe000) {
            *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
            in->at = ahead.at;
        }
    }
    if (*code >= 0xd800 && *code < 0xe000) *code = '?';
    return 1;
}

/* A string; with `out` its text, cut to `size` bytes with the NUL. */
static int string(json *in, char *out, size_t size) {
    size_t length = 0;
    if (!next_is(in, '"')) return 0;
    while (in->at < in->end && *in->at != '"') {
        unsigned long code = *in->at;
        if (code < 0x20) return 0;
        if (code == '\\') {
            in->at++;
            if (!escape(in, &code)) return 0;
        } else if (code >= 0x80) {
            if (!multibyte(in, &code)) return 0;
        } else {
            in->at++;
        }
        put(code, out, size, &length);
    }
    if (in->at == in->end) return 0;
    in->at++;
    if (out) out[length] = '\0';
    return 1;
}

/* A number, independent of the locale, which strtod is not. */
static int number(json *in, double *value) {
    double sign = 1, found = 0, scale = 1;
    int digits = 0, exponent = 0, negative = 0;
    space(in);
    if (in->at < in->end && *in->at == '-') sign = -1, in->at++;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++, digits++) found = found * 10 + (*in->at - '0');
    if (in->at < in->end && *in->at == '.') {
        for (in->at++; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++, digits++) {
            found = found * 10 + (*in->at - '0');
            scale *= 10;
        }
    }
    if (!digits) return 0;
    if (in->at < in->end && (*in->at | 32) == 'e') {
        in->at++;
        if (in->at < in->end && (*in->at == '-' || *in->at == '+')) negative = *in->at++ == '-';
        if (in->at == in->end || *in->at < '0' || *in->at > '9') return 0;
        for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
            if (exponent < 400) exponent = exponent * 10 + (*in->at - '0');
        }
    }
    found /= scale;
    for (; exponent > 0; exponent--) found = negative ? found / 10 : found * 10;
    *value = sign * found;
    return 1;
}

static int word(json *in, const char *wanted) {
    size_t length = strlen(wanted);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, wanted, length)) return 0;
    in->at += length;
    return 1;
}

/* Passes over a value. */
static int value(json *in, int depth) {
    double ignored;
    space(in);
    if (in->at == in->end || depth > MAX_DEPTH) return 0;
    char first = (char)*in->at, last = first == '{' ? '}' : ']';
    switch (first) {
    case '{':
    case '[':
        in->at++;
        if (next_is(in, last)) return 1;
        do {
            if (first == '{' && !(string(in, NULL, 0) && next_is(in, ':'))) return 0;
            if (!value(in, depth + 1)) return 0;
        } while (next_is(in, ','));
        return next_is(in, last);
    case '"': return string(in, NULL, 0);
    case 't': return word(in, "true");
    case 'f': return word(in, "false");
    case 'n': return word(in, "null");
    default: return number(in, &ignored);
    }
}

static int is_object(json in) {
    space(&in);
    if (in.at == in.end || *in.at != '{' || !value(&in, 0)) return 0;
    space(&in);
    return in.at == in.end;
}

/* The value of an object's member; the last of several. The document has been checked. */
static int member(json in, const char *name, json *found) {
    char key[64];
    int there = 0;
    if (!next_is(&in, '{') || next_is(&in, '}')) return 0;
    do {
        if (!string(&in, key, sizeof key) || !next_is(&in, ':')) return 0;
        if (!strcmp(key, name)) *found = in, there = 1;
        if (!value(&in, 0)) return 0;
    } while (next_is(&in, ','));
    return there;
}

static int member_text(json in, const char *name, char *out, size_t size) {
    json found;
    out[0] = '\0';
    return member(in, name, &found) && string(&found, out, size);
}

/* What a document calls infinite, or with hundreds of digits, is no number. */
static int member_number(json in, const char *name, double *out) {
    json found;
    double read;
    if (!member(in, name, &found) || !number(&found, &read) || !(read <= LARGEST && read >= -LARGEST)) return 0;
    *out = read;
    return 1;
}

/* The next of a list's values; `list` is behind its bracket at first. */
static int element(json *list, json *found) {
    json end = *list;
    if (next_is(&end, ']')) return 0;
    *found = *list;
    if (!value(list, 0)) return 0;
    (void)next_is(list, ',');
    return 1;
}

static int member_list(json in, const char *name, json *list) { return member(in, name, list) && next_is(list, '['); }

/* ---- Requests at the worker's socket ---- */

typedef struct {
    int status;
    char *text;
    json body;
} answer;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void rest(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) && errno == EINTR) continue;
}

/* The environment as it was at the first call. Later another thread may change it, which a reader must not meet, and the
 * thread of renewals reads at any time. */
static char socket_path[4096] = SOCKET_PATH, scratch[4096];

static void read_environment(void) {
    const char *given = getenv("LARK_SOCKET"), *directory = getenv("_CONDOR_SCRATCH_DIR");
    if (given && *given) snprintf(socket_path, sizeof socket_path, "%s", given);
    if (directory) snprintf(scratch, sizeof scratch, "%s", directory);
}

/* This process was answered: a service that starts anew has no socket for a moment. */
static atomic_int answered_before;

static void forget(answer *of) {
    free(of->text);
    of->text = NULL;
}

static void limit(int fd, int which, double seconds) {
    struct timeval time;
    if (seconds < 0.001) seconds = 0.001;
    time.tv_sec = (time_t)seconds;
    time.tv_usec = (suseconds_t)((seconds - (double)time.tv_sec) * 1e6);
    setsockopt(fd, SOL_SOCKET, which, &time, sizeof time);
}

static int send_all(int fd, const char *data, size_t length) {
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return 0;
        data += sent;
        length -= (size_t)sent;
    }
    return 1;
}

/* Status and document of an answer that is whole; NULL, or what is wrong with it. */
static const char *read_answer(answer *of, size_t length) {
    char *head = memmem(of->text, length, "\r\n\r\n", 4);
    int status = 0;
    if (!head || length < 14 || memcmp(of->text, "HTTP/1.", 7)) return "it gave no answer";
    char *space_at = memchr(of->text, ' ', (size_t)(head - of->text));
    if (!space_at || head - space_at < 4) return "it gave no answer";
    for (int i = 1; i < 4; i++) {
        if (space_at[i] < '0' || space_at[i] > '9') return "it gave no answer";
        status = status * 10 + (space_at[i] - '0');
    }
    if (space_at[4] != ' ' && space_at[4] != '\r') return "it gave no answer";
    of->body = (json){(unsigned char *)head + 4, (unsigned char *)of->text + length};
    if (!is_object(of->body)) return "its answer is no JSON object";
    of->status = status;
    return NULL;
}

/* One request, of so many seconds; NULL, or what went wrong, with `missing` set where no service is there. */
static const char *once(const char *request, size_t length, double seconds, answer *out, int *missing) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const char *problem = NULL;
    size_t held = 0, room = 1 << 16;
    *missing = out->status = 0;
    if (strlen(socket_path) >= sizeof name.sun_path) {
        *missing = 1;
        return "the socket's path is too long";
    }
    memcpy(name.sun_path, socket_path, strlen(socket_path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return strerror(errno);
    double deadline = now() + seconds;
    /* Somebody may have filled the service's queue: the kernel waits for room there. */
    limit(fd, SO_SNDTIMEO, seconds < SECONDS ? seconds : SECONDS);
    if (connect(fd, (struct sockaddr *)&name, sizeof name)) {
        *missing = errno == ENOENT || errno == ENOTDIR;
        problem = strerror(errno);
        close(fd);
        return problem;
    }
    out->text = malloc(room);
    if (!out->text) problem = "no memory";
    else if (!send_all(fd, request, length)) problem = strerror(errno);
    while (!problem) {
        limit(fd, SO_RCVTIMEO, deadline - now());
        ssize_t got = recv(fd, out->text + held, room - held, 0);
        if (got < 0 && errno == EINTR && now() < deadline) continue;
        if (got < 0) problem = errno == EAGAIN || errno == EINTR ? "it gave no answer in time" : strerror(errno);
        if (got <= 0) break;
        held += (size_t)got;
        if (held > MAX_ANSWER || now() > deadline) problem = "its answer is too long";
        if (!problem && held == room) {
            char *more = realloc(out->text, room *= 2);
            if (more) out->text = more;
            else problem = "no memory";
        }
    }
    close(fd);
    if (!problem) problem = read_answer(out, held);
    if (problem) forget(out);
    return problem;
}

/* Asks until there is an answer that is one, for `patience` seconds, or once; the answer may take `seconds`, and `wait` on
 * top, for which the service itself waits. 0 where there is none, and `reason` says why; the status is 0 then. The answer is to be
 * forgotten. */
static int ask(const char *method, const char *target, const char *body, double wait, double seconds, double patience,
               answer *out, char *reason) {
    char request[1024];
    double deadline = now() + patience, pause = PAUSE, left = seconds;
    int missing, length = snprintf(request, sizeof request,
                                   "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                   "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                                   method, target, strlen(body), body);
    out->text = NULL;
    out->status = 0;
    if (length < 0 || (size_t)length >= sizeof request) {
        snprintf(reason, TEXT, "the request is too long");
        return 0;
    }
    for (;;) {
        const char *problem = once(request, (size_t)length, left + wait, out, &missing);
        if (problem && missing && !answered_before) {
            snprintf(reason, TEXT, "%.400s: no worker service of Lark is here", socket_path);
            return 0;
        }
        if (!problem) answered_before = 1;
        if (!problem && out->status != BUSY && out->status != AWAY) return 1;
        if (now() + pause > deadline) {
            if (!problem) return 1;
            if (missing) snprintf(reason, TEXT, "the worker service cannot be asked: %.400s is not there", socket_path);
            else snprintf(reason, TEXT, "the worker service cannot be asked: %s", problem);
            return 0;
        }
        forget(out);
        rest(pause);
        if ((pause *= 2) > LONGEST_PAUSE) pause = LONGEST_PAUSE;
        left = deadline - now();
        if (left < SHORTEST_TRY) left = SHORTEST_TRY;
        if (left > seconds) left = seconds;
    }
}

/* The sentence of a problem. */
static void say(const answer *of, char *reason) {
    if (!member_text(of->body, "detail", reason, TEXT) || !*reason)
        snprintf(reason, TEXT, "the worker service answered %d", of->status);
}

/* Ids become parts of requests: letters and digits alone. */
static int is_id(const char *text) {
    size_t length = strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return length > 0 && length < ID - 1 && !text[length];
}

/* ---- Rates ---- */

typedef struct {
    char job[ID], host[HOST], addresses[ADDRESSES][INET6_ADDRSTRLEN];
} place;

static int has(const place *of, int six) {
    for (int i = 0; i < ADDRESSES; i++) {
        if (of->addresses[i][0] && !strchr(of->addresses[i], ':') == !six) return 1;
    }
    return 0;
}

/* The MTU of the route to a job, as the kernel knows it; 1500 where it knows none. */
static int mtu_to(const place *there) {
    for (int i = 0; i < ADDRESSES && there->addresses[i][0]; i++) {
        const char *address = there->addresses[i];
        int six = strchr(address, ':') != NULL, mtu = 0;
        socklen_t size = sizeof mtu;
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(9)};
        struct sockaddr_in6 long_one = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
        void *number_at = six ? (void *)&long_one.sin6_addr : (void *)&four.sin_addr;
        if (inet_pton(six ? AF_INET6 : AF_INET, address, number_at) != 1) continue;
        int fd = socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        const struct sockaddr *name = six ? (struct sockaddr *)&long_one : (struct sockaddr *)&four;
        int known = !connect(fd, name, six ? sizeof long_one : sizeof four) &&
                    !getsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu, &size);
        close(fd);
        if (known) return mtu;
    }
    return 1500;
}

/* Bytes on a link for each byte of the application, in full packets: (MTU + 14) / (MTU - IP - 32). 14 are Ethernet's,
 * IP is 20 or with IPv6 40, 32 are TCP's with its time stamps. */
static double headers(const place *here, const place *there) {
    int six = has(here, 1) && has(there, 1) && !(has(here, 0) && has(there, 0));
    double mtu = mtu_to(there);
    if (mtu < 576) mtu = 576;
    if (mtu > 65535) mtu = 65535;
    return (mtu + 14) / (mtu - (six ? 40 : 20) - 32);
}

/* An application's rate in bytes a second as a link's in kb/s, rounded up. */
static long long kilobits(double rate, const place *here, const place *there) {
    double exact = rate * 8e-3 * headers(here, there);
    long long whole = (long long)exact;
    if (exact - (double)whole > 1e-6) whole++;
    return whole > 0 ? whole : 1;
}

/* ---- Flows, and their renewal on a thread that makes no call to MPI ---- */

typedef struct {
    char id[ID]; /* empty: none */
    long long kbps;
    int steady, changing; /* a request for another rate is under way */
    int late; /* its last renewal had no answer */
    char lost[TEXT];
} flow;

typedef struct reservation {
    lark_mpi_status status; /* first: what the attribute shows */
    double lease, due, all_due; /* the next renewal, and the next one of all flows */
    double silent, unanswered; /* the first question about paths in a row without an answer, and the last one; 0: none */
    double not_before, pace;   /* no question about a change before this time, but one that waits itself; and so much
                                  later where the job asks too often */
    int makes, jobs, own, steady;
    int away; /* nobody has answered what was asked last for this change: what it gives back waits for no long answer */
    char version[VERSION]; /* of the paths as they were read last */
    place *places; /* of each job */
    flow *flows, *before;
    int readers, over; /* threads that read it, of which the last one frees it once it is over */
    struct reservation *next, *other; /* of those that are held, and of all */
} reservation;

/* Guards the lists, and the flows in them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake, idle = PTHREAD_COND_INITIALIZER;
static reservation *held, *all;
static pthread_t thread;
static int running, stopping;
/* The flow that is being renewed, or empty. */
static char renewing[ID];
/* The process that holds them; 0: none yet. */
static atomic_int owner;

static flow flow_of(const reservation *of, int job) {
    pthread_mutex_lock(&lock);
    flow found = of->flows[job];
    pthread_mutex_unlock(&lock);
    return found;
}

static void keep(reservation *of, int job, const flow *made) {
    pthread_mutex_lock(&lock);
    of->flows[job] = *made;
    pthread_mutex_unlock(&lock);
}

/* A flow that is to be changed. A renewal with the rate of before must not overtake the change: the one waits for the
 * other. */
static flow begin_change(reservation *of, int job) {
    pthread_mutex_lock(&lock);
    while (renewing[0] && !strcmp(of->flows[job].id, renewing)) pthread_cond_wait(&idle, &lock);
    flow found = of->flows[job];
    of->flows[job].changing = 1;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Its end; `made` is the flow as it is now, NULL where it has not changed. */
static void end_change(reservation *of, int job, const flow *made) {
    pthread_mutex_lock(&lock);
    if (made) of->flows[job] = *made;
    of->flows[job].changing = 0;
    pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&lock);
}

/* The flow with an id that is held and not lost; the lock is held. */
static flow *find_flow(const char *id, reservation **of) {
    for (reservation *each = held; each; each = each->next) {
        for (int job = 0; job < each->jobs; job++) {
            *of = each;
            if (!strcmp(each->flows[job].id, id) && !each->flows[job].lost[0]) return &each->flows[job];
        }
    }
    return NULL;
}

static int jobs_of(const reservation *of) {
    pthread_mutex_lock(&lock);
    int found = of->jobs;
    pthread_mutex_unlock(&lock);
    return found;
}

/* A flow to be renewed. */
typedef struct {
    char id[ID];
} due_flow;

/* A request's rate, end and steadiness, as a JSON object. */
static int terms(char *body, size_t size, long long kbps, double lease, int steady) {
    return snprintf(body, size, "{\"rate\": %lld.%03lld, \"duration\": %lld, \"steady\": %s}", kbps / 1000, kbps % 1000,
                    (long long)lease, steady ? "true" : "false");
}

/* Renews a flow as it is now. The lock is held, but not while the service is asked. */
static void renew(const char *id) {
    char target[96], body[128], reason[TEXT] = "";
    answer found = {.text = NULL};
    reservation *of;
    flow *made = find_flow(id, &of);
    while (made && made->changing) {
        pthread_cond_wait(&idle, &lock);
        made = find_flow(id, &of);
    }
    if (!made) return;
    snprintf(target, sizeof target, "/v1/reservations/%s", id);
    terms(body, sizeof body, made->kbps, of->lease, made->steady);
    memcpy(renewing, made->id, ID);
    pthread_mutex_unlock(&lock);
    int answered = ask("PATCH", target, body, 0, SECONDS, RENEWAL_PATIENCE, &found, reason);
    if (answered) say(&found, reason);
    pthread_mutex_lock(&lock);
    renewing[0] = '\0';
    pthread_cond_broadcast(&idle);
    if ((made = find_flow(id, &of))) {
        double again = now() + of->lease / AGAIN_IN_A_LEASE;
        made->late = !answered || found.status == BUSY || found.status == AWAY;
        if (made->late && again < of->due) of->due = again;
        if (answered && found.status == NOT_FOUND) memcpy(made->lost, reason, TEXT);
    }
    forget(&found);
}

/* The flows that are due, which the caller frees; the lock is held. */
static due_flow *take_due(double time, int *count) {
    int most = 0;
    *count = 0;
    for (reservation *each = held; each; each = each->next) most += each->due <= time ? each->jobs : 0;
    due_flow *found = calloc((size_t)most + 1, sizeof *found);
    for (reservation *each = held; each; each = each->next) {
        if (each->due > time) continue;
        int all = each->all_due <= time;
        if (all) each->all_due = time + each->lease / 3;
        each->due = each->all_due;
        for (int job = 0; job < each->jobs && found; job++) {
            const flow *made = &each->flows[job];
            if (made->id[0] && !made->lost[0] && (all || made->late)) memcpy(found[(*count)++].id, made->id, ID);
        }
    }
    return found;
}

static void *renewals(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        double first = now() + 3600;
        int count;
        for (reservation *each = held; each; each = each->next) first = each->due < first ? each->due : first;
        if (first > now()) {
            struct timespec until = {(time_t)first, (long)((first - (double)(time_t)first) * 1e9)};
            pthread_cond_timedwait(&wake, &lock, &until);
            continue;
        }
        due_flow *due = take_due(now(), &count);
        for (int i = 0; i < count && !stopping; i++) renew(due[i].id);
        free(due);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Renews a reservation from now on. Without a thread it would end after a lease: 0. */
static int enlist(reservation *of) {
    int there = 0;
    double due = now() + of->lease / 3;
    pthread_mutex_lock(&lock);
    for (reservation *each = held; each; each = each->next) there |= each == of;
    /* With a longer lease than before, no later than what is reserved already needs it. */
    if (!there || due < of->all_due) of->all_due = due;
    if (!there || due < of->due) of->due = due;
    if (!there) {
        of->next = held;
        held = of;
    }
    if (!running) {
        sigset_t all, old;
        pthread_condattr_t clock;
        pthread_condattr_init(&clock);
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        pthread_cond_init(&wake, &clock);
        pthread_condattr_destroy(&clock);
        /* Signals are the application's. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        stopping = 0;
        owner = getpid();
        running = !pthread_create(&thread, NULL, renewals, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    } else {
        pthread_cond_signal(&wake);
    }
    there = running;
    pthread_mutex_unlock(&lock);
    return there;
}

/* Seconds for the answer to a request that gives something back. */
static double for_answer(const reservation *of) { return of->away ? BRIEFLY : SECONDS; }

/* Gives a flow back. Where nobody answers, or nobody `answers` as it is, its end does it, and the result is 0. */
static int give(reservation *of, int job, int answers) {
    char target[96], reason[TEXT];
    answer found;
    flow was = flow_of(of, job);
    keep(of, job, &(flow){.kbps = 0});
    if (!was.id[0] || was.lost[0] || !answers) return answers;
    snprintf(target, sizeof target, "/v1/reservations/%s", was.id);
    if (!ask("DELETE", target, "", 0, for_answer(of), RENEWAL_PATIENCE, &found, reason)) return 0;
    forget(&found);
    return found.status != AWAY;
}

/* A number for a share, by which the service finds that a request is the one of before, whose answer was lost. */
static unsigned long long new_number(void) {
    unsigned long long found = 0;
    if (getrandom(&found, sizeof found, 0) != sizeof found)
        found = (unsigned long long)(now() * 1e9) ^ (unsigned long long)getpid() << 32;
    return 1 + found % NUMBERS;
}

/* Notes that nobody has answered a request; true where somebody has. */
static int note_away(reservation *of, int asked, const answer *found) {
    of->away = !asked || found->status == AWAY;
    return asked;
}

/* Sets a flow's rate, or makes one where there is none; with `anew` also where it is over, and with more patience. */
static int take(reservation *of, int job, long long kbps, int steady, int anew, char *reason) {
    char target[96], body[256];
    answer found;
    double seconds = anew ? SECONDS : for_answer(of), patience = anew ? PATIENCE : RENEWAL_PATIENCE;
    flow made = begin_change(of, job);
    int is_new = !made.id[0] || made.lost[0], good = 1;
    int length = terms(body, sizeof body, kbps, of->lease, steady) - 1;
    if (!is_new) {
        snprintf(target, sizeof target, "/v1/reservations/%s", made.id);
        good = note_away(of, ask("PATCH", target, body, 0, seconds, patience, &found, reason), &found);
        /* It is over: another one in its place. */
        is_new = good && found.status == NOT_FOUND && anew;
        if (is_new) forget(&found);
    }
    if (is_new) {
        snprintf(body + length, sizeof body - (size_t)length, ", \"destination\": \"%s\", \"share\": %llu}",
                 of->places[job].job, new_number());
        good = note_away(of, ask("POST", "/v1/reservations", body, 0, seconds, patience, &found, reason), &found);
    }
    if (good) {
        made = (flow){.kbps = kbps, .steady = steady};
        good = (found.status == 200 || found.status == 201) && member_text(found.body, "id", made.id, ID) && is_id(made.id);
        if (!good) say(&found, reason);
        forget(&found);
    }
    end_change(of, job, good ? &made : NULL);
    return good;
}

/* Waits until what was taken is enforced; 0 where it is not, and `reason` says why. */
static int confirm(reservation *of, int job, char *reason) {
    char target[96], state[16], why[TEXT];
    answer found;
    double began = now(), pause = PAUSE;
    flow made = flow_of(of, job);
    if (!made.id[0]) return 1;
    snprintf(target, sizeof target, "/v1/reservations/%s?wait=%d", made.id, WAIT);
    for (;;) {
        if (!note_away(of, ask("GET", target, "", WAIT, SECONDS, PATIENCE, &found, reason), &found)) return 0;
        int good = found.status == 200;
        if (!good) say(&found, reason);
        (void)member_text(found.body, "state", state, sizeof state);
        if (!member_text(found.body, "reason", why, sizeof why) || !*why) snprintf(why, sizeof why, "its queues are being made");
        forget(&found);
        if (!good) return 0;
        int under_way = !strcmp(state, "registering");
        /* A worker service of before tells no state. */
        if (!under_way && strcmp(state, "pending") && strcmp(state, "quarantined")) return 1;
        if (now() - began >= (under_way ? LONGEST_QUEUES : WAIT)) {
            snprintf(reason, TEXT, "what is reserved is not enforced: %.440s", why);
            return 0;
        }
        /* Where too many wait already, the answer comes at once. */
        rest(pause);
        if ((pause *= 2) > LONGEST_PAUSE) pause = LONGEST_PAUSE;
    }
}

/* Loses those of the flows that are wanted again and are over: an operator may have released them since the last renewal,
 * and what is reserved already would not be asked for. Where nobody answers, they are as before, and the result is 0. */
static int look_for(reservation *of, const long long *wanted, double patience, char *reason) {
    char id[ID];
    answer found;
    json list, each;
    int any = 0;
    for (int job = 0; job < of->jobs; job++) {
        flow made = flow_of(of, job);
        any |= wanted[job] && made.id[0] && !made.lost[0];
    }
    if (!any) return 1;
    if (!note_away(of, ask("GET", "/v1/paths", "", 0, SECONDS, patience, &found, reason), &found)) return 0;
    int good = found.status != BUSY && found.status != AWAY;
    if (!good) say(&found, reason);
    if (found.status == 200 && member_list(found.body, "paths", &list)) {
        for (int job = 0; job < of->jobs; job++) {
            flow made = flow_of(of, job);
            size_t length = strcspn(made.id, (char[]){SHARE, 0});
            int there = 0;
            if (!wanted[job] || !made.id[0] || made.lost[0]) continue;
            for (json rest = list; !there && element(&rest, &each);)
                there = member_text(each, "reservation", id, sizeof id) && strlen(id) == length && !memcmp(id, made.id, length);
            if (there) continue;
            pthread_mutex_lock(&lock);
            if (!strcmp(of->flows[job].id, made.id)) snprintf(of->flows[job].lost, TEXT, "the reservation %s is over", made.id);
            pthread_mutex_unlock(&lock);
        }
    }
    forget(&found);
    return good;
}

/* Keeps the flows for undo; returns the last job to which more is wanted than before, or -1. */
static int last_of_more(reservation *of, const long long *wanted) {
    int last = -1;
    pthread_mutex_lock(&lock);
    memcpy(of->before, of->flows, sizeof *of->before * (size_t)of->jobs);
    pthread_mutex_unlock(&lock);
    for (int job = 0; job < of->jobs; job++) {
        if (wanted[job] > of->before[job].kbps || (wanted[job] && of->before[job].lost[0])) last = job;
    }
    return last;
}

/* Takes what is more than before. */
static int prepare(reservation *of, const long long *wanted, char *reason) {
    char ignored[TEXT];
    int more = last_of_more(of, wanted) >= 0;
    of->away = 0;
    /* Where nobody answers, a request for no more is not refused. */
    if (!look_for(of, wanted, more ? PATIENCE : RENEWAL_PATIENCE, more ? reason : ignored) && more) return 0;
    int last = last_of_more(of, wanted);
    /* First: where the service takes its time, one is to be renewed before the last one is there. */
    if (!enlist(of)) {
        snprintf(reason, TEXT, "no thread can be started to renew what is reserved");
        return 0;
    }
    for (int job = 0; job <= last; job++) {
        if (wanted[job] > of->before[job].kbps || (wanted[job] && of->before[job].lost[0])) {
            if (!take(of, job, wanted[job], of->steady, 1, reason)) return 0;
        }
    }
    /* The queues of all flows of the job are asked for together. */
    return last < 0 || confirm(of, last, reason);
}

/* Lowers a rate, or makes it steady or not, which is never refused. Where nobody answers, or nobody `answers` as it is,
 * the next renewal does it, and the result is 0. */
static int set(reservation *of, int job, long long kbps, int steady, int answers) {
    char reason[TEXT];
    if (answers && take(of, job, kbps, steady, 0, reason)) return 1;
    flow made = flow_of(of, job);
    made.kbps = kbps;
    made.steady = steady;
    keep(of, job, &made);
    return 0;
}

/* Lowers every flow to a rate, or gives it back, and makes it steady or not. */
static void lower(reservation *of, const long long *wanted) {
    for (int job = 0, answers = 1; job < of->jobs; job++) {
        flow made = flow_of(of, job);
        if (!made.id[0]) continue;
        if (!wanted[job]) answers = give(of, job, answers);
        else if ((wanted[job] < made.kbps || of->steady != made.steady) && !made.lost[0])
            answers = set(of, job, wanted[job], of->steady, answers);
    }
}

static void undo(reservation *of) {
    for (int job = 0, answers = 1; job < of->jobs; job++) {
        flow made = flow_of(of, job), was = of->before[job];
        long long wanted = was.lost[0] ? 0 : was.kbps;
        if (!made.id[0] || (made.kbps == wanted && made.steady == was.steady) || made.lost[0]) continue;
        if (!wanted) answers = give(of, job, answers);
        else answers = set(of, job, wanted, was.steady, answers);
        /* The program reads that it is lost, and reserves it again by its next request. */
        if (was.lost[0]) keep(of, job, &was);
    }
}

/* Gives everything back, as long as somebody `answers`; 0 where nobody does. */
static int drop(reservation *of, int answers) {
    for (int job = 0; of->makes && job < of->jobs; job++) answers = give(of, job, answers);
    pthread_mutex_lock(&lock);
    for (reservation **each = &held; *each; each = &(*each)->next) {
        if (*each == of) {
            *each = of->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return answers;
}

/* ---- The communicator ---- */

static atomic_int keyval = MPI_KEYVAL_INVALID;
static int end_keyval = MPI_KEYVAL_INVALID;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

#define TRY(call) \
    do { \
        if ((call) != MPI_SUCCESS) return LARK_MPI_FAILED; \
    } while (0)

static void destroy(reservation *of) {
    free(of->places);
    free(of->flows);
    free(of->before);
    free(of);
}

/* The communicator's reservation, which is there until leave; NULL where it has none. */
static int enter(MPI_Comm comm, reservation **of) {
    reservation *each;
    int there;
    TRY(MPI_Comm_get_attr(comm, keyval, of, &there));
    pthread_mutex_lock(&lock);
    /* Another thread may have released it since. */
    for (each = there ? all : NULL; each && each != *of;) each = each->other;
    if (each) each->readers++;
    pthread_mutex_unlock(&lock);
    *of = each;
    return LARK_MPI_OK;
}

static void leave(reservation *of) {
    if (!of) return;
    pthread_mutex_lock(&lock);
    int last = !--of->readers && of->over;
    pthread_mutex_unlock(&lock);
    if (last) destroy(of);
}

/* False for a value that a program has set by MPI's own name. */
static int is_ours(const void *value_of) {
    const reservation *each;
    pthread_mutex_lock(&lock);
    for (each = all; each && each != value_of;) each = each->other;
    pthread_mutex_unlock(&lock);
    return each != NULL;
}

/* True in a child of the process: what is reserved is its parent's, and the lock may be another thread's that is not
 * there. */
static int in_child(void) { return owner && owner != getpid(); }

static int gone(MPI_Comm comm, int key, void *attribute, void *unused) {
    (void)comm, (void)key, (void)unused;
    if (in_child()) return MPI_SUCCESS;
    reservation *of = attribute, **each = &all;
    pthread_mutex_lock(&lock);
    while (*each && *each != of) each = &(*each)->other;
    int ours = *each != NULL;
    if (ours) {
        *each = of->other;
        /* First: a thread that waits for a change is not to find that it has no flows, and no end. */
        of->over = 1;
        of->readers++;
    }
    pthread_mutex_unlock(&lock);
    /* A program that sets the attribute by MPI's own name has put its wish there. */
    if (!ours) return MPI_SUCCESS;
    drop(of, 1);
    leave(of);
    return MPI_SUCCESS;
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF before it does anything else. */
static int ends(MPI_Comm comm, int key, void *attribute, void *unused) {
    (void)comm, (void)key, (void)attribute, (void)unused;
    if (in_child()) return MPI_SUCCESS;
    /* The program's end is not to wait for each of a thousand flows where nobody answers. */
    int answers = 1;
    pthread_mutex_lock(&lock);
    while (held) {
        reservation *each = held;
        pthread_mutex_unlock(&lock);
        answers = drop(each, answers);
        pthread_mutex_lock(&lock);
    }
    int join = running;
    stopping = 1;
    running = 0;
    if (join) pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    if (join) pthread_join(thread, NULL);
    return MPI_SUCCESS;
}

int lark_mpi_keyval(void) {
    int made, begun = 0, over = 0;
    /* MPI itself would end the process. */
    if (MPI_Initialized(&begun) || MPI_Finalized(&over) || !begun || over) return MPI_KEYVAL_INVALID;
    if (keyval != MPI_KEYVAL_INVALID) return keyval;
    /* Several threads may ask first. */
    pthread_mutex_lock(&making);
    if (keyval == MPI_KEYVAL_INVALID) read_environment();
    /* A duplicate of a communicator has no reservation. */
    if (keyval == MPI_KEYVAL_INVALID && MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, gone, &made, NULL) == MPI_SUCCESS) {
        if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, ends, &end_keyval, NULL) == MPI_SUCCESS)
            PMPI_Comm_set_attr(MPI_COMM_SELF, end_keyval, &end_keyval);
        keyval = made;
    }
    pthread_mutex_unlock(&making);
    return keyval;
}

/* The first problem of any rank, with the rank, on all of them; 1 where there is one. */
static int first(MPI_Comm comm, const char *problem, char *reason, int *any) {
    int rank, size, mine, least;
    char text[TEXT] = "";
    TRY(MPI_Comm_rank(comm, &rank));
    TRY(MPI_Comm_size(comm, &size));
    mine = *problem ? rank : size;
    TRY(MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, comm));
    *any = least < size;
    if (*any) {
        if (least == rank) snprintf(text, TEXT, "rank %d: %.480s", rank, problem);
        TRY(MPI_Bcast(text, TEXT, MPI_CHAR, least, comm));
        memcpy(reason, text, TEXT);
    }
    return LARK_MPI_OK;
}

/* The ranks that this one sends to in the communicator's topology; NULL without memory. */
static int *neighbours(MPI_Comm comm, int *count, char *problem) {
    int kind, rank, *found = NULL, in = 0, weighted;
    *count = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Topo_test(comm, &kind);
    if (kind == MPI_CART) {
        int dimensions = 0;
        MPI_Cartdim_get(comm, &dimensions);
        found = malloc(sizeof *found * (size_t)(2 * dimensions + 1));
        for (int i = 0; found && i < dimensions; i++, *count += 2)
            MPI_Cart_shift(comm, i, 1, &found[*count], &found[*count + 1]);
    } else if (kind == MPI_GRAPH) {
        MPI_Graph_neighbors_count(comm, rank, count);
        found = malloc(sizeof *found * (size_t)(*count + 1));
        if (found) MPI_Graph_neighbors(comm, rank, *count, found);
    } else if (kind == MPI_DIST_GRAPH) {
        MPI_Dist_graph_neighbors_count(comm, &in, count, &weighted);
        int *sources = malloc(sizeof *sources * (size_t)(in + 1)), *weights = malloc(sizeof *weights * (size_t)(in + *count + 1));
        found = malloc(sizeof *found * (size_t)(*count + 1));
        if (!sources || !weights) {
            free(found);
            found = NULL;
        }
        if (found)
            MPI_Dist_graph_neighbors(comm, in, sources, weighted ? weights : MPI_UNWEIGHTED, *count, found,
                                     weighted ? weights + in : MPI_UNWEIGHTED);
        free(sources);
        free(weights);
    } else {
        snprintf(problem, TEXT, "the communicator has no topology, and so no neighbours");
    }
    return found;
}

/* Fills the rates that this rank sends, or says what is wrong with the wish. */
static void row(MPI_Comm comm, const lark_mpi_wish *wish, double *sent, char *problem) {
    int rank, size, count = 0, *near = NULL;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int i = 0; i < size; i++) sent[i] = 0;
    if (!wish) {
        snprintf(problem, TEXT, "there is no wish");
        return;
    }
    if (wish->lease != 0 && !(wish->lease >= SHORTEST_LEASE && wish->lease <= LONGEST_LEASE)) {
        snprintf(problem, TEXT, "a lease of %g seconds; %g to %g are accepted", wish->lease, SHORTEST_LEASE, LONGEST_LEASE);
        return;
    }
    switch (wish->pattern) {
    case LARK_MPI_ALL:
        for (int i = 0; i < size; i++) sent[i] = wish->rate;
        break;
    case LARK_MPI_RING: sent[(rank + 1) % size] = wish->rate; break;
    case LARK_MPI_NEIGHBOURS:
        near = neighbours(comm, &count, problem);
        if (!near && !*problem) snprintf(problem, TEXT, "no memory");
        for (int i = 0; near && i < count; i++) {
            if (near[i] != MPI_PROC_NULL) sent[near[i]] += wish->rate;
        }
        free(near);
        break;
    case LARK_MPI_TABLE:
        if (!wish->table) snprintf(problem, TEXT, "the pattern needs a table");
        for (int i = 0; wish->table && i < size; i++) sent[i] = wish->table[i];
        break;
    default: snprintf(problem, TEXT, "there is no pattern %d", (int)wish->pattern);
    }
    for (int i = 0; i < size && !*problem; i++) {
        if (!(sent[i] >= 0 && sent[i] <= MOST_RATE))
            snprintf(problem, TEXT, "a rate of %g bytes a second; 0 to %g are accepted", sent[i], MOST_RATE);
    }
    sent[rank] = 0;
}

/* A number that is the same for the ranks of a job, and another for those of each other job (FNV-1a). */
static unsigned long long surroundings(void) {
    char name[MPI_MAX_PROCESSOR_NAME + 1] = "", namespace[64] = "";
    int length = 0;
    MPI_Get_processor_name(name, &length);
    if (readlink("/proc/self/ns/net", namespace, sizeof namespace - 1) < 0) namespace[0] = '\0';
    const char *parts[] = {name, namespace, scratch, socket_path};
    unsigned long long found = 14695981039346656037ull;
    for (int i = 0; i < 4; i++) {
        for (const char *c = parts[i];; c++) {
            found = (found ^ (unsigned char)*c) * 1099511628211ull;
            if (!*c) break;
        }
    }
    return found;
}

static void own_place(place *out, char *problem) {
    answer found;
    json list, each;
    if (!ask("GET", "/v1/job", "", 0, SECONDS, PATIENCE, &found, problem)) return;
    if (found.status != 200 || !member_text(found.body, "id", out->job, ID) || !is_id(out->job) ||
        !member_text(found.body, "host", out->host, HOST) || !member_list(found.body, "addresses", &list)) {
        say(&found, problem);
    } else {
        for (int i = 0; i < ADDRESSES && element(&list, &each); i++) {
            if (!string(&each, out->addresses[i], sizeof out->addresses[i])) out->addresses[i][0] = '\0';
        }
    }
    forget(&found);
}

/* A rank by its key, or by its job's id. */
typedef struct {
    unsigned long long key;
    const char *id;
    int rank;
} named_rank;

static int order(const void *one, const void *other) {
    const named_rank *a = one, *b = other;
    int by = a->key != b->key ? (a->key < b->key ? -1 : 1) : strcmp(a->id, b->id);
    return by ? by : a->rank - b->rank;
}

/* Sorts ranks, and sets for each the lowest one with the same key and id. */
static void lowest_alike(named_rank *ranks, int count, int *lowest) {
    qsort(ranks, (size_t)count, sizeof *ranks, order);
    for (int i = 0, first_alike = 0; i < count; i++) {
        if (ranks[i].key != ranks[first_alike].key || strcmp(ranks[i].id, ranks[first_alike].id)) first_alike = i;
        lowest[ranks[i].rank] = ranks[first_alike].rank;
    }
}

/* Numbers the jobs in order of the lowest rank of each: `job_of` each rank, and their places; returns how many there are.
 * Ranks with one key are of one job, whose place the lowest of them has told; and so are all that are told one id. */
static int number_jobs(const unsigned long long *keys, const place *told, int size, named_rank *sorted, int *job_of,
                       place *places) {
    int jobs = 0;
    for (int i = 0; i < size; i++) sorted[i] = (named_rank){keys[i], "", i};
    lowest_alike(sorted, size, job_of);
    for (int i = 0; i < size; i++) sorted[i] = (named_rank){0, told[job_of[i]].job, i};
    lowest_alike(sorted, size, job_of);
    /* The lowest rank of a job comes before the job's others, and is the one that has told its place. */
    for (int i = 0; i < size; i++) {
        if (job_of[i] == i) {
            places[jobs] = told[i];
            job_of[i] = jobs++;
        } else {
            job_of[i] = job_of[job_of[i]];
        }
    }
    return jobs;
}

/* The job of each rank, and the jobs' number; one rank of each asks. */
static int find_places(MPI_Comm comm, int rank, int size, place *places, int *job_of, int *jobs, char *problem, char *reason,
                       int *refused) {
    unsigned long long mine = surroundings(), *keys = malloc(sizeof *keys * (size_t)size);
    place own = {.job = ""}, *told = malloc(sizeof *told * (size_t)size);
    named_rank *sorted = malloc(sizeof *sorted * (size_t)size);
    int result = LARK_MPI_FAILED, asks = 1, alone = 1;
    if (!keys || !told || !sorted || MPI_Allgather(&mine, 1, MPI_UNSIGNED_LONG_LONG, keys, 1, MPI_UNSIGNED_LONG_LONG, comm)) goto end;
    for (int i = 0; i < size; i++) {
        asks &= i >= rank || keys[i] != mine;
        alone &= keys[i] == mine;
    }
    /* Where all ranks are in one job, or in none, nothing is to be reserved, and nobody is asked. */
    if (asks && !alone) own_place(&own, problem);
    result = first(comm, problem, reason, refused);
    if (result || *refused) goto end;
    result = LARK_MPI_FAILED;
    if (MPI_Allgather(&own, sizeof own, MPI_BYTE, told, sizeof own, MPI_BYTE, comm)) goto end;
    for (int i = 0; i < size; i++) {
        /* Whatever another rank has sent, these are texts. */
        told[i].job[ID - 1] = told[i].host[HOST - 1] = '\0';
        for (int j = 0; j < ADDRESSES; j++) told[i].addresses[j][INET6_ADDRSTRLEN - 1] = '\0';
    }
    *jobs = number_jobs(keys, told, size, sorted, job_of, places);
    result = LARK_MPI_OK;
end:
    free(keys);
    free(sorted);
    free(told);
    return result;
}

/* The communicator's reservation, made where there is none. */
static reservation *attribute(MPI_Comm comm, const place *places, int jobs, int own, int makes) {
    reservation *found;
    int there;
    if (MPI_Comm_get_attr(comm, keyval, &found, &there) != MPI_SUCCESS) return NULL;
    if (!there || !is_ours(found)) {
        found = calloc(1, sizeof *found);
        if (!found || PMPI_Comm_set_attr(comm, keyval, found) != MPI_SUCCESS) {
            free(found);
            return NULL;
        }
        pthread_mutex_lock(&lock);
        found->other = all;
        all = found;
        pthread_mutex_unlock(&lock);
    }
    if (!found->jobs && jobs) {
        free(found->places), free(found->flows), free(found->before);
        found->places = malloc(sizeof *places * (size_t)jobs);
        found->flows = calloc((size_t)jobs, sizeof *found->flows);
        found->before = calloc((size_t)jobs, sizeof *found->before);
        if (!found->places || !found->flows || !found->before) return NULL;
        memcpy(found->places, places, sizeof *places * (size_t)jobs);
        found->own = own;
        found->makes = makes;
        /* From now on another thread may read them. */
        pthread_mutex_lock(&lock);
        found->jobs = jobs;
        pthread_mutex_unlock(&lock);
    } else if (jobs && found->jobs == jobs) {
        /* A job may have another address than at the request before, or another id, whose flows were the former one's. */
        pthread_mutex_lock(&lock);
        for (int job = 0; job < jobs; job++) {
            if (strcmp(found->places[job].job, places[job].job) || strcmp(found->places[own].job, places[own].job))
                found->flows[job] = (flow){.kbps = 0};
        }
        memcpy(found->places, places, sizeof *places * (size_t)jobs);
        pthread_mutex_unlock(&lock);
    }
    return found;
}

/* Takes what the ranks of the job send, on every job or on none; `sent` are bytes a second to each job, lease and steady
 * those of before. */
static int agree(MPI_Comm comm, reservation *of, const double *sent, double lease, int steady) {
    char problem[TEXT] = "", reason[TEXT] = "";
    double *total = calloc((size_t)of->jobs, sizeof *total);
    long long *wanted = calloc((size_t)of->jobs, sizeof *wanted);
    MPI_Comm own = MPI_COMM_NULL;
    int refused = 0, rank, result = LARK_MPI_FAILED;
    if (!total || !wanted) goto end;
    if (MPI_Comm_rank(comm, &rank) || MPI_Comm_split(comm, of->own, rank, &own)) goto end;
    if (MPI_Reduce(sent, total, of->jobs, MPI_DOUBLE, MPI_SUM, 0, own)) goto end;
    const place *here = &of->places[of->own];
    for (int job = 0; of->makes && job < of->jobs; job++) {
        const place *there = &of->places[job];
        if (job != of->own && total[job] > 0 && strcmp(here->host, there->host))
            wanted[job] = kilobits(total[job], here, there);
    }
    double least = 0;
    for (int job = 0; job < of->jobs; job++) least += wanted[job] ? SECONDS_FOR_EACH : 0;
    pthread_mutex_lock(&lock);
    if (of->lease < least) of->lease = least;
    pthread_mutex_unlock(&lock);
    if (of->makes) prepare(of, wanted, problem);
    if (first(comm, problem, reason, &refused)) goto end;
    if (refused) {
        pthread_mutex_lock(&lock);
        if (lease > 0) of->lease = lease;
        of->steady = steady;
        pthread_mutex_unlock(&lock);
    }
    if (of->makes && refused) undo(of);
    else if (of->makes) lower(of, wanted);
    of->away = 0;
    memcpy(of->status.reason, reason, TEXT);
    of->status.admitted = !refused;
    /* The thread may note a loss at the same time, so not from where the flows are. */
    pthread_mutex_lock(&lock);
    if (of->makes) memcpy(of->before, of->flows, sizeof *of->flows * (size_t)of->jobs);
    pthread_mutex_unlock(&lock);
    if (MPI_Bcast(of->before, (int)sizeof *of->before * of->jobs, MPI_BYTE, 0, own)) goto end;
    pthread_mutex_lock(&lock);
    if (!of->makes) memcpy(of->flows, of->before, sizeof *of->flows * (size_t)of->jobs);
    pthread_mutex_unlock(&lock);
    /* Nobody goes on before all jobs have done so. */
    result = MPI_Barrier(comm) ? LARK_MPI_FAILED : refused ? LARK_MPI_REFUSED : LARK_MPI_OK;
end:
    if (own != MPI_COMM_NULL) MPI_Comm_free(&own);
    free(total);
    free(wanted);
    return result;
}

/* Says why a call has failed: the program prints it as it does a refusal's reason. */
static int failed(MPI_Comm comm, char *reason) {
    int between;
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID)
        snprintf(reason, TEXT, "MPI is not running; between MPI_Init and MPI_Finalize it is accepted");
    else if (comm != MPI_COMM_NULL && MPI_Comm_test_inter(comm, &between) == MPI_SUCCESS && between)
        snprintf(reason, TEXT, "the communicator is between two groups; one of a single group is accepted");
    else snprintf(reason, TEXT, "an MPI call failed, or there is no memory");
    return LARK_MPI_FAILED;
}

static int request(MPI_Comm comm, const lark_mpi_wish *wish, reservation **out) {
    char problem[TEXT] = "", reason[TEXT] = "";
    int rank, size, between, jobs = 0, refused = 0, result = LARK_MPI_FAILED;
    *out = NULL;
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID) return LARK_MPI_FAILED;
    /* Between two groups, collective calls fill an array of the other group's size. */
    TRY(MPI_Comm_test_inter(comm, &between));
    if (between) return LARK_MPI_FAILED;
    TRY(MPI_Comm_rank(comm, &rank));
    TRY(MPI_Comm_size(comm, &size));
    double *sent = malloc(sizeof *sent * (size_t)size), *to_jobs = NULL;
    int *job_of = calloc((size_t)size, sizeof *job_of), makes = 1;
    place *places = malloc(sizeof *places * (size_t)size);
    if (!sent || !job_of || !places) goto end;
    row(comm, wish, sent, problem);
    if (first(comm, problem, reason, &refused)) goto end;
    if (!refused && find_places(comm, rank, size, places, job_of, &jobs, problem, reason, &refused)) goto end;
    for (int i = 0; i < rank && !refused; i++) makes &= job_of[i] != job_of[rank];
    *out = attribute(comm, places, refused ? 0 : jobs, job_of[rank], makes);
    if (!*out) goto end;
    if (refused) {
        (*out)->status.admitted = 0;
        memcpy((*out)->status.reason, reason, TEXT);
        result = LARK_MPI_REFUSED;
        goto end;
    }
    /* The program may have changed its environment since, and with it what it takes for a job. */
    if ((*out)->jobs != jobs) goto end;
    to_jobs = calloc((size_t)jobs, sizeof *to_jobs);
    if (!to_jobs) goto end;
    for (int i = 0; i < size; i++) to_jobs[job_of[i]] += sent[i];
    pthread_mutex_lock(&lock);
    double lease = (*out)->lease;
    int steady = (*out)->steady;
    (*out)->lease = wish->lease > 0 ? wish->lease : LEASE;
    (*out)->steady = wish->steady != 0;
    pthread_mutex_unlock(&lock);
    result = agree(comm, *out, to_jobs, lease, steady);
end:
    free(sent);
    free(to_jobs);
    free(job_of);
    free(places);
    return result;
}

int lark_mpi_reserve(MPI_Comm comm, const lark_mpi_wish *wish, lark_mpi_status *status) {
    reservation *made;
    int before = 0;
    lark_mpi_status ignored;
    if (!status) status = &ignored;
    memset(status, 0, sizeof *status);
    if (lark_mpi_reserved(comm, status, &before)) return failed(comm, status->reason);
    int result = request(comm, wish, &made);
    memset(status, 0, sizeof *status);
    if (result == LARK_MPI_FAILED) return failed(comm, status->reason);
    if (made) *status = made->status;
    if (result == LARK_MPI_REFUSED && !before) lark_mpi_release(comm);
    return result;
}

int lark_mpi_reserved(MPI_Comm comm, lark_mpi_status *status, int *found) {
    reservation *held_here;
    *found = 0;
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID || enter(comm, &held_here)) return LARK_MPI_FAILED;
    if (held_here) *status = held_here->status, *found = 1;
    leave(held_here);
    return LARK_MPI_OK;
}

int lark_mpi_release(MPI_Comm comm) {
    void *there;
    int found;
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID) return LARK_MPI_FAILED;
    TRY(MPI_Comm_get_attr(comm, keyval, &there, &found));
    if (found) TRY(MPI_Comm_delete_attr(comm, keyval));
    return LARK_MPI_OK;
}

/* A text as it may stand in a query. */
static void escaped(const char *text, char *out, size_t size) {
    size_t length = 0;
    for (; *text && length + 4 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) out[length++] = (char)c;
        else length += (size_t)snprintf(out + length, 4, "%%%02X", c);
    }
    out[length] = '\0';
}

/* Threads may wait and read at the same time. */
static void set_version(reservation *of, const char *word) {
    pthread_mutex_lock(&lock);
    snprintf(of->version, VERSION, "%s", word);
    pthread_mutex_unlock(&lock);
}

static void get_version(const reservation *of, char *word) {
    pthread_mutex_lock(&lock);
    memcpy(word, of->version, VERSION);
    pthread_mutex_unlock(&lock);
}

/* The paths of this rank's job, once they have another version than `after`, or after so many seconds; 0 where they
 * cannot be read, and `reason` says why. The answer is to be forgotten. */
static int read_paths(reservation *of, const char *after, double wait, double patience, answer *found, json *list,
                      char *reason) {
    char target[VERSION + 64], version[64], word[VERSION];
    snprintf(target, sizeof target, "/v1/paths?after=%s&wait=%lld.%03d", after, (long long)wait,
             (int)((wait - (double)(long long)wait) * 1000));
    if (!ask("GET", target, "", wait, SECONDS, patience, found, reason)) return 0;
    if (found->status != AWAY) {
        pthread_mutex_lock(&lock);
        of->silent = 0;
        pthread_mutex_unlock(&lock);
    }
    if (found->status == 200 && member_text(found->body, "version", version, sizeof version) &&
        member_list(found->body, "paths", list)) {
        escaped(version, word, VERSION);
        set_version(of, word);
        return 1;
    }
    say(found, reason);
    forget(found);
    return 0;
}

/* Notes a question about paths without an answer; true where there was none for a lease. */
static int is_silent(reservation *of) {
    pthread_mutex_lock(&lock);
    of->unanswered = now();
    if (of->silent <= 0) of->silent = of->unanswered;
    int found = of->unanswered - of->silent > of->lease;
    pthread_mutex_unlock(&lock);
    return found;
}

/* After a lease without a question: there may have been an answer since, for which nobody has asked. */
static void begin_to_ask(reservation *of) {
    pthread_mutex_lock(&lock);
    if (now() - of->unanswered > of->lease) of->silent = 0;
    pthread_mutex_unlock(&lock);
}

/* Notes whether the job's processes ask too often. */
static void note_busy(reservation *of, int busy) {
    pthread_mutex_lock(&lock);
    if (!busy || of->pace <= 0) of->pace = PACE;
    if (busy) {
        of->not_before = now() + of->pace;
        if ((of->pace *= 2) > SLOWEST_PACE) of->pace = SLOWEST_PACE;
    }
    pthread_mutex_unlock(&lock);
}

/* Seconds to wait until a question about a change that waits no longer than LEAST_WAIT itself; where it is its time, it is
 * noted. */
static double too_soon(reservation *of, double wait) {
    double at = now(), found = 0;
    pthread_mutex_lock(&lock);
    if (wait < LEAST_WAIT && at < of->not_before) found = of->not_before - at;
    else of->not_before = at + LEAST_WAIT;
    pthread_mutex_unlock(&lock);
    return found;
}

/* A path as it is among those of the job; a reservation is the sum of its shares. */
static void read_path(const reservation *of, int job, const flow *made, json list, lark_mpi_path *out) {
    char id[ID];
    json each;
    size_t length = strcspn(made->id, (char[]){SHARE, 0});
    pthread_mutex_lock(&lock);
    const place here = of->places[of->own], there = of->places[job];
    pthread_mutex_unlock(&lock);
    double factor = headers(&here, &there), rate = (double)made->kbps / 1000, whole = 0, left = 0;
    *out = (lark_mpi_path){.free = -1, .delivered = -1, .total = -1, .age = -1};
    memcpy(out->job, there.job, ID);
    memcpy(out->host, there.host, HOST);
    memcpy(out->lost, made->lost, TEXT);
    if (*out->lost) return;
    while (element(&list, &each)) {
        if (!member_text(each, "reservation", id, sizeof id) || strlen(id) != length || memcmp(id, made->id, length)) continue;
        if (member_number(each, "rate", &whole)) out->promised = (whole < rate ? whole : rate) * 125000 / factor;
        if (member_number(each, "delivered", &out->delivered)) out->delivered *= 125000 / factor;
        if (member_number(each, "delivered_bytes", &out->total)) out->total /= factor;
        (void)member_number(each, "age", &out->age);
        (void)member_text(each, "pending", out->pending, TEXT);
        if (member_number(each, "free", &left)) out->free = (left > 0 ? left : 0) * 125000 / factor;
        return;
    }
    snprintf(out->lost, TEXT, "the reservation %s is over", made->id);
}

int lark_mpi_paths(MPI_Comm comm, lark_mpi_path *paths, int most, int *count, char *reason) {
    reservation *of;
    answer found = {.text = NULL};
    json list;
    int result = LARK_MPI_OK;
    *count = 0;
    *reason = '\0';
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID || enter(comm, &of)) return failed(comm, reason);
    for (int job = 0, jobs = of ? jobs_of(of) : 0; job < jobs && !result; job++) {
        flow made = flow_of(of, job);
        if (!made.id[0]) continue;
        if (!found.text && !read_paths(of, "", 0, PATIENCE, &found, &list, reason)) {
            result = LARK_MPI_REFUSED;
            continue;
        }
        if (*count < most) read_path(of, job, &made, list, &paths[*count]);
        ++*count;
    }
    leave(of);
    forget(&found);
    return result;
}

static int is_over(const reservation *of) {
    pthread_mutex_lock(&lock);
    int found = of->over;
    pthread_mutex_unlock(&lock);
    return found;
}

/* Waits for other paths of a reservation, or its end; NULL is none. */
static int await_change(reservation *of, double seconds, int *changed, char *reason) {
    answer found;
    json list;
    char before[VERSION], after[VERSION];
    /* NaN is no time; more than a hundred years are no end. */
    double end = now() + (seconds > 0 ? seconds < 3.2e9 ? seconds : 3.2e9 : 0);
    int any = 0;
    for (int job = 0, jobs = of ? jobs_of(of) : 0; job < jobs; job++) any |= flow_of(of, job).id[0] != '\0';
    if (!any) {
        for (double left; !(*changed = of && is_over(of)) && (left = end - now()) > 0;)
            rest(left < LONGEST_WAIT ? left : LONGEST_WAIT);
        return LARK_MPI_OK;
    }
    get_version(of, before);
    begin_to_ask(of);
    for (double pace = PACE;;) {
        double began = now(), left = end > began ? end - began : 0, wait = left < LONGEST_WAIT ? left : LONGEST_WAIT;
        double early = too_soon(of, wait);
        if (early > 0) {
            rest(early < wait ? early : wait);
            *changed = is_over(of);
            if (*changed || now() >= end) return LARK_MPI_OK;
            continue;
        }
        int answers = read_paths(of, before, before[0] ? wait : 0, 0, &found, &list, reason);
        note_busy(of, !answers && found.status == BUSY);
        if (answers) forget(&found);
        /* A job that asks too often is told of nothing meanwhile. A service or controller that starts anew has kept what
         * is reserved, until the lease is over. */
        else if (found.status != BUSY && ((found.status && found.status != AWAY) || is_silent(of))) return LARK_MPI_REFUSED;
        else *reason = '\0';
        get_version(of, after);
        *changed = is_over(of) || (before[0] && strcmp(before, after) != 0);
        if (*changed) return LARK_MPI_OK;
        if (!before[0] && answers && after[0]) {
            /* A change is one from the paths as they are now. */
            memcpy(before, after, VERSION);
            continue;
        }
        if (now() >= end) return LARK_MPI_OK;
        /* Where too many wait already, or nobody answers, the answer comes at once. */
        left = end - now();
        if (left > 0 && now() - began < wait / 2) {
            rest(left < pace ? left : pace);
            if ((pace *= 2) > SLOWEST_PACE) pace = SLOWEST_PACE;
        }
    }
}

int lark_mpi_changed(MPI_Comm comm, double seconds, int *changed, char *reason) {
    reservation *of;
    *changed = 0;
    *reason = '\0';
    if (lark_mpi_keyval() == MPI_KEYVAL_INVALID || enter(comm, &of)) return failed(comm, reason);
    int result = await_change(of, seconds, changed, reason);
    leave(of);
    return result;
}

/* MPI's profiling interface: setting this library's attribute asks, all others are MPI's. */
int MPI_Comm_set_attr(MPI_Comm comm, int key, void *attribute_value) {
    reservation *made;
    if (keyval == MPI_KEYVAL_INVALID || key != keyval) return PMPI_Comm_set_attr(comm, key, attribute_value);
    return request(comm, attribute_value, &made) == LARK_MPI_FAILED ? MPI_ERR_OTHER : MPI_SUCCESS;
}

/* Its name in MPI-1, which is deprecated, and may be a macro some day. */
int (MPI_Attr_put)(MPI_Comm comm, int key, void *attribute_value) {
    return MPI_Comm_set_attr(comm, key, attribute_value);
}
