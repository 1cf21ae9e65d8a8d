#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "checkpoint/json.h"
#include "core/check.h"

namespace halfbyte::checkpoint {
namespace {

constexpr std::string_view expression_prefix = "re:";
constexpr uint32_t step_limit = 20'000, depth_limit = 1'000, heap_limit_kib = 16'384;
constexpr size_t length_limit = 10'000;

PCRE2_SPTR8 units(std::string_view text) {
    return reinterpret_cast<PCRE2_SPTR8>(text.data());
}

std::string reason(int error) {
    PCRE2_UCHAR8 text[256];
    pcre2_get_error_message_8(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

}  // namespace

ModulePattern::ModulePattern(std::string text, std::string source, ErrorKind kind)
    : text_(std::move(text)), source_(std::move(source)), kind_(kind) {
    if (!text_.starts_with(expression_prefix)) return;
    const std::string_view expression = std::string_view(text_).substr(expression_prefix.size());
    check(expression.size() <= length_limit, kind_, "{}: a pattern of {} bytes; at most {} are allowed",
          source_, expression.size(), length_limit);
    int error = 0;
    size_t offset = 0;
    code_.reset(
        pcre2_compile_8(units(expression), expression.size(),
                        PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr),
        pcre2_code_free_8);
    check(code_ != nullptr, kind_, "{}: the pattern {} is no regular expression: {} at byte {}", source_,
          quote(text_), reason(error), offset);
    pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter runs
}

ModulePattern::Match ModulePattern::match(std::string_view module, std::string_view class_name) const {
    if (code_ == nullptr)
        return text_ == module ? Match::name : text_ == class_name ? Match::class_name : Match::none;
    const std::unique_ptr<pcre2_match_data_8, void (*)(pcre2_match_data_8*)> data(
        pcre2_match_data_create_from_pattern_8(code_.get(), nullptr), pcre2_match_data_free_8);
    const std::unique_ptr<pcre2_match_context_8, void (*)(pcre2_match_context_8*)> context(
        pcre2_match_context_create_8(nullptr), pcre2_match_context_free_8);
    check(data != nullptr && context != nullptr, ErrorKind::failure, "out of memory");
    pcre2_set_match_limit_8(context.get(), step_limit);
    pcre2_set_depth_limit_8(context.get(), depth_limit);
    pcre2_set_heap_limit_8(context.get(), heap_limit_kib);
    const int result =
        pcre2_match_8(code_.get(), units(module), module.size(), 0, 0, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) return Match::none;
    check(result >= 0, kind_, "{}: the pattern {} cannot be matched with {}: {}", source_, quote(text_),
          quote(module), reason(result));
    return Match::expression;
}

std::string_view class_of_module(std::string_view module) {
    return module.ends_with("embed_tokens") ? "Embedding" : "Linear";
}

}  // namespace halfbyte::checkpoint
