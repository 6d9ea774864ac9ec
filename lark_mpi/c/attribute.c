/* The communicator's attribute, which has its reservation, and the end of both. A part of lark_mpi.c. */

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
