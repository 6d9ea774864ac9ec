/* The programs of exchange.py in C; each rank writes what it has seen to TOLD, in the same form. */
#include <lark_mpi.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank;
static FILE *told;
static const char *comma = "";

static const char *file_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("TOLD"), name);
    return path;
}

static void member(const char *name) {
    fprintf(told, "%s\"%s\": ", comma, name);
    comma = ", ";
}

static void text(const char *said) {
    fputc('"', told);
    for (; *said; said++) {
        if (*said == '"' || *said == '\\') fputc('\\', told);
        fputc(*said, told);
    }
    fputc('"', told);
}

static void paths(MPI_Comm comm) {
    lark_mpi_path found[8];
    int count;
    char reason[LARK_MPI_TEXT];
    if (lark_mpi_paths(comm, found, 8, &count, reason)) {
        text(reason);
        return;
    }
    fputc('{', told);
    for (int i = 0; i < count; i++) {
        fprintf(told, "%s\"%s\": [%.0f, ", i ? ", " : "", found[i].job, found[i].promised / 1000);
        if (found[i].free < 0) fprintf(told, "null]");
        else fprintf(told, "%.0f]", found[i].free / 1000);
    }
    fputc('}', told);
}

static void seen(const char *name, MPI_Comm comm) {
    member(name);
    paths(comm);
}

static int reserve(MPI_Comm comm, lark_mpi_pattern pattern, double rate, lark_mpi_status *status) {
    return lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = pattern, .rate = rate}, status);
}

static void refused(const char *name, MPI_Comm comm, const lark_mpi_wish *wish) {
    lark_mpi_status status;
    int result = lark_mpi_reserve(comm, wish, &status);
    if (name) member(name);
    text(result == LARK_MPI_REFUSED ? status.reason : result ? "failed" : "");
}

static int has(MPI_Comm comm) {
    lark_mpi_status status;
    int found = -1;
    lark_mpi_reserved(comm, &status, &found);
    return found;
}

static void truth(const char *name, int is) {
    member(name);
    fputs(is ? "true" : "false", told);
}

static void life(MPI_Comm comm) {
    lark_mpi_status status, *read;
    MPI_Comm other;
    int found;
    reserve(comm, LARK_MPI_ALL, 1e6, &status);
    seen("made", comm);
    MPI_Barrier(comm);
    reserve(comm, LARK_MPI_ALL, 2e6, &status);
    seen("changed", comm);
    refused("too much", comm, &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 4e6});
    seen("as before", comm);
    MPI_Barrier(comm);
    MPI_Comm_dup(comm, &other);
    truth("of the duplicate", !has(other));
    MPI_Comm_free(&other);
    seen("still", comm);
    MPI_Barrier(comm);
    lark_mpi_release(comm);
    lark_mpi_release(comm);
    truth("released", !has(comm));
    MPI_Barrier(comm);
    MPI_Comm_dup(comm, &other);
    reserve(other, LARK_MPI_RING, 1e6, &status);
    seen("ring", other);
    MPI_Barrier(comm);
    MPI_Comm_free(&other);
    MPI_Barrier(comm);
    if (MPI_Comm_set_attr(comm, lark_mpi_keyval(), &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 9e9})) exit(4);
    MPI_Comm_get_attr(comm, lark_mpi_keyval(), &read, &found);
    if (!found) exit(5);
    member("denied");
    fprintf(told, "[%s, ", read->admitted ? "true" : "false");
    text(read->reason);
    fputc(']', told);
    if (MPI_Comm_set_attr(comm, lark_mpi_keyval(), &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6})) exit(6);
    member("accepted");
    fprintf(told, "[%s, ", read->admitted ? "true" : "false");
    text(read->reason);
    fputs(", ", told);
    paths(comm);
    fputc(']', told);
    MPI_Barrier(comm);
    MPI_Comm_delete_attr(comm, lark_mpi_keyval());
    MPI_Barrier(comm);
    reserve(comm, LARK_MPI_RING, 1e6, &status);
}

