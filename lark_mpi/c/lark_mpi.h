/* Bandwidth for MPI applications in pools with Lark: reserved for a pattern of messages over a communicator, as a whole
 * or not at all, at the worker service's socket. The same as the Python package lark_mpi; docs/reference/mpi.md.
 *
 * lark_mpi_reserve is collective, as is MPI_Comm_set_attr with lark_mpi_keyval(); all else is local.
 * Any thread may call, with MPI_THREAD_MULTIPLE.
 */
#ifndef LARK_MPI_H
#define LARK_MPI_H

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LARK_MPI_TEXT 512

/* Results of the functions. */
enum {
    LARK_MPI_OK = 0,
    LARK_MPI_REFUSED = 1, /* the reason is in the status, the same on every rank */
    LARK_MPI_FAILED = 2   /* an MPI call failed, MPI is not running, there is no memory, or the communicator is no
                             intracommunicator; status or reason says which, and ranks may differ */
};

/* The receivers of each rank. */
typedef enum {
    LARK_MPI_ALL,        /* every other rank */
    LARK_MPI_RING,       /* the next rank */
    LARK_MPI_NEIGHBOURS, /* those of the communicator's Cartesian or graph topology */
    LARK_MPI_TABLE       /* as the table says */
} lark_mpi_pattern;

typedef struct {
    lark_mpi_pattern pattern;
    double rate;         /* bytes a second of each stream, as the application counts them */
    const double *table; /* LARK_MPI_TABLE: bytes a second that this rank sends to each rank of the communicator */
    double lease;        /* seconds that it outlives a process that dies while its job lives on; 0: 300. At least a second
                            for each job that this one sends to */
    int steady;          /* the rate is the most as well; 0: what is free may be used, too */
} lark_mpi_wish;

/* The value of the attribute. */
typedef struct {
    int admitted; /* all of the last request is promised and was enforced; else nothing more than before it */
    char reason[LARK_MPI_TEXT];
} lark_mpi_status;

/* A path from this rank's job to another; bytes a second of the application. */
typedef struct {
    char job[32];
    char host[256];
    double promised;
    double free; /* best effort of its narrowest link; less than 0: no link is known */
    double delivered; /* what the job has sent there a second, in about the last second; less than 0: not known */
    double total;     /* bytes that it has sent there since the reservation's queue was made; less than 0: not known */
    double age;       /* seconds since both were counted; less than 0: they are not */
    char lost[LARK_MPI_TEXT];    /* why it is not promised any more, or empty */
    char pending[LARK_MPI_TEXT]; /* why the promise is not enforced at present, though it was, or empty */
} lark_mpi_path;

/* Reserves, or changes the communicator's reservation to this wish, and waits until it is enforced; what is not enforced
 * after ten seconds is refused (after thirty where its queues are still being made). After a refusal all is as it was.
 * Collective. */
int lark_mpi_reserve(MPI_Comm comm, const lark_mpi_wish *wish, lark_mpi_status *status);

/* The outcome of the last request; *found is 0 where the communicator has no reservation. */
int lark_mpi_reserved(MPI_Comm comm, lark_mpi_status *status, int *found);

/* Reads what is promised and free now: *count paths, of which the first `most` are written. LARK_MPI_REFUSED with a
 * reason (LARK_MPI_TEXT bytes) where the worker service cannot be asked. */
int lark_mpi_paths(MPI_Comm comm, lark_mpi_path *paths, int most, int *count, char *reason);

/* Waits until paths are others than when this was last called, or lark_mpi_paths was: *changed is 1; it is 0 after so
 * many seconds without. The thread sleeps in the kernel meanwhile. LARK_MPI_REFUSED as lark_mpi_paths, but where nobody
 * answers only after a lease: a service or controller that starts anew has kept what is reserved. */
int lark_mpi_changed(MPI_Comm comm, double seconds, int *changed, char *reason);

/* Releases; every rank calls it. Freeing the communicator, or MPI_Finalize, does the same. */
int lark_mpi_release(MPI_Comm comm);

/* The attribute: MPI_Comm_set_attr with a lark_mpi_wish * asks (a refusal is no error: the attribute has it), and
 * MPI_Comm_get_attr reads a lark_mpi_status * back. A duplicate of the communicator has none. Between MPI_Init and MPI_Finalize;
 * otherwise MPI_KEYVAL_INVALID. */
int lark_mpi_keyval(void);

#ifdef __cplusplus
}
#endif

#endif
