/* The program of attributes.py in C. */
#include <lark_mpi.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE 1e6
#define THREADS 3

static int rank;

static const char *file_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("TOLD"), name);
    return path;
}

static void touch(const char *name) {
    FILE *file = fopen(file_of(name), "w");
    if (!file || fclose(file)) exit(8);
}

static void hold(const char *until) {
    while (access(file_of(until), F_OK)) {
        if (access(getenv("TOLD"), F_OK)) _exit(9);
        usleep(20000);
    }
}

/* Lets the test look. */
static void wait_for(const char *name) {
    char answer[64];
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) touch(name);
    snprintf(answer, sizeof answer, "%s seen", name);
    hold(answer);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void ring(MPI_Comm comm, double rate) {
    lark_mpi_status status;
    if (lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = rate}, &status)) exit(6);
}

static int has(MPI_Comm comm) {
    lark_mpi_status status;
    int found = -1;
    if (lark_mpi_reserved(comm, &status, &found)) exit(7);
    return found;
}

static void communicators(MPI_Comm comm, FILE *told) {
    MPI_Comm one, two, three, half, part, near, between, merged;
    MPI_Request request;
    lark_mpi_status status;
    const lark_mpi_wish wish = {.pattern = LARK_MPI_RING, .rate = RATE};
    int own = 5;
    MPI_Comm_dup(comm, &one);
    ring(one, RATE);
    MPI_Comm_dup(one, &two);
    MPI_Comm_idup(one, &three, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    wait_for("duplicated");
    MPI_Comm_free(&one);
    wait_for("original freed");
    ring(two, RATE);
    MPI_Comm_free(&three);
    wait_for("other duplicate freed");
    MPI_Comm_disconnect(&two);
    wait_for("disconnected");
    MPI_Comm_split(comm, rank % 2, rank, &half);
    ring(half, RATE);
    wait_for("split");
    MPI_Comm_free(&half);
    MPI_Comm_split(comm, rank == 3 ? MPI_UNDEFINED : 0, rank, &part);
    if (part != MPI_COMM_NULL) ring(part, RATE);
    wait_for("part");
    if (part != MPI_COMM_NULL) MPI_Comm_free(&part);
    wait_for("part freed");
    MPI_Comm_split(comm, rank / 2, rank, &near);
    MPI_Intercomm_create(near, 0, comm, rank < 2 ? 2 : 0, 1, &between);
    if (lark_mpi_reserve(between, &wish, &status) != LARK_MPI_FAILED) exit(5);
    if (MPI_Comm_set_attr(between, lark_mpi_keyval(), (void *)&wish) == MPI_SUCCESS) exit(5);
    fprintf(told, "\"between\": [\"%s\", %s], ", status.reason, has(between) ? "false" : "true");
    if (lark_mpi_release(between)) exit(5);
    MPI_Intercomm_merge(between, rank > 1, &merged);
    ring(merged, RATE);
    MPI_Comm_free(&between);
    wait_for("merged");
    MPI_Comm_free(&merged);
    MPI_Comm_free(&near);
    wait_for("merged freed");
    if (lark_mpi_reserve(MPI_COMM_SELF, &(lark_mpi_wish){.rate = RATE}, &status)) exit(4);
    fprintf(told, "\"alone\": %s, ", status.admitted ? "true" : "false");
    MPI_Comm_set_attr(comm, lark_mpi_keyval(), (void *)&wish);
    MPI_Comm_set_attr(comm, lark_mpi_keyval(), &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 2 * RATE});
    wait_for("set twice");
    PMPI_Comm_set_attr(comm, lark_mpi_keyval(), &own);
    wait_for("overwritten");
    fprintf(told, "\"overwritten\": %s, ", has(comm) ? "false" : "true");
    MPI_Comm_delete_attr(comm, lark_mpi_keyval());
}

static void *use(void *argument) {
    MPI_Comm *own = argument;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int paths, changed;
    for (int turn = 1; turn <= 3; turn++) {
        ring(*own, 1e5 * turn);
        if (lark_mpi_paths(*own, &path, 1, &paths, reason) || paths != 1 || path.promised < 1e5 * turn) exit(3);
        if (lark_mpi_changed(*own, 0.01, &changed, reason)) exit(3);
        MPI_Barrier(*own);
    }
    MPI_Comm_free(own);
    return NULL;
}

int main(int count, char **arguments) {
    MPI_Comm left, own[THREADS], cart;
    pthread_t running[THREADS];
    char name[32];
    int provided;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(name, sizeof name, "rank%d.json", rank);
    FILE *told = fopen(file_of(name), "w");
    if (!told || provided < MPI_THREAD_MULTIPLE) exit(2);
    fprintf(told, "{");
    communicators(MPI_COMM_WORLD, told);
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &own[i]);
    for (int i = 0; i < THREADS; i++) pthread_create(&running[i], NULL, use, &own[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(running[i], NULL);
    wait_for("of threads");
    MPI_Comm_dup(MPI_COMM_WORLD, &left);
    MPI_Cart_create(MPI_COMM_WORLD, 1, (int[]){4}, (int[]){1}, 0, &cart);
    ring(MPI_COMM_WORLD, RATE), ring(left, RATE), ring(cart, RATE);
    wait_for("left");
    fprintf(told, "\"threads\": true}");
    fclose(told);
    MPI_Finalize();
    snprintf(name, sizeof name, "finalized%d", rank);
    touch(name);
    hold("finalized seen");
    return 0;
}
