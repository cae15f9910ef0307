/* The operators' interface: three functions, each in a shared library of its own, that agree on nothing but this and on
 * what a .npy file is. Any C, C++ or Rust program, ctypes and PyTorch can call them.
 *
 * A key is the name of a file in the directory. Each function returns 0, or else an errno value; then it also writes
 * one line into `why`, which has `room` bytes, that says what went wrong. The functions may be called from any number
 * of threads and processes at once. */
#ifndef KERNEL_H
#define KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define KERNEL_RANK_MAX 16
#define KERNEL_DESCR_MAX 16

#ifdef __cplusplus
extern "C" {
#endif

/* An array in memory. */
struct kernel_array {
    char descr[KERNEL_DESCR_MAX]; /* NumPy's name of the type: "<f4", "|u1", ... */
    int32_t rank;
    int32_t column_major;
    int64_t shape[KERNEL_RANK_MAX];
    void *data;
    uint64_t bytes;
    void *mapping; /* get_tensor: what release_tensor gives back */
    uint64_t mapped;
    char type[KERNEL_DESCR_MAX]; /* what the numbers are where NumPy has no name for it ("bfloat16"), else empty */
};

/* Saves an array of numbers under the key, in the place of the one that was there, if any: others see the old array or
 * the new one, whole. EINVAL, and the old array stays, if descr is that of anything else. */
int save_tensor(const char *directory, const char *key, const struct kernel_array *array, char *why, size_t room);

/* Maps the key's array, without a copy. What is mapped stays as it is if the key is saved again or deleted. Changes to
 * it are seen by everybody who has this version mapped. ENOENT if there is no such key. */
int get_tensor(const char *directory, const char *key, struct kernel_array *array, char *why, size_t room);

/* Unmaps what get_tensor gave. */
void release_tensor(struct kernel_array *array);

/* Removes the key. ENOENT if there is no such key. */
int delete_tensor(const char *directory, const char *key, char *why, size_t room);

#ifdef __cplusplus
}
#endif
#endif
