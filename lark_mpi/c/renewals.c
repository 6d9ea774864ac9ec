/* Flows, and their renewal on a thread that makes no call to MPI. A part of lark_mpi.c. */

typedef struct {
    char id[ID]; /* empty: none */
    long long kbps;
    int steady, changing; /* a request for another rate is under way */
    int late; /* its last renewal had no answer */
    double until; /* the end of its lease at the earliest. Then it may be over, which other shares of the flow hide */
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
    double lacks; /* Mb/s that the network had too little for the flow that was refused last; 0: that was for another reason */
    int short_of; /* the job that this flow goes to */
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

/* Renews a flow as it is now, or only one whose lease may be over; 0 where nobody has answered. The lock is held, but not
 * while the service is asked. */
static int renew(const char *id, int overdue) {
    char target[96], body[128], reason[TEXT] = "";
    answer found = {.text = NULL};
    reservation *of;
    flow *made = find_flow(id, &of);
    while (made && (made->changing || renewing[0])) {
        pthread_cond_wait(&idle, &lock);
        made = find_flow(id, &of);
    }
    /* Another thread may have renewed it since. */
    double began = now();
    if (!made || (overdue && made->until > began)) return 1;
    double until = began + (double)(long long)of->lease;
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
        if (answered && found.status == 200) made->until = until;
    }
    int told = answered && found.status != BUSY && found.status != AWAY;
    forget(&found);
    return told;
}

/* Renews those of the flows now whose lease may be over: the process was suspended, and what it had may be another's.
 * Those of which nobody tells are as before. */
static void check(reservation *of) {
    char id[ID];
    pthread_mutex_lock(&lock);
    for (int job = 0, told = 1; of->makes && !of->over && job < of->jobs && told; job++) {
        const flow *made = &of->flows[job];
        if (!made->id[0] || made->lost[0] || made->until > now()) continue;
        memcpy(id, made->id, ID);
        told = renew(id, 1);
    }
    pthread_mutex_unlock(&lock);
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
        for (int i = 0; i < count && !stopping; i++) renew(due[i].id, 0);
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
