/* Requests at the worker's socket. A part of lark_mpi.c. */

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
