/* Ranks, their jobs, and what they wish to send to each other. A part of lark_mpi.c. */

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
