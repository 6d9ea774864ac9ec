/* One flow to job 1, changed while it is renewed. Each line of the standard input is a step, and is answered by its name
 * once it is done. */
#include "lark_mpi.c"

#include <sys/wait.h>

int main(void) {
    char step[16], reason[TEXT];
    reservation of = {.lease = 3600, .jobs = 2, .makes = 1};
    of.places = calloc(2, sizeof *of.places);
    of.flows = calloc(2, sizeof *of.flows);
    of.before = calloc(2, sizeof *of.before);
    if (!of.places || !of.flows || !of.before) return 1;
    snprintf(of.places[1].job, ID, "%016x", 1);
    while (scanf("%15s", step) == 1) {
        int good = 1;
        if (!strcmp(step, "take")) good = prepare(&of, (long long[]){0, 30000}, reason);
        if (!strcmp(step, "change")) good = prepare(&of, (long long[]){0, 60000}, reason);
        if (!strcmp(step, "longer")) {
            /* The next renewal is no later for it. */
            of.lease = 36000;
            good = prepare(&of, (long long[]){0, 30000}, reason) && of.due <= now() + 1200;
        }
        if (!strcmp(step, "renew")) {
            pthread_mutex_lock(&lock);
            of.due = of.all_due = 0;
            pthread_cond_signal(&wake);
            pthread_mutex_unlock(&lock);
        }
        if (!strcmp(step, "fork")) {
            pid_t child = fork();
            if (!child) _exit(gone(MPI_COMM_NULL, 0, &of, NULL) || ends(MPI_COMM_NULL, 0, NULL, NULL));
            good = waitpid(child, &(int){0}, 0) == child;
        }
        if (!strcmp(step, "part")) {
            /* Another thread has found it, and waits only once it is released. */
            int changed = 0;
            all = &of;
            of.readers = 1;
            good = !gone(MPI_COMM_NULL, 0, &of, NULL) && !await_change(&of, 5, &changed, reason) && changed;
        }
        if (!strcmp(step, "foreign")) good = !gone(MPI_COMM_NULL, 0, &(lark_mpi_wish){.rate = 1e6}, NULL);
        if (!strcmp(step, "end")) ends(MPI_COMM_NULL, 0, NULL, NULL);
        if (!good) return 2;
        puts(step);
        fflush(stdout);
    }
    free(of.places);
    free(of.flows);
    free(of.before);
    return 0;
}
