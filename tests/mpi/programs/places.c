/* Reads a line for each rank, the number of its surroundings and the job that it has told; prints each rank's job, and then the jobs. */
#include "lark_mpi.c"

int main(void) {
    int size = 0;
    if (scanf("%d", &size) != 1 || size < 1) return 1;
    unsigned long long *keys = calloc((size_t)size, sizeof *keys);
    place *told = calloc((size_t)size, sizeof *told), *places = calloc((size_t)size, sizeof *places);
    named_rank *sorted = calloc((size_t)size, sizeof *sorted);
    int *job_of = calloc((size_t)size, sizeof *job_of);
    if (!keys || !told || !places || !sorted || !job_of) return 1;
    for (int i = 0; i < size; i++) {
        if (scanf("%llu %31s", &keys[i], told[i].job) != 2) return 1;
    }
    int jobs = number_jobs(keys, told, size, sorted, job_of, places);
    for (int i = 0; i < size; i++) printf("%d ", job_of[i]);
    puts("");
    for (int i = 0; i < jobs; i++) printf("%s ", places[i].job);
    puts("");
    free(keys);
    free(told);
    free(places);
    free(sorted);
    free(job_of);
    return 0;
}
