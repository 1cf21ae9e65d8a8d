#include "model/utf8.h"

#include <utf8proc.h>

namespace halfbyte::model {
namespace {

// The longest start of `text` that is, or could become, one character (Unicode, table 3-7).
struct Prefix {
    size_t length;  // at least 1
    enum { complete, incomplete, invalid } state;
};

Prefix first_character(std::string_view text) {
    const auto byte = [&](size_t i) { return uint8_t(text[i]); };
    const uint8_t lead = byte(0);
    if (lead < 0x80) return {1, Prefix::complete};
    if (lead < 0xC2 || lead > 0xF4) return {1, Prefix::invalid};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length; ++i) {
        if (i == text.size()) return {i, Prefix::incomplete};
        if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {i, Prefix::invalid};
    }
    return {length, Prefix::complete};
}

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

size_t invalid_utf8(std::string_view text) {
    for (size_t offset = 0; offset < text.size();) {
        const Prefix next = first_character(text.substr(offset));
        if (next.state != Prefix::complete) return offset;
        offset += next.length;
    }
    return std::string_view::npos;
}

std::string Utf8Stream::add(std::string_view bytes) {
    pending_ += bytes;
    std::string out;
    std::string_view rest = pending_;
    while (!rest.empty()) {
        const Prefix next = first_character(rest);
        if (next.state == Prefix::incomplete) break;
        out += next.state == Prefix::complete ? rest.substr(0, next.length) : replacement;
        rest.remove_prefix(next.length);
    }
    pending_ = std::string(rest);
    return out;
}

std::string Utf8Stream::finish() {
    if (pending_.empty()) return {};
    pending_.clear();
    return std::string(replacement);
}

Utf8Char utf8_at(std::string_view text, size_t offset) {
    utf8proc_int32_t code = 0;
    const auto* start = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + offset);
    const utf8proc_ssize_t length = utf8proc_iterate(start, utf8proc_ssize_t(text.size() - offset), &code);
    return {uint32_t(code), size_t(length)};
}

Utf8Char last_utf8(std::string_view text) {
    size_t offset = text.size() - 1;
    while (offset > 0 && (text[offset] & 0xC0) == 0x80) --offset;
    return utf8_at(text, offset);
}

std::string utf8(uint32_t code) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t length = utf8proc_encode_char(utf8proc_int32_t(code), bytes);
    return {reinterpret_cast<const char*>(bytes), size_t(length)};
}

bool is_white_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

bool is_numeric(uint32_t code) {
    const auto category = utf8proc_category(utf8proc_int32_t(code));
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

bool is_word(uint32_t code) {
    switch (utf8proc_category(utf8proc_int32_t(code))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:  // the symbols that are Other_Alphabetic, and the two Join_Controls
            return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
                   (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
                   code == 0x200C || code == 0x200D;
    }
}

}  // namespace halfbyte::model
