// The one exception type of the library. Its text says what was given, what is needed and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace halfbyte {

// What went wrong, in the classes that scripts distinguish; the command line exits with the number.
enum class ErrorKind : int {
    failure = 1,       // the work could not be done: disk, memory, a text too short
    usage = 2,         // the call itself is wrong: an unknown option, shapes that do not fit
    difference = 3,    // a check found a difference
    malformed = 4,     // a file breaks the rules of its format
    unsupported = 5,   // valid, but not something this build or machine can do
    interrupted = 130  // the caller asked to stop
};

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
    ErrorKind kind() const noexcept { return kind_; }

  private:
    ErrorKind kind_;
};

}  // namespace halfbyte