static void shapes(MPI_Comm comm) {
    MPI_Comm shaped[3];
    const char *names[] = {"cart", "graph", "dist_graph"};
    lark_mpi_status status;
    int before = (rank + 3) % 4, after = (rank + 1) % 4, weight = 1;
    double table[4] = {0};
    MPI_Cart_create(comm, 1, &(int){4}, &(int){0}, 0, &shaped[0]);
    MPI_Graph_create(comm, 4, (int[]){1, 2, 3, 4}, (int[]){1, 2, 3, 0}, 0, &shaped[1]);
    MPI_Dist_graph_create_adjacent(comm, 1, &before, &weight, 1, &after, &weight, MPI_INFO_NULL, 0, &shaped[2]);
    for (int i = 0; i < 3; i++) {
        reserve(shaped[i], LARK_MPI_NEIGHBOURS, 1e6, &status);
        seen(names[i], shaped[i]);
        MPI_Barrier(comm);
        MPI_Comm_free(&shaped[i]);
        MPI_Barrier(comm);
    }
    table[(rank + 2) % 4] = 1e6 * rank;
    table[rank] = 5e9;
    lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_TABLE, .table = table}, &status);
    seen("table", comm);
    MPI_Barrier(comm);
    lark_mpi_release(comm);
    member("mistakes");
    fputc('[', told);
    refused(NULL, comm, rank == 1 ? NULL : &(lark_mpi_wish){.pattern = LARK_MPI_RING});
    fputs(", ", told);
    refused(NULL, comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = rank == 2 ? -1 : 1});
    fputs(", ", told);
    refused(NULL, comm, &(lark_mpi_wish){.pattern = LARK_MPI_TABLE});
    fputs(", ", told);
    refused(NULL, comm, &(lark_mpi_wish){.pattern = (lark_mpi_pattern)9});
    fputs(", ", told);
    refused(NULL, comm, &(lark_mpi_wish){.pattern = LARK_MPI_NEIGHBOURS, .rate = 1e6});
    fputs(", ", told);
    refused(NULL, comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6, .lease = 0.1});
    fputc(']', told);
    truth("left", !has(comm));
    /* Three ranks on the other side of one. */
    MPI_Comm_split(comm, rank == 0, rank, &shaped[0]);
    MPI_Intercomm_create(shaped[0], 0, comm, rank == 0, 1, &shaped[1]);
    int result = lark_mpi_reserve(shaped[1], &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6}, &status);
    member("between groups");
    text(result == LARK_MPI_FAILED && !has(shaped[1]) ? status.reason : "");
    MPI_Comm_free(&shaped[1]);
    MPI_Comm_free(&shaped[0]);
}

static void refusal(MPI_Comm comm) {
    refused("reason", comm, &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6});
    truth("left", !has(comm));
}

/* Wait until the test has written a file; without the test there is no folder any more, and nothing to wait for. */
static void hold(const char *until) {
    while (access(file_of(until), F_OK)) {
        if (access(getenv("TOLD"), F_OK)) raise(SIGKILL);
        usleep(50000);
    }
}

/* A reservation that is held until the file "seen" is there. */
static void ring(MPI_Comm comm) {
    lark_mpi_status status;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    truth("admitted", status.admitted);
    hold("seen");
    MPI_Barrier(comm);
    lark_mpi_release(comm);
}

/* Rank 3 ends in the way that the file "end" says. */
static void dies(MPI_Comm comm) {
    lark_mpi_status status;
    char way[16] = "";
    lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6, .lease = 3}, &status);
    hold("end");
    if (rank == 3) {
        FILE *end = fopen(file_of("end"), "r");
        if (!end || !fgets(way, sizeof way, end)) exit(7);
        if (!strcmp(way, "abort")) MPI_Abort(comm, 3);
        raise(SIGKILL);
    }
    MPI_Barrier(comm);
}

static void await_file(const char *name) {
    while (access(file_of(name), F_OK)) usleep(20000);
}

static int changes(MPI_Comm comm, double seconds) {
    char reason[LARK_MPI_TEXT];
    int changed = -1;
    if (lark_mpi_changed(comm, seconds, &changed, reason)) exit(8);
    return changed;
}

/* Lets the test look: rank 0 says where the ranks are, and all go on once it has seen that. */
static void wait_for(const char *name) {
    char path[4096], answer[64];
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        snprintf(path, sizeof path, "%s/%s", getenv("TOLD"), name);
        FILE *file = fopen(path, "w");
        if (!file || fclose(file)) exit(8);
    }
    snprintf(answer, sizeof answer, "%s seen", name);
    hold(answer);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void steadies(MPI_Comm comm) {
    lark_mpi_status status;
    if (lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6, .steady = 1}, &status)) exit(7);
    wait_for("steady");
    if (lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 9e9}, &status) != LARK_MPI_REFUSED) exit(9);
    wait_for("refused");
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    wait_for("free");
}

