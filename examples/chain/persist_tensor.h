/* A file as a chain of tensors that a program in C appends, one at a time. */
#ifndef PERSIST_TENSOR_H
#define PERSIST_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* Appends `len` bytes to the chain in `file`, which is made if need be. Returns 0 when they are durable, and then
 * they are a record of their own; or -1 with errno, and the chain is as it was. Any number of processes may append. */
int persist_tensor(const char *file, const void *bytes, size_t len);

/* Calls `each` for every tensor of the chain, in order, with its bytes in the pool's memory, until it returns non-zero.
 * The bytes are there until `each` returns. Returns how many there were, or -1 with errno: EILSEQ if a checksum is
 * wrong. What a process that was killed has left unfinished at the end is not a tensor. */
int64_t each_tensor(const char *file, int (*each)(void *context, const void *bytes, size_t len), void *context);

#endif
