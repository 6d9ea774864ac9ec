/* An application's rates as those of links. A part of lark_mpi.c. */

typedef struct {
    char job[ID], host[HOST], addresses[ADDRESSES][INET6_ADDRSTRLEN];
} place;

static int has(const place *of, int six) {
    for (int i = 0; i < ADDRESSES; i++) {
        if (of->addresses[i][0] && !strchr(of->addresses[i], ':') == !six) return 1;
    }
    return 0;
}

/* The MTU of the route to a job, as the kernel knows it; 1500 where it knows none. */
static int mtu_to(const place *there) {
    for (int i = 0; i < ADDRESSES && there->addresses[i][0]; i++) {
        const char *address = there->addresses[i];
        int six = strchr(address, ':') != NULL, mtu = 0;
        socklen_t size = sizeof mtu;
        struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(9)};
        struct sockaddr_in6 long_one = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
        void *number_at = six ? (void *)&long_one.sin6_addr : (void *)&four.sin_addr;
        if (inet_pton(six ? AF_INET6 : AF_INET, address, number_at) != 1) continue;
        int fd = socket(six ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        const struct sockaddr *name = six ? (struct sockaddr *)&long_one : (struct sockaddr *)&four;
        int known = !connect(fd, name, six ? sizeof long_one : sizeof four) &&
                    !getsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu, &size);
        close(fd);
        if (known) return mtu;
    }
    return 1500;
}

/* Bytes on a link for each byte of the application, in full packets: (MTU + 14) / (MTU - IP - 32). 14 are Ethernet's,
 * IP is 20 or with IPv6 40, 32 are TCP's with its time stamps. */
static double headers(const place *here, const place *there) {
    int six = has(here, 1) && has(there, 1) && !(has(here, 0) && has(there, 0));
    double mtu = mtu_to(there);
    if (mtu < 576) mtu = 576;
    if (mtu > 65535) mtu = 65535;
    return (mtu + 14) / (mtu - (six ? 40 : 20) - 32);
}

/* An application's rate in bytes a second as a link's in kb/s, rounded up. */
static long long kilobits(double rate, const place *here, const place *there) {
    double exact = rate * 8e-3 * headers(here, there);
    long long whole = (long long)exact;
    if (exact - (double)whole > 1e-6) whole++;
    return whole > 0 ? whole : 1;
}