/* Each rank waits for a change of what is free; the test makes one once it sees the file "waiting". */
static void adapts(MPI_Comm comm) {
    lark_mpi_status status;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    truth("idle", changes(comm, 0.3) || changes(comm, NAN));
    seen("before", comm);
    MPI_Barrier(comm);
    if (rank == 0) fclose(fopen(file_of("waiting"), "w"));
    truth("changed", changes(comm, 60));
    seen("after", comm);
    member("sent");
    lark_mpi_path path;
    int count;
    char reason[LARK_MPI_TEXT];
    if (lark_mpi_paths(comm, &path, 1, &count, reason) || count != 1) exit(9);
    if (path.delivered < 0) fputs("[null]", told);
    else fprintf(told, "[[%.0f, %.0f, %.2f]]", path.delivered / 1000, path.total / 1000, path.age);
    MPI_Barrier(comm);
}

/* Each rank waits for a change while its worker has no time for the job. */
static void busy(MPI_Comm comm) {
    lark_mpi_status status;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int count;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    if (lark_mpi_paths(comm, &path, 1, &count, reason)) exit(7);
    wait_for("busy");
    truth("changed", changes(comm, 0.7));
    wait_for("free");
}

/* Each rank goes on while the worker service is away, for as long as what it has is reserved. */
static void away(MPI_Comm comm) {
    lark_mpi_status status;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int count, changed;
    if (lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6, .lease = 60}, &status)) exit(9);
    if (lark_mpi_paths(comm, &path, 1, &count, reason)) exit(7);
    wait_for("away");
    truth("changed", changes(comm, 0) || changes(comm, 0.7));
    wait_for("coming");
    seen("after", comm);
    if (lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6, .lease = 3}, &status)) exit(9);
    wait_for("gone");
    if (lark_mpi_changed(comm, 60, &changed, reason) != LARK_MPI_REFUSED) exit(10);
    member("over");
    text(reason);
    wait_for("end");
}

/* Two communicators of the same jobs, the second one with other ranks that ask; each is released by itself. */
static void twice(MPI_Comm comm) {
    lark_mpi_status status;
    MPI_Comm half;
    MPI_Comm_split(comm, rank % 2, rank, &half);
    reserve(comm, LARK_MPI_ALL, 1e6, &status);
    reserve(half, LARK_MPI_RING, 1e6, &status);
    MPI_Barrier(comm);
    seen("all", comm);
    seen("ring", half);
    MPI_Barrier(comm);
    await_file("release");
    lark_mpi_release(comm);
    MPI_Barrier(comm);
    await_file("free");
    MPI_Comm_free(&half);
    MPI_Barrier(comm);
    await_file("end");
}

static void *waits(void *argument) {
    int changed = changes(*(MPI_Comm *)argument, 60);
    return changed ? argument : NULL;
}

/* A thread waits for a change while another one releases what is reserved. */
static void parts(MPI_Comm comm) {
    lark_mpi_status status;
    pthread_t waiting;
    void *changed;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    seen("before", comm);
    pthread_create(&waiting, NULL, waits, &comm);
    wait_for("waiting");
    lark_mpi_release(comm);
    pthread_join(waiting, &changed);
    truth("changed", changed != NULL);
    truth("left", !has(comm));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* The attribute by the names of MPI-1, and by that behind the profiling interface, which asks nobody. */
static void old_names(MPI_Comm comm) {
    lark_mpi_status *read;
    int found;
    if (MPI_Attr_put(comm, lark_mpi_keyval(), &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6})) exit(4);
    if (MPI_Attr_get(comm, lark_mpi_keyval(), &read, &found) || !found) exit(5);
    truth("admitted", read->admitted);
    seen("made", comm);
    MPI_Barrier(comm);
    MPI_Attr_delete(comm, lark_mpi_keyval());
    truth("left", !has(comm));
    MPI_Barrier(comm);
    PMPI_Comm_set_attr(comm, lark_mpi_keyval(), &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6});
    truth("unasked", !has(comm));
    refused("over it", comm, &(lark_mpi_wish){.pattern = LARK_MPI_ALL, .rate = 1e6});
    seen("made anew", comm);
    MPI_Barrier(comm);
}
#pragma GCC diagnostic pop

