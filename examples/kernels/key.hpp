// What the three operators have in common, compiled into each of them: keys, and what to say when something fails.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace kernel {

inline int fail(int error, const std::string &key, const char *what, char *why, size_t room) {
    if (why != nullptr && room > 0)
        std::snprintf(why, room, "%s: %s: %s", key.c_str(), what, std::strerror(error));
    return error;
}

// The path of a key, empty if it cannot be one: no key leads out of the directory, or to what begins with a dot.
inline std::string path_of(const char *directory, const char *key) {
    if (directory == nullptr || key == nullptr || key[0] == '\0' || key[0] == '.' || std::strchr(key, '/') != nullptr)
        return {};
    return std::string(directory) + "/" + key;
}

// True if it is NumPy's name of a type of numbers that this machine can use as they are in a file. `item`: its bytes.
inline bool is_number(const char *descr, unsigned long long *item) {
    if (descr[0] == '\0' || std::strchr("<|=", descr[0]) == nullptr || descr[1] == '\0' ||
        std::strchr("biufc", descr[1]) == nullptr || descr[2] < '1' || descr[2] > '9')
        return false;
    char *rest = nullptr;
    *item = std::strtoull(descr + 2, &rest, 10);
    return *rest == '\0' && *item <= 32;
}

// The attribute with an array's `type`.
constexpr char TYPE[] = "user.kernel.type";

} // namespace kernel
