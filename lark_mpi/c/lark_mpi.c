/* Reservations for MPI applications; lark_mpi.h says what it does, and the Python package lark_mpi does the same.
 *
 * Its parts are compiled as one, so that what is not of lark_mpi.h stays inside. Each uses those before it.
 */
#define _GNU_SOURCE

#include "lark_mpi.h"

#include <errno.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TEXT LARK_MPI_TEXT
#define ID 32
#define HOST 256
#define ADDRESSES 4
#define SOCKET_PATH "/run/lark-worker/worker.sock"
/* Seconds to wait for room in the service's queue, and for an answer. */
#define SECONDS 20.0
/* A further try has no more time than what is left of the patience, but so many seconds. */
#define SHORTEST_TRY 1.0
/* Seconds to ask again where the service is starting, or turns a job away that asks too often; between two requests
 * first so many, then twice as many each time, and no more than the last figure: of a job hundreds of ranks may ask. */
#define PATIENCE 30.0
#define RENEWAL_PATIENCE 2.0
#define PAUSE 0.5
#define LONGEST_PAUSE 4.0
#define BUSY 429
#define AWAY 503
#define NOT_FOUND 404
/* A renewal without an answer is tried again, as often in a lease. */
#define AGAIN_IN_A_LEASE 12
/* Seconds for the answer to what is given back where nobody has answered before. */
#define BRIEFLY 2.0
/* Seconds to wait for the queues: while something stands in their way, and while they are being made. */
#define WAIT 10
#define LONGEST_QUEUES 30
#define LEASE 300.0
#define SHORTEST_LEASE 3.0
#define LONGEST_LEASE 86400.0
/* Seconds of a lease for each flow: a worker accepts five requests a second of a job, of which three in each lease are
 * renewals. */
#define SECONDS_FOR_EACH 1.0
/* Numbers of shares, from 1 on. */
#define NUMBERS 999999999999ull
#define MOST_RATE 1.25e12
/* Bytes of an answer, and levels of JSON in it. */
#define MAX_ANSWER ((size_t)16 << 20)
#define MAX_DEPTH 64
/* Numbers of answers are less. */
#define LARGEST 1e300
/* Seconds that one request waits for a change, and between two that are answered at once: first so many, then twice as
 * many each time, and no more than the last figure. */
#define LONGEST_WAIT 30.0
#define PACE 2.0
#define SLOWEST_PACE 16.0
/* Seconds between two requests that wait for less than that. Changes come no more often, and a program that looks for one in
 * each step of a loop would leave its renewals no requests. */
#define LEAST_WAIT 1.0
/* A version, as it stands in a query. */
#define VERSION 256
/* Between a reservation's id and the number of a share of it. */
#define SHARE 's'

#include "json.c"
#include "requests.c"
#include "rates.c"
#include "renewals.c"
#include "changes.c"
#include "attribute.c"
#include "ranks.c"
#include "reserve.c"
#include "paths.c"
