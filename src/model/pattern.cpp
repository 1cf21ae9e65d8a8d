#include "model/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>

#include "checkpoint/json.h"
#include "core/check.h"

namespace halfbyte::model {
namespace {

using checkpoint::quote;

// PCRE2's own \s counts U+180E as a space, which Unicode does not since version 6.3.
constexpr std::string_view white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view not_white_space =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// PCRE2's own \w lacks marks. Oniguruma's has the five numeric characters of Latin-1 that are not digits.
constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

// Rewrites an expression for PCRE2.
class Translator {
  public:
    Translator(std::string_view in, const std::string& file) : in_(in), file_(file) {}

    std::string translate() {
        while (at_ < in_.size()) {
            const char c = in_[at_];
            if (c == '\\') {
                escape(false);
            } else if (c == '[') {
                character_class();
            } else if (c == '(') {
                group();
            } else if (c == '{') {
                interval();
            } else {
                copy(1);
            }
        }
        return std::move(out_);
    }

  private:
    [[noreturn]] void refuse(std::string_view what) const {
        fail(ErrorKind::unsupported,
             "{}: the pattern {} holds {} at character {}, which is not supported in tokenizer patterns",
             file_, quote(in_), quote(what), at_);
    }
    bool starts(std::string_view text) const { return in_.substr(at_).starts_with(text); }
    void copy(size_t count) {
        out_ += in_.substr(at_, count);
        at_ += count;
    }
    void put(std::string_view text, bool in_class) {
        out_ += in_class ? std::string(text) : fmt::format("[{}]", text);
    }

    void escape(bool in_class) {
        if (at_ + 1 == in_.size()) refuse("\\");
        const char c = in_[at_ + 1];
        const std::string_view both = in_.substr(at_, 2);
        if (c == 'p' || c == 'P') return property();
        if (c == 'x' || c == 'u') return code(c);
        if (c == 's') put(white_space, in_class);
        if (c == 'S') put(not_white_space, in_class);
        if (c == 'w') put(word, in_class);
        if (c == 'W') {
            if (in_class) refuse(both);
            out_ += fmt::format("[^{}]", word);
        }
        if (std::string_view("sSwW").find(c) != std::string_view::npos) {
            at_ += 2;
            return;
        }
        const bool same = std::string_view("dDrntf").find(c) != std::string_view::npos;
        const bool anchor = !in_class && (c == 'A' || c == 'z');
        if (!same && !anchor && (uint8_t(c) >= 0x80 || std::isalnum(uint8_t(c)))) refuse(both);
        copy(2);
    }

    // \pL, \p{L}, \p{^Lu}; a name longer than a general category is a script.
    void property() {
        const size_t close = in_.find('}', at_);
        if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == in_.npos)
            refuse(in_.substr(at_, 3));  // \pL means something else in Oniguruma
        std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
        const std::string_view negation = name.starts_with('^') ? "^" : "";
        name.remove_prefix(negation.size());
        const bool plain =
            std::all_of(name.begin(), name.end(), [](uint8_t c) { return std::isalpha(c) || c == '_'; });
        if (name.empty() || !plain) refuse(in_.substr(at_, close + 1 - at_));
        // Oniguruma's scripts are Script, PCRE2's bare names Script_Extensions.
        out_ += fmt::format("\\{}{{{}{}{}}}", in_[at_ + 1], negation, name.size() > 2 ? "sc:" : "", name);
        at_ = close + 1;
    }

    // \xHH, \x{H...}, \uHHHH
    void code(char kind) {
        const size_t start = at_;
        const bool braces = starts("\\x{");
        at_ += braces ? 3 : 2;
        const size_t digits = kind == 'u' ? 4 : braces ? 8 : 2;
        std::string value;
        while (at_ < in_.size() && value.size() < digits && std::isxdigit(uint8_t(in_[at_])))
            value += in_[at_++];
        const bool whole = braces ? !value.empty() && starts("}") : value.size() == digits;
        const std::string_view all = in_.substr(start, at_ + (braces ? 1 : 0) - start);
        // \x80 to \xFF without braces are bytes in Oniguruma, not characters.
        const bool byte = kind == 'x' && !braces && !value.empty() && value[0] >= '8';
        if (!whole || byte) {
            at_ = start;
            refuse(all);
        }
        if (braces) ++at_;
        out_ += fmt::format("\\x{{{}}}", value);
    }

    void character_class() {
        copy(1);
        if (starts("^")) copy(1);
        if (starts("]")) refuse("[]");
        while (!starts("]")) {
            check(at_ < in_.size(), ErrorKind::malformed, "{}: the pattern {} has a [ without its ]", file_,
                  quote(in_));
            if (starts("[") || starts("&&")) refuse(in_.substr(at_, 2));  // sets inside sets, intersections
            if (starts("\\")) {
                escape(true);
            } else {
                copy(1);
            }
        }
        copy(1);
    }

