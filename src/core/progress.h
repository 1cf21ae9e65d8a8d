// Long work reports here. The receiver may throw Error (interrupted) to stop it; the library itself prints
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace halfbyte {

// `what` names the stage ("calibrate", "write"); done of total, in items of that stage.
using Progress = std::function<void(std::string_view what, int64_t done, int64_t total)>;

inline void report(const Progress& progress, std::string_view what, int64_t done, int64_t total) {
    if (progress) progress(what, done, total);
}

}  // namespace halfbyte
