/*
 * The design that tensorfs is measured against: files as linked lists of tensors in one pool of libpmemobj. A tensor is
 * appended by pmemobj_zalloc of a list element and memcpy_persist of its bytes; the element counts once its length is
 * set.
 *
 *     ancestor POOL POOL-BYTES TENSOR-BYTES COUNT
 *     ancestor POOL POOL-BYTES @EVENTS COUNT
 *
 * makes the pool, appends one tensor untimed and COUNT timed to one file, prints the seconds of each on a line, and
 * reads the list back. With an event file of smdebug's it does as smdebug does in a step, COUNT times: a new file in the
 * pool, and a tensor in it for each of the frames, which stay as smdebug wrote them; the last two lines are the bytes
 * that are allocated in the pool, and the seconds that opening it again and reading all of it take. On media that are no persistent memory, libpmemobj makes stores durable with msync.
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

static PMEMoid *files(PMEMobjpool *pool)
{
	return &((struct root *)pmemobj_direct(pmemobj_root(pool, sizeof(struct root))))->files;
}

static struct file *make_file(PMEMobjpool *pool, PMEMoid *link, const char *name)
{
	if (pmemobj_zalloc(pool, link, sizeof(struct file), FILE_TYPE))
		fail("file");
	struct file *file = pmemobj_direct(*link);
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

/* The length of the frame that begins here: a length, its checksum, so many bytes, and their checksum. */
static uint64_t frame(const char *at, const char *end)
{
	uint64_t length;
	if (end - at < 16)
		return 0;
	memcpy(&length, at, sizeof(length));
	return length <= (uint64_t)(end - at) - 16 ? length + 16 : 0;
}

/* Steps of smdebug. */
static int steps(PMEMobjpool *pool, const char *pool_path, const char *events, uint64_t count)
{
	FILE *source = fopen(events, "rb");
	if (!source || fseek(source, 0, SEEK_END) || ftell(source) < 0) {
		perror(events);
		return 1;
	}
	size_t size = ftell(source);
	char *bytes = malloc(size);
	rewind(source);
	if (!bytes || fread(bytes, 1, size, source) != size) {
		perror(events);
		return 1;
	}
	fclose(source);
	PMEMoid *link = files(pool);
	for (uint64_t step = 0; step <= count; step++) {
		double start = now();
		char name[32];
		snprintf(name, sizeof(name), "%012llu", (unsigned long long)step);
		struct file *file = make_file(pool, link, name);
		uint64_t length;
		for (const char *at = bytes; (length = frame(at, bytes + size)); at += length)
			append(pool, file, at, length);
		link = &file->next;
		if (step > 0)
			printf("%.9f\n", now() - start);
	}
	uint64_t allocated = 0;
	pmemobj_ctl_get(pool, "stats.heap.curr_allocated", &allocated);
	pmemobj_close(pool);
	double start = now();
	pool = pmemobj_open(pool_path, "ancestor");
	if (!pool)
		fail(pool_path);
	uint64_t seen = 0, wrong = 0;
	for (PMEMoid next = *files(pool); !OID_IS_NULL(next); seen++) {
		struct file *file = pmemobj_direct(next);
		const char *at = bytes;
		for (PMEMoid one = file->first; !OID_IS_NULL(one);) {
			struct tensor *tensor = pmemobj_direct(one);
			wrong += frame(at, bytes + size) != tensor->length || memcmp(tensor->bytes, at, tensor->length);
			at += tensor->length;
			one = tensor->next;
		}
		wrong += at != bytes + size;
		next = file->next;
	}
	printf("%llu\n%.9f\n", (unsigned long long)allocated, now() - start);
	pmemobj_close(pool);
	free(bytes);
	if (wrong)
		fprintf(stderr, "%llu tensors are not what was appended\n", (unsigned long long)wrong);
	return wrong || seen != count + 1;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: ancestor POOL POOL-BYTES TENSOR-BYTES|@EVENTS COUNT\n");
		return 2;
	}
	int enabled = 1;
	uint64_t length = strtoull(argv[3], NULL, 10), count = strtoull(argv[4], NULL, 10);
	PMEMobjpool *pool = pmemobj_create(argv[1], "ancestor", strtoull(argv[2], NULL, 10), 0600);
	if (!pool)
		fail(argv[1]);
	if (argv[3][0] == '@') {
		pmemobj_ctl_set(pool, "stats.enabled", &enabled);
		return steps(pool, argv[1], argv[3] + 1, count);
	}
	char *bytes = malloc(length);
	if (!bytes)
		return 1;
	for (uint64_t i = 0; i < length; i++)
		bytes[i] = (char)(i * 2654435761u >> 16);
	struct file *file = make_file(pool, files(pool), "tensors");
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
