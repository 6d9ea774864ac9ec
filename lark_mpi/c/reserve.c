/* Reserves, reads back and releases: calls of all ranks. A part of lark_mpi.c. */

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

/* Puts in front of a refusal what this job asked for, and could have, as the application counts it: the rest of it has the
 * rates of links. `sent` are bytes a second to each job, and `wanted` kb/s. */
static void say_in_bytes(const reservation *of, const double *sent, const long long *wanted, char *problem) {
    char why[TEXT];
    const place *here = &of->places[of->own], *there = &of->places[of->short_of];
    double rate = (double)wanted[of->short_of] / 1000, free_rate = rate > of->lacks ? rate - of->lacks : 0;
    if (of->lacks <= 0) return;
    memcpy(why, problem, TEXT);
    int length = snprintf(problem, TEXT, "%.0f bytes a second to %s are asked (%.3f Mb/s with headers), and %lld could be had: ",
                          sent[of->short_of], there->host, rate, (long long)(free_rate * 125000 / headers(here, there)));
    if (length < TEXT) snprintf(problem + length, TEXT - (size_t)length, "%.*s", TEXT - length - 1, why);
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
    if (of->makes && !prepare(of, wanted, problem)) say_in_bytes(of, total, wanted, problem);
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
