// What the three operators have in common, compiled into each of them: keys, and what to say when something fails.
#pragma once

#include <cerrno>
#include <cstdio>
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

} // namespace kernel
