/* Preloaded: a program stops itself before it unmaps as many bytes as STOP_AT says, so that what it has mapped
 * can be looked at. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int munmap(void *address, size_t length) {
    const char *at = getenv("STOP_AT");
    if (at != NULL && length == strtoull(at, NULL, 10))
        raise(SIGSTOP);
    return (int)syscall(SYS_munmap, address, length);
}
