/* Flows are taken, changed, confirmed and given back: on every job or on none. A part of lark_mpi.c. */

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

/* The Mb/s that the links lack which have no room, by the problem of a service; 0 for another problem. A link is asked for
 * with the sum of a flow's shares: what it lacks of that, it lacks of this one. */
static double lacking(const answer *of) {
    double most = 0, asked, available;
    json list, each;
    if (!member_list(of->body, "links", &list)) return 0;
    while (element(&list, &each)) {
        if (!member_number(each, "asked", &asked) || !member_number(each, "available", &available)) return 0;
        if (asked - available > most) most = asked - available;
    }
    return most;
}

/* Sets a flow's rate, or makes one where there is none; with `anew` also where it is over, and with more patience. */
static int take(reservation *of, int job, long long kbps, int steady, int anew, char *reason) {
    char target[96], body[256];
    answer found;
    double seconds = anew ? SECONDS : for_answer(of), patience = anew ? PATIENCE : RENEWAL_PATIENCE;
    flow made = begin_change(of, job);
    double until = now() + (double)(long long)of->lease;
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
        made = (flow){.kbps = kbps, .steady = steady, .until = until};
        good = (found.status == 200 || found.status == 201) && member_text(found.body, "id", made.id, ID) && is_id(made.id);
        if (!good) {
            say(&found, reason);
            of->lacks = lacking(&found);
            of->short_of = job;
        }
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
    check(of);
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
    of->lacks = 0;
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
