/* Reads answers from standard input, each after its length (four bytes, the lowest first), and prints a line for each:
 * status, id as hexadecimal digits, rate, and how many members of "links" there are; or the problem. */
#include "lark_mpi.c"

int main(void) {
    unsigned char size[4];
    while (fread(size, 1, 4, stdin) == 4) {
        size_t length = size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
        answer of = {.text = malloc(length ? length : 1)};
        char id[64];
        double rate = 0;
        int count = 0;
        json list, each;
        if (!of.text || fread(of.text, 1, length, stdin) != length) return 1;
        const char *problem = read_answer(&of, length);
        if (problem) {
            printf("%s\n", problem);
        } else {
            printf("%d ", of.status);
            if (member_text(of.body, "id", id, sizeof id)) {
                for (char *c = id; *c; c++) printf("%02x", (unsigned char)*c);
            }
            if (member_number(of.body, "rate", &rate)) printf(" %.17g", rate);
            else printf(" none");
            if (member_list(of.body, "links", &list)) {
                while (element(&list, &each)) count++;
            }
            printf(" %d\n", count);
        }
        forget(&of);
    }
    return 0;
}
