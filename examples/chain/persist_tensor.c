/* The chain is a TFRecord file, so that TensorBoard, smdebug and `tensorfs tensors` read it where its tensors are
 * serialised events. Each frame: length (8 bytes, little-endian), its checksum (4), the bytes, their checksum (4). The
 * format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details */
#define _GNU_SOURCE
#include "persist_tensor.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BEFORE = 12, BEHIND = 4 };

/* Up to here all frames are whole. Older than the file's end after a power loss, never newer. */
static const char END[] = "user.chain.end";

/* CRC-32C (RFC 3720, B.4), bit by bit, masked as TFRecord has it. */
static uint32_t masked(const unsigned char *at, size_t len) {
    uint32_t crc = ~0u;
    for (; len > 0; len--) {
        crc ^= *at++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
    }
    crc = ~crc;
    return htole32((crc >> 15 | crc << 17) + 0xa282ead8u);
}

/* The length of the frame at the beginning of `left` bytes; 0 if it is not whole, or the length's checksum is wrong. */
static uint64_t frame(const unsigned char *at, uint64_t left, uint64_t *len) {
    uint32_t check;
    if (left < BEFORE + BEHIND)
        return 0;
    memcpy(len, at, 8);
    memcpy(&check, at + 8, 4);
    *len = le64toh(*len);
    if (check != masked(at, 8) || *len > left - BEFORE - BEHIND)
        return 0;
    return BEFORE + *len + BEHIND;
}

static int is_right(const unsigned char *at, uint64_t len) {
    uint32_t check;
    memcpy(&check, at + BEFORE + len, 4);
    return check == masked(at + BEFORE, len);
}

/* Where the last whole frame ends; -1 with errno. */
static int64_t end_of(const char *path, int fd, uint64_t size) {
    uint64_t end = 0;
    if (fgetxattr(fd, END, &end, sizeof end) != sizeof end || (end = le64toh(end)) > size)
        end = 0;
    if (end == size)
        return size;
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader < 0)
        return -1;
    unsigned char *file = mmap(NULL, size, PROT_READ, MAP_SHARED, reader, 0);
    const int error = errno;
    close(reader);
    errno = error;
    if (file == MAP_FAILED)
        return -1;
    uint64_t len, step;
    while ((step = frame(file + end, size - end, &len)) > 0 && is_right(file + end, len))
        end += step;
    munmap(file, size);
    return end;
}

static int write_frame(int fd, uint64_t at, const void *bytes, size_t len) {
    unsigned char before[BEFORE];
    const uint64_t length = htole64(len);
    memcpy(before, &length, 8);
    uint32_t check = masked(before, 8), behind = masked(bytes, len);
    memcpy(before + 8, &check, 4);
    struct iovec parts[] = {{before, BEFORE}, {(void *)bytes, len}, {&behind, BEHIND}};
    for (int n = 0; n < 3;) {
        ssize_t count = pwritev(fd, parts + n, 3 - n, at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        at += count;
        for (; n < 3 && (size_t)count >= parts[n].iov_len; n++)
            count -= parts[n].iov_len;
        if (n < 3) {
            parts[n].iov_base = (char *)parts[n].iov_base + count;
            parts[n].iov_len -= count;
        }
    }
    return 0;
}

static int append(const char *file, int fd, const void *bytes, size_t len) {
    struct stat status;
    /* Until the descriptor is closed, nobody else appends. */
    if (flock(fd, LOCK_EX) < 0 || fstat(fd, &status) < 0)
        return -1;
    const int64_t end = end_of(file, fd, status.st_size);
    /* What a killed process left unfinished was promised to nobody. */
    if (end < 0 || (end < status.st_size && ftruncate(fd, end) < 0))
        return -1;
    if (write_frame(fd, end, bytes, len) < 0 || fdatasync(fd) < 0) {
        const int error = errno;
        (void)!ftruncate(fd, end);
        errno = error;
        return -1;
    }
    const uint64_t whole = htole64(end + BEFORE + len + BEHIND);
    (void)!fsetxattr(fd, END, &whole, sizeof whole, 0);
    return 0;
}

int persist_tensor(const char *file, const void *bytes, size_t len) {
    /* Who can only append has the file keep what it knows of the rest. */
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return -1;
    const int result = append(file, fd, bytes, len);
    const int error = errno;
    if (close(fd) < 0 && result == 0)
        return -1;
    errno = error;
    return result;
}

int64_t each_tensor(const char *file, int (*each)(void *, const void *, size_t), void *context) {
    struct stat status;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    unsigned char *at = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size > 0)
        at = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    if (at == MAP_FAILED) {
        errno = error;
        return status.st_size == 0 ? 0 : -1;
    }
    int64_t count = 0;
    uint64_t from = 0, len, step;
    int stop = 0;
    error = 0;
    while (!stop && error == 0 && (step = frame(at + from, status.st_size - from, &len)) > 0) {
        if (!is_right(at + from, len))
            error = EILSEQ;
        else {
            stop = each(context, at + from + BEFORE, len);
            count++;
        }
        from += step;
    }
    munmap(at, status.st_size);
    errno = error;
    return error ? -1 : count;
}
