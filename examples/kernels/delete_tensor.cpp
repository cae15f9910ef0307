// delete_tensor: removes the key's file. Programs that have it mapped keep it.
#include "kernel.h"
#include "key.hpp"

#include <unistd.h>

extern "C" int delete_tensor(const char *directory, const char *key, char *why, size_t room) {
    const std::string path = kernel::path_of(directory, key);
    if (path.empty())
        return kernel::fail(EINVAL, key ? key : "", "is no key", why, room);
    return unlink(path.c_str()) == 0 ? 0 : kernel::fail(errno, key, "cannot be deleted", why, room);
}