/* What is reserved ends, and is asked for again before a renewal has noticed. */
static void ended(MPI_Comm comm) {
    lark_mpi_status status;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int count;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    wait_for("ended");
    for (int turn = 0; turn < 2; turn++) {
        if (lark_mpi_paths(comm, &path, 1, &count, reason) || count != 1) exit(7);
        member(turn ? "pending" : "lost");
        fputc('[', told);
        text(turn ? path.pending : path.lost);
        fputc(']', told);
        if (!turn && lark_mpi_reserve(comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6}, &status)) exit(9);
    }
    seen("made", comm);
    wait_for("again");
}

/* Each rank waits until its promise is not enforced any more; the test has it so once it sees the file "stuck". */
static void stuck(MPI_Comm comm) {
    lark_mpi_status status;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int count;
    reserve(comm, LARK_MPI_RING, 1e6, &status);
    if (lark_mpi_paths(comm, &path, 1, &count, reason)) exit(7);
    MPI_Barrier(comm);
    if (rank == 0) fclose(fopen(file_of("stuck"), "w"));
    truth("changed", changes(comm, 60));
    if (lark_mpi_paths(comm, &path, 1, &count, reason) || count != 1) exit(7);
    member("pending");
    fputc('[', told);
    text(path.pending);
    fputc(']', told);
    seen("made", comm);
    MPI_Barrier(comm);
}

/* The worker service tells another job from now on. */
static void renamed(MPI_Comm comm) {
    refused("before", comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 1e6});
    wait_for("renamed");
    refused("after", comm, &(lark_mpi_wish){.pattern = LARK_MPI_RING, .rate = 2e6});
    seen("made", comm);
    MPI_Barrier(comm);
}

#define THREADS 3

typedef struct {
    MPI_Comm comm;
    int good;
} own;

/* One of several threads, with a communicator of its own: nobody has made the keyval before. */
static void *of_a_thread(void *argument) {
    own *mine = argument;
    lark_mpi_status status;
    lark_mpi_path path;
    char reason[LARK_MPI_TEXT];
    int paths = 0;
    for (int turn = 1; turn <= 3; turn++) {
        reserve(mine->comm, LARK_MPI_RING, 1e5 * turn, &status);
        mine->good &= status.admitted && has(mine->comm) == 1 && changes(mine->comm, 0.01) >= 0;
        /* The last rank of each job sends to the other one, and the first one of it asks for all. */
        mine->good &= !lark_mpi_paths(mine->comm, &path, 1, &paths, reason) && paths == 1 && path.promised >= 1e5 * turn;
        PMPI_Barrier(mine->comm);
    }
    lark_mpi_release(mine->comm);
    mine->good &= has(mine->comm) == 0;
    return NULL;
}

static void threads(MPI_Comm comm) {
    own each[THREADS];
    pthread_t running[THREADS];
    int good = 1;
    for (int i = 0; i < THREADS; i++) {
        each[i].good = 1;
        MPI_Comm_dup(comm, &each[i].comm);
    }
    for (int i = 0; i < THREADS; i++) pthread_create(&running[i], NULL, of_a_thread, &each[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(running[i], NULL);
        good &= each[i].good;
        MPI_Comm_free(&each[i].comm);
    }
    truth("good", good);
}

int main(int count, char **arguments) {
    char name[32];
    int provided;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE) return 4;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(name, sizeof name, "rank%d.json", rank);
    told = fopen(file_of(name), "w");
    if (!told || count < 2) return 3;
    fputc('{', told);
    if (!strcmp(arguments[1], "life")) life(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "shapes")) shapes(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "ring")) ring(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "refusal")) refusal(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "dies")) dies(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "steadies")) steadies(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "adapts")) adapts(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "busy")) busy(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "away")) away(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "twice")) twice(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "threads")) threads(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "parts")) parts(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "old names")) old_names(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "ended")) ended(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "stuck")) stuck(MPI_COMM_WORLD);
    if (!strcmp(arguments[1], "renamed")) renamed(MPI_COMM_WORLD);
    fputs("}", told);
    fclose(told);
    MPI_Finalize();
    return 0;
}
