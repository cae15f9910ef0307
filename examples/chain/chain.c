/* chain append FILE: appends each line of its input, and says `N` when the Nth is durable.
 * chain list FILE: prints the length and the beginning of each tensor. */
#include "persist_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print(void *context, const void *bytes, size_t len) {
    (void)context;
    printf("%zu %.*s\n", len, (int)(len < 40 ? len : 40), (const char *)bytes);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3 || (strcmp(arguments[1], "append") != 0 && strcmp(arguments[1], "list") != 0)) {
        fprintf(stderr, "usage: chain append|list FILE\n");
        return 2;
    }
    const char *file = arguments[2];
    if (strcmp(arguments[1], "list") == 0) {
        if (each_tensor(file, print, NULL) >= 0)
            return 0;
        perror(file);
        return 1;
    }
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    for (long number = 1; (len = getline(&line, &room, stdin)) >= 0; number++) {
        if (persist_tensor(file, line, len - (len > 0 && line[len - 1] == '\n')) < 0) {
            perror(file);
            return 1;
        }
        printf("%ld\n", number);
        fflush(stdout);
    }
    free(line);
    return 0;
}
