#include "model/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/check.h"
#include "model/json_object.h"

namespace halfbyte::model {
namespace {

using checkpoint::Json;
using checkpoint::quote;
using checkpoint::shown;

// Far more than any that tokenizers have.
constexpr size_t steps_limit = 64;
// NFKD makes 11 bytes of one.
constexpr size_t growth_limit = 64, growth_allowance = 1024;

std::string unicode_form(const std::string& text, int options) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x80; })) return text;
    utf8proc_uint8_t* mapped = nullptr;
    const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     utf8proc_ssize_t(text.size()), &mapped, utf8proc_option_t(options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
    check(length >= 0, ErrorKind::failure, "Unicode normalisation of {} bytes failed: {}", text.size(),
          utf8proc_errmsg(length));
    return {reinterpret_cast<const char*>(mapped), size_t(length)};
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& file) : file_(file) {
    add(json, file);
}

void Normalizer::add(const Json& json, const std::string& file) {
    const JsonObject fields(json, "normalizer", file);
    const std::string& type = fields.text("type");
    check(steps_.size() < steps_limit, ErrorKind::unsupported, "{}: more than {} normalizers", file,
          steps_limit);
    if (type == "Sequence") {
        for (const Json& step : fields.array("normalizers")) add(step, file);
    } else if (type == "NFC") {
        steps_.push_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_COMPOSE});
    } else if (type == "NFD") {
        steps_.push_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_DECOMPOSE});
    } else if (type == "NFKC") {
        steps_.push_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT});
    } else if (type == "NFKD") {
        steps_.push_back(UnicodeForm{UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT});
    } else if (type == "Prepend") {
        steps_.push_back(Prepend{fields.text("prepend")});
    } else if (type == "Replace") {
        const JsonObject pattern = fields.child("pattern");
        check(pattern.find("String") && !pattern.text("String").empty(), ErrorKind::unsupported,
              "{}: normalizer Replace has the pattern {}; only a string is supported", file,
              shown(fields.at("pattern")));
        steps_.push_back(Replace{pattern.text("String"), fields.text("content")});
    } else {
        fail(ErrorKind::unsupported,
             "{}: normalizer {} is not supported; those that are: NFC, NFD, NFKC, NFKD, Prepend, Replace, "
             "Sequence",
             file, quote(type));
    }
}

std::string Normalizer::apply(std::string_view text) const {
    std::string out(text);
    const auto check_size = [&](size_t size) {
        check(size <= growth_limit * text.size() + growth_allowance, ErrorKind::failure,
              "{}: the normalizer makes more than {} times as much of a text of {} bytes; it is probably not "
              "meant for tokenizing",
              file_, growth_limit, text.size());
    };
    for (const auto& step : steps_) {
        if (const auto* form = std::get_if<UnicodeForm>(&step)) {
            out = unicode_form(out, form->options);
            check_size(out.size());
        } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
            if (out.empty()) continue;
            check_size(out.size() + prepend->text.size());
            out.insert(0, prepend->text);
        } else if (const auto* replace = std::get_if<Replace>(&step)) {
            std::string replaced;
            size_t from = 0;
            for (size_t at; (at = out.find(replace->from, from)) != out.npos;
                 from = at + replace->from.size()) {
                replaced.append(out, from, at - from);
                replaced += replace->to;
                check_size(replaced.size());
            }
            out = std::move(replaced.append(out, from, out.npos));
        }
    }
    return out;
}

}  // namespace halfbyte::model
