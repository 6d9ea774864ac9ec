/* Paths of a job, and waiting for their changes; and the calls of MPI that set the attribute. A part of lark_mpi.c. */

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
    if (of) check(of);
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
