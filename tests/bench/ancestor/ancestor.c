/*
 * The design that tensorfs is measured against: files as linked lists of tensors in one pool of libpmemobj. A tensor is
 * appended by pmemobj_zalloc of a list element and memcpy_persist of its bytes; the element counts once its length is
 * set.
 *
 *     ancestor POOL POOL-BYTES TENSOR-BYTES COUNT
 *
 * makes the pool, appends one tensor untimed and COUNT timed to one file, prints the seconds of each on a line, and
 * reads the list back. On media that are no persistent memory, libpmemobj makes stores durable with msync.
 */
#include <libpmemobj.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tensor {
	PMEMoid next;
	uint64_t length; /* 0 until the bytes are there */
	char bytes[];
};

struct file {
	PMEMoid next; /* the next file */
	PMEMoid first, last;
	uint64_t size;
	char name[64];
};

struct root {
	PMEMoid files;
};

enum { FILE_TYPE = 1, TENSOR_TYPE = 2 };

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, pmemobj_errormsg());
	exit(1);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static struct file *make_file(PMEMobjpool *pool, const char *name)
{
	struct root *root = pmemobj_direct(pmemobj_root(pool, sizeof(*root)));
	if (pmemobj_zalloc(pool, &root->files, sizeof(struct file), FILE_TYPE))
		fail("file");
	struct file *file = pmemobj_direct(root->files);
	pmemobj_memcpy_persist(pool, file->name, name, strlen(name));
	return file;
}

/* The allocator sets the link and allocates as one step, so that nothing leaks in a crash. */
static void append(PMEMobjpool *pool, struct file *file, const char *bytes, uint64_t length)
{
	PMEMoid *link = &file->first;
	if (!OID_IS_NULL(file->last))
		link = &((struct tensor *)pmemobj_direct(file->last))->next;
	if (pmemobj_zalloc(pool, link, sizeof(struct tensor) + length, TENSOR_TYPE))
		fail("tensor");
	struct tensor *tensor = pmemobj_direct(*link);
	pmemobj_memcpy_persist(pool, tensor->bytes, bytes, length);
	pmemobj_memcpy_persist(pool, &tensor->length, &length, sizeof(length));
	pmemobj_memcpy_persist(pool, &file->last, link, sizeof(*link));
	uint64_t size = file->size + length;
	pmemobj_memcpy_persist(pool, &file->size, &size, sizeof(size));
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: ancestor POOL POOL-BYTES TENSOR-BYTES COUNT\n");
		return 2;
	}
	uint64_t length = strtoull(argv[3], NULL, 10), count = strtoull(argv[4], NULL, 10);
	PMEMobjpool *pool = pmemobj_create(argv[1], "ancestor", strtoull(argv[2], NULL, 10), 0600);
	if (!pool)
		fail(argv[1]);
	char *bytes = malloc(length);
	if (!bytes)
		return 1;
	for (uint64_t i = 0; i < length; i++)
		bytes[i] = (char)(i * 2654435761u >> 16);
	struct file *file = make_file(pool, "tensors");
	append(pool, file, bytes, length);
	for (uint64_t i = 0; i < count; i++) {
		double start = now();
		append(pool, file, bytes, length);
		printf("%.9f\n", now() - start);
	}
	uint64_t seen = 0;
	for (PMEMoid at = file->first; !OID_IS_NULL(at); seen++) {
		struct tensor *tensor = pmemobj_direct(at);
		if (tensor->length != length || memcmp(tensor->bytes, bytes, length)) {
			fprintf(stderr, "tensor %llu is not what was appended\n", (unsigned long long)seen);
			return 1;
		}
		at = tensor->next;
	}
	pmemobj_close(pool);
	free(bytes);
	return seen == count + 1 ? 0 : 1;
}
