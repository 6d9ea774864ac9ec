/* A change of three flows, or its refusal, at a service that answers so many requests and is away from then on, in the way of the
 * first argument: missing, busy (503) or silent. Time passes where the library waits. Prints what came of it, and after how
 * many seconds. */
#define _GNU_SOURCE

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

static double passed;
static const char *away;
static int answered, left;
static char asked[1024];
static struct timeval patience;

static int late_clock(clockid_t id, struct timespec *time) {
    int result = clock_gettime(id, time);
    double nanoseconds = (double)time->tv_nsec + (passed - (double)(time_t)passed) * 1e9;
    time->tv_sec += (time_t)passed + (nanoseconds >= 1e9);
    time->tv_nsec = (long)(nanoseconds >= 1e9 ? nanoseconds - 1e9 : nanoseconds);
    return result;
}

static int pass(const struct timespec *time, struct timespec *rest) {
    (void)rest;
    passed += (double)time->tv_sec + (double)time->tv_nsec * 1e-9;
    return 0;
}

static int note_limit(int fd, int level, int name, const void *value, socklen_t size) {
    (void)fd, (void)level, (void)size;
    if (name == SO_RCVTIMEO) patience = *(const struct timeval *)value;
    return 0;
}

static int reach(int fd, const struct sockaddr *name, socklen_t size) {
    (void)fd, (void)name, (void)size;
    left = answered-- > 0;
    errno = ENOENT;
    return left || strcmp(away, "missing") ? 0 : -1;
}

static ssize_t note_request(int fd, const void *data, size_t length, int flags) {
    (void)fd, (void)flags;
    size_t kept = length < sizeof asked ? length : sizeof asked - 1;
    memcpy(asked, data, kept);
    asked[kept] = '\0';
    return (ssize_t)length;
}

static ssize_t reply(int fd, void *buffer, size_t size, int flags) {
    (void)fd, (void)flags;
    const char *text = "HTTP/1.1 200 OK\r\n\r\n{\"id\": \"1s1\", \"state\": \"enforced\", \"paths\": [{\"reservation\": \"1\"}]}";
    if (!*asked) return 0;
    if (!left && strcmp(away, "busy")) {
        passed += (double)patience.tv_sec + (double)patience.tv_usec * 1e-6;
        errno = EAGAIN;
        return -1;
    }
    if (!left) text = "HTTP/1.1 503 Away\r\n\r\n{\"detail\": \"no controller answers\"}";
    *asked = '\0';
    size_t length = strlen(text);
    memcpy(buffer, text, length < size ? length : size);
    return (ssize_t)length;
}

#define clock_gettime late_clock
#define nanosleep pass
#define setsockopt note_limit
#define connect reach
#define send note_request
#define recv reply
#include "lark_mpi.c"

int main(int count, char **arguments) {
    reservation of = {.lease = 3600, .jobs = 4, .makes = 1};
    char reason[TEXT] = "";
    if (count != 4) return 1;
    away = "never";
    answered = 1000;
    of.places = calloc(4, sizeof *of.places);
    of.flows = calloc(4, sizeof *of.flows);
    of.before = calloc(4, sizeof *of.before);
    if (!of.places || !of.flows || !of.before) return 1;
    if (!prepare(&of, (long long[]){0, 30000, 30000, 30000}, reason) || passed >= 1) return 2;
    away = arguments[1];
    answered = atoi(arguments[2]);
    long long rate = atoll(arguments[3]), wanted[] = {0, rate, rate, rate};
    int good = prepare(&of, wanted, reason);
    if (good) lower(&of, wanted);
    else undo(&of);
    printf("%s|%.1f|%lld %lld %lld\n", good ? "" : reason, passed, of.flows[1].kbps, of.flows[2].kbps, of.flows[3].kbps);
    answered = 0;
    ends(MPI_COMM_NULL, 0, NULL, NULL);
    free(of.places);
    free(of.flows);
    free(of.before);
    return 0;
}
