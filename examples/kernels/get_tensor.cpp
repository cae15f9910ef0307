// get_tensor: maps the key's .npy file and says what is in it. Any program may have written the file, so nothing in it
// is trusted.
#include "kernel.h"
#include "key.hpp"

#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

namespace {

// The text that follows `'name':` in the header; empty if the name is not there.
std::string field(const std::string &header, const char *name) {
    const std::string quoted = std::string("'") + name + "':";
    size_t at = header.find(quoted);
    if (at == std::string::npos)
        return {};
    at = header.find_first_not_of(' ', at + quoted.size());
    return at == std::string::npos ? std::string() : header.substr(at);
}

bool parse(const unsigned char *file, uint64_t length, kernel_array *array) {
    if (length < 10 || std::memcmp(file, "\x93NUMPY", 6) != 0 || file[6] < 1 || file[6] > 3)
        return false;
    const uint64_t before = file[6] == 1 ? 10 : 12;
    uint64_t size = file[8] | file[9] << 8;
    if (file[6] > 1) {
        if (length < 12)
            return false;
        size |= uint64_t(file[10]) << 16 | uint64_t(file[11]) << 24;
    }
    if (size > length - before)
        return false;
    const std::string header(reinterpret_cast<const char *>(file) + before, size);
    const std::string descr = field(header, "descr"), order = field(header, "fortran_order");
    std::string shape = field(header, "shape");
    const size_t end = descr.find('\'', 1);
    if (descr.empty() || descr[0] != '\'' || end == std::string::npos || end - 1 >= KERNEL_DESCR_MAX || end < 4 ||
        shape.empty() || shape[0] != '(')
        return false;
    std::memcpy(array->descr, descr.data() + 1, end - 1);
    array->column_major = order.compare(0, 4, "True") == 0;
    unsigned long long item = 0;
    if (!kernel::is_number(array->descr, &item))
        return false;
    uint64_t bytes = item;
    const char *at = shape.c_str() + 1;
    while (*at != ')') {
        char *behind = nullptr;
        const unsigned long long count = std::strtoull(at, &behind, 10);
        if (behind == at || array->rank == KERNEL_RANK_MAX || count > INT64_MAX ||
            __builtin_mul_overflow(bytes, count, &bytes))
            return false;
        array->shape[array->rank++] = static_cast<int64_t>(count);
        at = behind;
        while (*at == ',' || *at == ' ')
            at++;
    }
    if (bytes > length - before - size)
        return false;
    array->bytes = bytes;
    array->data = const_cast<unsigned char *>(file) + before + size;
    return true;
}

} // namespace

extern "C" int get_tensor(const char *directory, const char *key, kernel_array *array, char *why, size_t room) {
    const std::string path = kernel::path_of(directory, key);
    if (path.empty() || array == nullptr)
        return kernel::fail(EINVAL, key ? key : "", "is no key", why, room);
    *array = kernel_array{};
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    int protection = PROT_READ | PROT_WRITE;
    if (fd < 0 && (errno == EACCES || errno == EROFS)) {
        fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        protection = PROT_READ;
    }
    if (fd < 0)
        return kernel::fail(errno, key, "cannot be opened", why, room);
    // Without the attribute, or with one that is too long, the numbers are what the header says.
    if (fgetxattr(fd, kernel::TYPE, array->type, KERNEL_DESCR_MAX - 1) < 0)
        array->type[0] = '\0';
    struct stat status {};
    void *mapping = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size > 0)
        mapping = mmap(nullptr, status.st_size, protection, MAP_SHARED, fd, 0);
    const int error = status.st_size > 0 ? errno : EINVAL;
    close(fd);
    if (mapping == MAP_FAILED)
        return kernel::fail(error, key, "cannot be mapped", why, room);
    if (!parse(static_cast<unsigned char *>(mapping), status.st_size, array)) {
        munmap(mapping, status.st_size);
        *array = kernel_array{};
        return kernel::fail(EINVAL, key, "is no array of numbers in .npy format", why, room);
    }
    array->mapping = mapping;
    array->mapped = status.st_size;
    return 0;
}

extern "C" void release_tensor(kernel_array *array) {
    if (array != nullptr && array->mapping != nullptr)
        munmap(array->mapping, array->mapped);
    if (array != nullptr)
        *array = kernel_array{};
}
