/* The program of suspended.py in C. */
#include <lark_mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank;

static const char *file_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("TOLD"), name);
    return path;
}

static void hold(const char *until) {
    while (access(file_of(until), F_OK)) {
        if (access(getenv("TOLD"), F_OK)) _exit(9);
        usleep(50000);
    }
}

static void look(lark_mpi_path *path) {
    char reason[LARK_MPI_TEXT];
    int count;
    if (lark_mpi_paths(MPI_COMM_WORLD, path, 1, &count, reason) || count != 1) exit(7);
}

int main(int count, char **arguments) {
    lark_mpi_status status;
    lark_mpi_path path;
    char name[32], reason[LARK_MPI_TEXT];
    int provided, changed = -1;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const lark_mpi_wish wish = {.pattern = LARK_MPI_RING, .rate = 1e6, .lease = 3};
    if (count < 2 || lark_mpi_reserve(MPI_COMM_WORLD, &wish, &status)) exit(6);
    look(&path);
    snprintf(name, sizeof name, "rank%d.json", rank);
    FILE *told = fopen(file_of(name), "w");
    if (!told) exit(5);
    fprintf(told, "{");
    if (rank == 0) {
        FILE *pid = fopen(file_of("pid"), "w");
        if (!pid || fprintf(pid, "%d.", (int)getpid()) < 0 || fclose(pid)) exit(5);
        hold("go on");
        if (!strcmp(arguments[1], "changed")) {
            if (lark_mpi_changed(MPI_COMM_WORLD, 5, &changed, reason)) exit(8);
            fprintf(told, "\"changed\": %s, ", changed ? "true" : "false");
        }
        if (strcmp(arguments[1], "reserve")) {
            look(&path);
            fprintf(told, "\"lost\": [\"%s\"], ", path.lost);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (lark_mpi_reserve(MPI_COMM_WORLD, &wish, &status)) exit(6);
    look(&path);
    fprintf(told, "\"made\": {\"%s\": [%.0f, %.0f]}}", path.job, path.promised / 1000, path.free / 1000);
    fclose(told);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) fclose(fopen(file_of("reserved"), "w"));
    hold("reserved seen");
    MPI_Finalize();
    return 0;
}
