/* Flows to jobs 1 and 2, changed while they are renewed. Each line of the standard input is a step, and is answered by its name
 * once it is done. */
#include "lark_mpi.c"

#include <sys/wait.h>

int main(void) {
    char step[16], reason[TEXT];
    reservation of = {.lease = 3600, .jobs = 3, .makes = 1}, other = of;
    read_environment();
    for (reservation *each = &of; each; each = each == &of ? &other : NULL) {
        each->places = calloc(3, sizeof *of.places);
        each->flows = calloc(3, sizeof *of.flows);
        each->before = calloc(3, sizeof *of.before);
        if (!each->places || !each->flows || !each->before) return 1;
        for (int job = 1; job < 3; job++) snprintf(each->places[job].job, ID, "%016x", job);
    }
    while (scanf("%15s", step) == 1) {
        int good = 1;
        if (!strcmp(step, "take")) good = prepare(&of, (long long[]){0, 30000, 0}, reason);
        if (!strcmp(step, "change")) good = prepare(&of, (long long[]){0, 60000, 0}, reason);
        if (!strcmp(step, "refused")) {
            /* It was lost, and is so after the refusal, too. */
            good = !prepare(&of, (long long[]){0, 30000, 0}, reason);
            undo(&of);
            good = good && strstr(flow_of(&of, 1).lost, " is over");
        }
        if (!strcmp(step, "second")) good = prepare(&other, (long long[]){0, 0, 20000}, reason);
        if (!strcmp(step, "slow")) {
            of.lease = 3;
            good = prepare(&of, (long long[]){0, 30000, 30000}, reason);
        }
        if (!strcmp(step, "setenv")) good = !setenv("LARK_SOCKET", "/nonexistent", 1);
        if (!strcmp(step, "longer")) {
            /* The next renewal is no later for it. */
            of.lease = 36000;
            good = prepare(&of, (long long[]){0, 30000, 0}, reason) && of.due <= now() + 1200;
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
        if (!strcmp(step, "listen") || !strcmp(step, "silent")) {
            /* Hours after the last look, and after one that had no answer; then a lease after that. */
            int changed = 0, silent = step[0] == 's';
            of.unanswered -= silent ? 1 : 7200;
            of.not_before = 0;
            of.silent -= silent ? 7200 : 0;
            good = await_change(&of, 0, &changed, reason) == (silent ? LARK_MPI_REFUSED : LARK_MPI_OK) && !changed;
        }
        if (!strcmp(step, "often")) {
            /* A look in each step of a loop; then one that waits itself. */
            int changed = 0;
            for (int i = 0; i < 500 && good; i++) good = await_change(&of, 0, &changed, reason) == LARK_MPI_OK && !changed;
            good = good && await_change(&of, 2, &changed, reason) == LARK_MPI_OK && changed;
        }
        if (!strcmp(step, "foreign")) good = !gone(MPI_COMM_NULL, 0, &(lark_mpi_wish){.rate = 1e6}, NULL);
        if (!strcmp(step, "end")) ends(MPI_COMM_NULL, 0, NULL, NULL);
        if (!good) return 2;
        puts(step);
        fflush(stdout);
    }
    for (reservation *each = &of; each; each = each == &of ? &other : NULL) {
        free(each->places);
        free(each->flows);
        free(each->before);
    }
    return 0;
}
