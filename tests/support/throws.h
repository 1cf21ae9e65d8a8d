// The Error that a call throws, to look at its kind and text.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "halfbyte/error.h"

namespace halfbyte::test {

// A failure unless `call` throws Error of this kind with `part` somewhere in its text.
template <typename Call>
testing::AssertionResult throws(ErrorKind kind, const std::string& part, Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        const std::string text = error.what();
        if (error.kind() != kind)
            return testing::AssertionFailure()
                   << "kind " << int(error.kind()) << ", expected " << int(kind) << ": " << text;
        if (text.find(part) == std::string::npos)
            return testing::AssertionFailure() << "the text lacks '" << part << "': " << text;
        return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "nothing was thrown";
}

// The same with several parts.
template <typename Call>
testing::AssertionResult throws(ErrorKind kind, std::initializer_list<const char*> parts, Call&& call) {
    for (const char* part : parts)
        if (const auto result = throws(kind, std::string(part), call); !result) return result;
    return testing::AssertionSuccess();
}

}  // namespace halfbyte::test
