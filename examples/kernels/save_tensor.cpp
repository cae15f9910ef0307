// save_tensor: writes a .npy file under a temporary name, and renames it to the key's when it is whole.
#include "kernel.h"
#include "key.hpp"

#include <atomic>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

namespace {

std::string header_of(const kernel_array &array) {
    std::string shape;
    for (int n = 0; n < array.rank; n++)
        shape += std::to_string(array.shape[n]) + ", ";
    std::string text = "{'descr': '" + std::string(array.descr, strnlen(array.descr, KERNEL_DESCR_MAX)) +
                       "', 'fortran_order': " + (array.column_major ? "True" : "False") +
                       ", 'shape': (" + shape + "), }";
    // Magic, version and length are 10 bytes; the array begins at a multiple of 64.
    text.append(63 - (10 + text.size()) % 64, ' ');
    text += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(text.size() & 0xff);
    header += static_cast<char>(text.size() >> 8);
    return header + text;
}

bool is_whole(const kernel_array &array) {
    unsigned long long item = 0;
    if (strnlen(array.descr, KERNEL_DESCR_MAX) == KERNEL_DESCR_MAX || !kernel::is_number(array.descr, &item))
        return false;
    uint64_t bytes = item;
    for (int n = 0; n < array.rank; n++)
        if (array.shape[n] < 0 || __builtin_mul_overflow(bytes, uint64_t(array.shape[n]), &bytes))
            return false;
    return bytes == array.bytes;
}

int write_all(int fd, const void *data, uint64_t left) {
    auto at = static_cast<const char *>(data);
    while (left > 0) {
        ssize_t count = write(fd, at, left < (1u << 30) ? left : 1u << 30);
        if (count < 0 && errno != EINTR)
            return errno;
        if (count > 0) {
            at += count;
            left -= count;
        }
    }
    return 0;
}

} // namespace

extern "C" int save_tensor(const char *directory, const char *key, const kernel_array *array, char *why, size_t room) {
    const std::string path = kernel::path_of(directory, key);
    if (path.empty() || array == nullptr || array->rank < 0 || array->rank > KERNEL_RANK_MAX ||
        (array->data == nullptr && array->bytes > 0))
        return kernel::fail(EINVAL, key ? key : "", "cannot be saved", why, room);
    if (!is_whole(*array))
        return kernel::fail(EINVAL, key, "is no array of numbers with as many bytes as it has elements", why, room);
    static std::atomic<unsigned> number{0};
    const std::string temporary = std::string(directory) + "/." + key + "." + std::to_string(getpid()) + "." +
                                  std::to_string(number++) + ".tmp";
    int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return kernel::fail(errno, key, "cannot be created", why, room);
    const std::string header = header_of(*array);
    int error = write_all(fd, header.data(), header.size());
    if (error == 0)
        error = write_all(fd, array->data, array->bytes);
    const size_t type = strnlen(array->type, KERNEL_DESCR_MAX);
    if (error == 0 && type > 0 && fsetxattr(fd, kernel::TYPE, array->type, type, 0) < 0)
        error = errno;
    if (close(fd) < 0 && error == 0)
        error = errno;
    if (error == 0 && rename(temporary.c_str(), path.c_str()) < 0)
        error = errno;
    if (error == 0)
        return 0;
    unlink(temporary.c_str());
    return kernel::fail(error, key, "cannot be written", why, room);
}
