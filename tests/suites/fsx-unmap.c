/*
 * For fsx 0.3.2, which never unmaps what it maps to read: after 100,000 operations it has 12,000 mappings, through all
 * of which the kernel goes whenever the file changes. Preloaded, this keeps the newest MOST of them and
 * unmaps the others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

#define MOST 64

static struct {
    void *at;
    size_t len;
} kept[MOST];
static unsigned next;

static void *map(const char *name, void *at, size_t len, int prot, int flags, int fd, off64_t offset)
{
    static void *(*real)(void *, size_t, int, int, int, off64_t);
    if (!real)
        real = (void *(*)(void *, size_t, int, int, int, off64_t))dlsym(RTLD_NEXT, name);
    void *p = real(at, len, prot, flags, fd, offset);
    if (p == MAP_FAILED || fd < 0 || !(flags & MAP_SHARED))
        return p;
    unsigned slot = next++ % MOST;
    if (kept[slot].at) {
        void *old = kept[slot].at;
        kept[slot].at = NULL;
        munmap(old, kept[slot].len);
    }
    kept[slot].at = p;
    kept[slot].len = len;
    return p;
}

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
    return map("mmap", at, len, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t len, int prot, int flags, int fd, off64_t offset)
{
    return map("mmap64", at, len, prot, flags, fd, offset);
}

int munmap(void *at, size_t len)
{
    static int (*real)(void *, size_t);
    if (!real)
        real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    for (unsigned i = 0; i < MOST; i++)
        if (kept[i].at == at)
            kept[i].at = NULL;
    return real(at, len);
}
