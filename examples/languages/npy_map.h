/* Maps a .npy file of doubles with two dimensions, for C and C++. */
#ifndef NPY_MAP_H
#define NPY_MAP_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct npy_map {
    double *data;
    size_t rows, columns;
    /* Elements from one row to the next, and from one column to the next. */
    size_t row_stride, column_stride;
    void *mapping;
    size_t length;
};

static inline void npy_fail(const char *path, const char *why) {
    fprintf(stderr, "%s: %s\n", path, why);
    exit(1);
}

static inline struct npy_map npy_map(const char *path) {
    struct npy_map map;
    struct stat status;
    memset(&map, 0, sizeof map);
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &status) < 0)
        npy_fail(path, "cannot be opened");
    map.length = (size_t)status.st_size;
    if (map.length < 12)
        npy_fail(path, "is no .npy file");
    map.mapping = mmap(NULL, map.length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd); /* The mapping keeps the file. */
    if (map.mapping == MAP_FAILED)
        npy_fail(path, "cannot be mapped");
    const unsigned char *bytes = (const unsigned char *)map.mapping;
    size_t text = bytes[8] | (size_t)bytes[9] << 8, data = 10 + text;
    char header[512] = {0};
    if (memcmp(bytes, "\x93NUMPY\x01", 7) != 0 || text >= sizeof header || data > map.length)
        npy_fail(path, "is no .npy file of version 1");
    memcpy(header, bytes + 10, text);
    const char *shape = strstr(header, "'shape': (");
    if (strstr(header, "'<f8'") == NULL || shape == NULL ||
        sscanf(shape, "'shape': (%zu, %zu)", &map.rows, &map.columns) != 2 || map.columns == 0 ||
        map.rows > (map.length - data) / sizeof(double) / map.columns)
        npy_fail(path, "holds no matrix of doubles");
    int column_major = strstr(header, "'fortran_order': True") != NULL;
    map.row_stride = column_major ? 1 : map.columns;
    map.column_stride = column_major ? map.rows : 1;
    map.data = (double *)(void *)((unsigned char *)map.mapping + data);
    return map;
}

static inline void npy_unmap(struct npy_map *map) { munmap(map->mapping, map->length); }

#endif