    void group() {
        static constexpr std::string_view accepted[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
        for (const std::string_view opening : accepted) {
            if (starts(opening)) return copy(opening.size());
        }
        // Elsewhere an option without a group reaches over the next | in Oniguruma.
        if (at_ == 0 && starts("(?i)")) return copy(4);
        if (starts("(?") || starts("(*")) refuse(in_.substr(at_, 4));
        copy(1);
    }

    // {n}, {n,}, {n,m}. A ? or + behind it means something else in each of the two; a brace that is no
    // interval is a plain character, but {,m} is an interval for Oniguruma only.
    void interval() {
        size_t end = at_ + 1;
        const auto digit = [&] { return end < in_.size() && std::isdigit(uint8_t(in_[end])); };
        while (digit()) ++end;
        const bool first = end > at_ + 1;
        if (end < in_.size() && in_[end] == ',') ++end;
        while (digit()) ++end;
        if (end == in_.size() || in_[end] != '}' || end == at_ + 1) return copy(1);
        const bool lazy = end + 1 < in_.size() && (in_[end + 1] == '?' || in_[end + 1] == '+');
        if (!first || lazy) refuse(in_.substr(at_, end + 2 - at_));
        copy(end + 1 - at_);
    }

    std::string_view in_;
    const std::string& file_;
    std::string out_;
    size_t at_ = 0;
};

std::string reason(int code) {
    PCRE2_UCHAR text[200];
    pcre2_get_error_message(code, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

size_t next_character(std::string_view text, size_t at) {
    ++at;
    while (at < text.size() && (text[at] & 0xC0) == 0x80) ++at;
    return at;
}

template <auto free>
struct Free {
    template <typename T>
    void operator()(T* pointer) const {
        free(pointer);
    }
};

// A match may take this many steps from each place where it is tried, and the matches in a text together as
// many again for each of its bytes. A run of a million spaces takes Llama 3's pattern a million steps at its
// first place: it is first tried as "spaces, then a line end", from the longest down.
constexpr uint32_t steps_per_place = 1000;
constexpr uint64_t extra_steps_per_text = 16'000;
constexpr uint32_t heap_limit_kib = 64 << 10;
constexpr size_t jit_stack_bytes = 64 << 20;  // grows as needed

}  // namespace

struct Pattern::Compiled {
    std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

Pattern::Pattern(std::string_view expression, const std::string& file)
    : expression_(expression), file_(file) {
    check(expression.size() <= 10'000, ErrorKind::unsupported,
          "{}: a pattern of {} bytes; at most 10000 are supported", file, expression.size());
    const std::string translated = Translator(expression, file).translate();
    const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
        pcre2_compile_context_create(nullptr));
    check(context != nullptr, ErrorKind::failure, "out of memory for a pattern");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_shared<Compiled>();
    compiled->code.reset(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
        &offset, context.get()));
    check(compiled->code != nullptr, ErrorKind::malformed, "{}: the pattern {} cannot be compiled: {}", file,
          quote(expression), reason(error));
    pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter runs
    compiled_ = std::move(compiled);
}

struct Matcher::Memory {
    std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data;
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
    std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack;
};

Matcher::Matcher(const Pattern& pattern) : pattern_(pattern), memory_(std::make_unique<Memory>()) {
    Memory& memory = *memory_;
    memory.data.reset(pcre2_match_data_create_from_pattern(pattern.compiled_->code.get(), nullptr));
    memory.context.reset(pcre2_match_context_create(nullptr));
    memory.stack.reset(pcre2_jit_stack_create(32 << 10, jit_stack_bytes, nullptr));  // null without JIT
    check(memory.data && memory.context, ErrorKind::failure, "out of memory for a pattern");
    pcre2_set_heap_limit(memory.context.get(), heap_limit_kib);
    if (memory.stack) pcre2_jit_stack_assign(memory.context.get(), nullptr, memory.stack.get());
}

Matcher::~Matcher() = default;

// The next match from `start` on, or PCRE2's error. PCRE2 counts steps anew at each place and does not tell
// how many it took, so a search that came to its limit is done again place by place, with eight times the
// steps each time.
int Matcher::match(std::string_view text, size_t start, uint64_t& extra_steps) const {
    pcre2_match_context* context = memory_->context.get();
    const auto run = [&](size_t from, size_t last, uint64_t steps) {
        pcre2_set_offset_limit(context, last);
        pcre2_set_match_limit(context, uint32_t(steps));
        pcre2_set_depth_limit(context, uint32_t(steps));
        return pcre2_match(pattern_.compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                           text.size(), from, PCRE2_NO_UTF_CHECK, memory_->data.get(), context);
    };
    int result = run(start, text.size(), steps_per_place);
    const auto over = [&] { return result == PCRE2_ERROR_MATCHLIMIT || result == PCRE2_ERROR_DEPTHLIMIT; };
    if (!over()) return result;
    for (size_t place = start; place <= text.size(); place = next_character(text, place)) {
        result = run(place, place, steps_per_place);
        for (uint64_t steps = 8 * steps_per_place; over() && steps <= extra_steps; steps *= 8) {
            extra_steps -= steps;
            result = run(place, place, std::min<uint64_t>(steps, std::numeric_limits<uint32_t>::max()));
        }
        if (result != PCRE2_ERROR_NOMATCH) return result;
    }
    return result;
}

void Matcher::for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
    std::optional<size_t> last_end;
    uint64_t extra_steps = steps_per_place * uint64_t(text.size()) + extra_steps_per_text;
    for (size_t start = 0; start <= text.size();) {
        const int result = match(text, start, extra_steps);
        if (result == PCRE2_ERROR_NOMATCH) return;
        check(result > 0, ErrorKind::failure,
              "{}: the pattern {} gave up at byte {} of a text of {}: {}. A pattern that needs this much is "
              "probably not meant for tokenizing",
              pattern_.file_, quote(pattern_.expression_), start, text.size(), reason(result));
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(memory_->data.get());
        if (range[0] == range[1] && last_end == range[1]) {
            start = next_character(text, start);
            continue;
        }
        found(range[0], range[1]);
        last_end = start = range[1];
    }
}

}  // namespace halfbyte::model
