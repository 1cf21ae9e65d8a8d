// check(condition, kind, format, values...): throws Error with a text that is only built when the check
// fails.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "halfbyte/error.h"

namespace halfbyte {

template <typename... Values>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Values...> text, Values&&... values) {
    throw Error(kind, fmt::format(text, std::forward<Values>(values)...));
}

template <typename... Values>
void check(bool condition, ErrorKind kind, fmt::format_string<Values...> text, Values&&... values) {
    if (!condition) [[unlikely]]
        fail(kind, text, std::forward<Values>(values)...);
}

}  // namespace halfbyte
