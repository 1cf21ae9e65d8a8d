// How a template is recognised: both it and the known ones are read into a list of items, in which equal
// meaning has one spelling, and the lists are compared.
#include "model/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>

#include "core/check.h"
#include "model/utf8.h"

namespace halfbyte::model {
namespace {

// In the known templates: what may be any text.
constexpr std::string_view any_system = "\x01", any_date = "\x02";
// Around strings in the text of an Item, so that no quotes inside them matter. A template that holds one of
// these four is not recognised.
constexpr char open_string = '\x03', close_string = '\x04';

constexpr std::string_view im_start = "<|im_start|>", im_end = "<|im_end|>";
constexpr std::string_view start_header = "<|start_header_id|>", end_header = "<|end_header_id|>\n\n",
                           end_of_turn = "<|eot_id|>";

using Family = ChatTemplate::Family;

struct Known {
    Family family;
    bool always_asks;
    std::string_view text;  // after specialised(); ` | trim` may be missing everywhere
};

constexpr Known known_templates[] = {
    // without a default system message
    {Family::chatml, false,
     R"({% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    // SmolLM2, Qwen2
    {Family::chatml, false,
     R"({% for message in messages %}{% if loop.first and messages[0].role != 'system' %}{{ '<|im_start|>system\n)"
     "\x01"
     R"(<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    // Qwen2.5
    {Family::chatml, false,
     R"({% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%
    else %}{{ '<|im_start|>system\n)"
     "\x01"
     R"(<|im_end|>\n' }}{% endif %}{% for message in messages %}{%
    if (message.role == 'user') or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and
    not message.tool_calls) %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
    // Llama 3
    {Family::llama3, false,
     R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' +
    message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{%
    set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{%
    if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
    // its first version
    {Family::llama3, true,
     R"({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' +
    message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{%
    set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{{
    '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"},
    // Llama 3.1, 3.2 and 3.3
    {Family::llama31, false,
     R"({{ bos_token }}{% if not date_string is defined %}{% set date_string = ')"
     "\x02"
     R"(' %}{% endif %}{% if messages[0].role == 'system' %}{% set system_message = messages[0].content | trim %}{%
    set messages = messages[1:] %}{% else %}{% set system_message = ')"
     "\x01"
     R"(' %}{% endif %}{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' +
    date_string + '\n\n' + system_message + '<|eot_id|>' }}{% for message in messages %}{{ '<|start_header_id|>' +
    message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}{%
    if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"},
};

// What is true of a conversation without tools that a template is given by itself, with
// add_generation_prompt.
struct Fact {
    std::string_view condition;
    bool value;
};
constexpr Fact facts[] = {
    {"not add_generation_prompt is defined", false},
    {"tools", false},
    {"tools is not none", false},
    {"custom_tools is defined", false},
    {"builtin_tools is defined", false},
    {"builtin_tools is defined or tools is not none", false},
    {"tools is not none and not tools_in_user_message", false},
    {"tools_in_user_message and not tools is none", false},
    {"not tools is defined", true},
    {"not tools_in_user_message is defined", true},
    {"message.role == 'tool'", false},
    {"message.role == 'tool' or message.role == 'ipython'", false},
    {"'tool_calls' in message", false},
    {"not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message)", true},
    // The clock: the date would change from day to day.
    {"strftime_now is defined", false},
};
// Statements without an effect then.
constexpr std::string_view idle[] = {"set tools = none", "set tools_in_user_message = true"};

struct Item {
    enum Kind { statement, literal, expression } kind;
    std::string text;  // of a literal what is printed, else the tokens with a space between them
    bool operator==(const Item&) const = default;
};
using Items = std::vector<Item>;

struct Token {
    bool string;
    std::string text;
};

// The tokens of a statement or expression, x['y'] as x.y; nothing for a string that does not end or has an
// escape other than \n, \\ and quotes.
std::optional<std::vector<Token>> tokens_of(std::string_view code) {
    std::vector<Token> tokens;
    const auto word = [](char c) { return std::isalnum(uint8_t(c)) || c == '_'; };
    for (size_t at = 0; at < code.size();) {
        const char c = code[at];
        if (std::isspace(uint8_t(c))) {
            ++at;
        } else if (word(c)) {
            const size_t start = at;
            while (at < code.size() && word(code[at])) ++at;
            tokens.push_back({false, std::string(code.substr(start, at - start))});
        } else if (c == '\'' || c == '"') {
            std::string value;
            for (++at; at < code.size() && code[at] != c; ++at) {
                if (code[at] != '\\') {
                    value += code[at];
                    continue;
                }
                if (++at == code.size()) return std::nullopt;
                if (code[at] == 'n') {
                    value += '\n';
                } else if (code[at] == '\\' || code[at] == '\'' || code[at] == '"') {
                    value += code[at];
                } else {
                    return std::nullopt;
                }
            }
            if (at++ == code.size()) return std::nullopt;
            tokens.push_back({true, std::move(value)});
        } else {
            const std::string_view two = code.substr(at, 2);
            const size_t length =
                two == "==" || two == "!=" || two == "<=" || two == ">=" || two == "//" ? 2 : 1;
            tokens.push_back({false, std::string(code.substr(at, length))});
            at += length;
        }
        const size_t n = tokens.size();
        const auto is = [&](size_t i, std::string_view text) {
            return !tokens[i].string && tokens[i].text == text;
        };
        if (n >= 4 && is(n - 1, "]") && tokens[n - 2].string && is(n - 3, "[") && !tokens[n - 4].string &&
            (word(tokens[n - 4].text.back()) || is(n - 4, "]"))) {
            tokens[n - 3].text = ".";
            tokens[n - 2].string = false;
            tokens.pop_back();
        }
    }
    return tokens;
}

std::string join(const std::vector<Token>& tokens) {
    std::string out;
    for (const Token& token : tokens) {
        if (!out.empty()) out += ' ';
        out += token.string ? open_string + token.text + close_string : token.text;
    }
    return out;
}

void add_literal(Items& items, std::string_view text) {
    if (text.empty()) return;
    if (items.empty() || items.back().kind != Item::literal) items.push_back({Item::literal, ""});
    items.back().text += text;
}

// {{ a + 'b' + c | trim }}: an item for each operand; a filter binds closer. Anything else than such a sum
// stays whole and is equal to nothing known.
void add_output(Items& items, const std::vector<Token>& tokens) {
    bool sum = true;
    for (const Token& token : tokens) {
        const char c = token.text.empty() ? ' ' : token.text[0];
        sum &= token.string || std::isalnum(uint8_t(c)) ||
               std::string_view("_.[]+|").find(c) != std::string_view::npos;
    }
    if (!sum) return items.push_back({Item::expression, join(tokens)});
    std::vector<Token> operand;
    const auto finish = [&] {
        if (operand.size() == 1 && operand[0].string) {
            add_literal(items, operand[0].text);
        } else {
            items.push_back({Item::expression, join(operand)});
        }
        operand.clear();
    };
    for (const Token& token : tokens) {
        if (!token.string && token.text == "+") {
            finish();
        } else {
            operand.push_back(token);
        }
    }
    finish();
}

// Reads a template as Hugging Face has it run: trim_blocks, lstrip_blocks, one line end at the very end
// dropped.
std::optional<Items> items_of(std::string_view text) {
    if (text.ends_with('\n')) text.remove_suffix(1);
    constexpr size_t items_limit = 1000;  // specialised() takes time quadratic in them
    Items items;
    enum { nothing, one_line_end, all } trim = nothing;  // what the tag before takes of the text behind it
    bool line_start = true;                              // whether `text`, trimmed, starts a line
    while (true) {
        size_t open = 0;
        do {
            open = text.find('{', open);
        } while (open != text.npos && open + 1 < text.size() &&
                 std::string_view("{%#").find(text[open + 1]) == std::string_view::npos && ++open);
        if (open != text.npos && open + 1 >= text.size()) open = text.npos;
        std::string_view raw = text.substr(0, open);
        const char kind = open == text.npos ? ' ' : text[open + 1];
        const bool strip_before = open != text.npos && text.substr(open + 2).starts_with('-');
        if (trim == all) {
            while (!raw.empty() && std::isspace(uint8_t(raw.front()))) raw.remove_prefix(1);
        } else if (trim == one_line_end && raw.starts_with('\n')) {
            raw.remove_prefix(1);
            line_start = true;
        }
        if (strip_before) {
            while (!raw.empty() && std::isspace(uint8_t(raw.back()))) raw.remove_suffix(1);
        } else if (kind == '%' || kind == '#') {
            // Blanks between the start of a line and the tag; a tag before them on that line keeps them.
            size_t end = raw.size();
            while (end > 0 && (raw[end - 1] == ' ' || raw[end - 1] == '\t')) --end;
            const bool only_blanks = end > 0 ? raw[end - 1] == '\n' : line_start;
            if (only_blanks) raw = raw.substr(0, end);
        }
        add_literal(items, raw);
        if (items.size() > items_limit) return std::nullopt;
        if (open == text.npos) return items;

        // The end of the tag, which is not in a string.
        const std::string close = std::string(1, kind == '{' ? '}' : kind) + "}";
        size_t end = open + 2;
        for (char quote = 0; end < text.size() && (quote || !text.substr(end).starts_with(close)); ++end) {
            if (kind == '#') continue;
            if (quote && text[end] == '\\') {
                ++end;
            } else if (quote ? text[end] == quote : text[end] == '\'' || text[end] == '"') {
                quote = quote ? 0 : text[end];
            }
        }
        if (end >= text.size()) return std::nullopt;
        std::string_view code = text.substr(open + 2, end - open - 2);
        if (code.starts_with('+') || code.ends_with('+')) return std::nullopt;
        if (code.starts_with('-')) code.remove_prefix(1);
        const bool strip_behind = code.ends_with('-');
        if (strip_behind) code.remove_suffix(1);
        trim = strip_behind ? all : kind == '{' ? nothing : one_line_end;
        text.remove_prefix(end + 2);
        line_start = false;
        if (kind == '#') continue;
        const auto tokens = tokens_of(code);
        if (!tokens) return std::nullopt;
        if (kind == '%') {
            items.push_back({Item::statement, join(*tokens)});
        } else {
            add_output(items, *tokens);
        }
    }
}

bool is_statement(const Item& item, std::string_view keyword) {
    return item.kind == Item::statement && item.text.starts_with(keyword) &&
           (item.text.size() == keyword.size() || item.text[keyword.size()] == ' ');
}

// The first elif, else or endif that belongs to the branch which starts behind `at`.
size_t branch_end(const Items& items, size_t at) {
    int depth = 0;
    for (size_t i = at + 1; i < items.size(); ++i) {
        const Item& item = items[i];
        if (depth == 0 &&
            (is_statement(item, "elif") || is_statement(item, "else") || is_statement(item, "endif")))
            return i;
        if (is_statement(item, "if") || is_statement(item, "for")) ++depth;
        if (is_statement(item, "endif") || is_statement(item, "endfor")) --depth;
    }
    return items.size();
}

// A condition or statement written as in a template, spelled as in an Item.
std::string spelled(std::string_view code) {
    return join(tokens_of(code).value());
}

std::optional<bool> value_of(const std::string& condition) {
    static const auto known = [] {
        std::map<std::string, bool> values;
        for (const Fact& fact : facts) values.emplace(spelled(fact.condition), fact.value);
        return values;
    }();
    const auto found = known.find(condition);
    return found == known.end() ? std::nullopt : std::optional(found->second);
}

// What remains of a template by the facts.
Items specialised(Items items) {
    const auto erase = [&](size_t begin, size_t end) {
        items.erase(items.begin() + begin, items.begin() + std::min(end, items.size()));
    };
    static const std::string assistant = spelled("message.role == 'assistant'"),
                             calls = spelled("and not message.tool_calls");
    std::vector<bool> answers_taken;  // for each open `if`: its first branch takes all answers without calls
    for (size_t i = 0; i < items.size();) {
        const bool first = is_statement(items[i], "if"), other = is_statement(items[i], "elif");
        if (is_statement(items[i], "endif") && !answers_taken.empty()) answers_taken.pop_back();
        if (!first && !other) {
            ++i;
            continue;
        }
        const std::string& statement = items[i].text;  // a hostile one ends behind its keyword
        const std::string condition = statement.substr(std::min<size_t>(first ? 3 : 5, statement.size()));
        auto value = value_of(condition);
        if (other && condition == assistant && !answers_taken.empty() && answers_taken.back()) value = false;
        const size_t end = branch_end(items, i);
        if (!value || end == items.size() || (other && *value)) {
            if (first) answers_taken.push_back(condition.find(calls) != condition.npos);
            ++i;
        } else if (other) {
            erase(i, end);
        } else if (*value) {  // only this branch stays
            size_t last = end;
            while (last < items.size() && !is_statement(items[last], "endif")) last = branch_end(items, last);
            erase(end, last + 1);
            erase(i, i + 1);
        } else if (is_statement(items[end], "elif")) {  // the next branch becomes the first
            items[end].text.erase(0, 2);
            erase(i, end);
        } else {  // the branch of the `else`, if there is one
            if (is_statement(items[end], "else")) {
                const size_t last = branch_end(items, end);
                erase(last, last + 1);
            }
            erase(i, end + 1);
        }
    }
    Items merged;  // the literals that have become neighbours
    for (const Item& item : items) {
        const auto equal = [&](std::string_view statement) { return item.text == spelled(statement); };
        if (item.kind == Item::literal) {
            add_literal(merged, item.text);
        } else if (item.kind != Item::statement || std::none_of(std::begin(idle), std::end(idle), equal)) {
            merged.push_back(item);
        }
    }
    return merged;
}

// Whether an item is that of a known template; what stands for its wildcard goes to `result`.
bool matches(const Item& item, const Item& wanted, ChatTemplate& result) {
    for (const auto& [wildcard, text] :
         {std::pair(any_system, &result.default_system), {any_date, &result.date}}) {
        const size_t at = wanted.text.find(wildcard);
        if (at == std::string::npos) continue;
        const std::string_view whole = item.text, before = std::string_view(wanted.text).substr(0, at),
                               after = std::string_view(wanted.text).substr(at + 1);
        if (item.kind != wanted.kind || whole.size() < before.size() + after.size() ||
            !whole.starts_with(before) || !whole.ends_with(after))
            return false;
        *text = whole.substr(before.size(), whole.size() - before.size() - after.size());
        // ChatML's default is empty where a template has none.
        return text->find("<|") == text->npos && text->find(close_string) == text->npos &&
               (!text->empty() || item.kind == Item::statement);
    }
    return item == wanted;
}

// As Python's strip().
std::string_view trimmed(std::string_view text) {
    const auto is_space = [](const Utf8Char& c) {
        return is_white_space(c.code) || (c.code >= 0x1C && c.code <= 0x1F);
    };
    while (!text.empty() && is_space(utf8_at(text, 0))) text.remove_prefix(utf8_at(text, 0).length);
    while (!text.empty() && is_space(last_utf8(text))) text.remove_suffix(last_utf8(text).length);
    return text;
}

}  // namespace

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                 std::string_view bos) const {
    const auto content_of = [&](const ChatMessage& message) {
        return trims ? trimmed(message.content) : std::string_view(message.content);
    };
    std::string out;
    const auto header = [&](std::string_view role) {
        if (family == Family::chatml)
            ((out += im_start) += role) += '\n';
        else
            ((out += start_header) += role) += end_header;
    };
    const auto add = [&](std::string_view role, std::string_view content) {
        header(role);
        out += content;
        out += end_token;
        if (family == Family::chatml) out += '\n';
    };
    for (const ChatMessage& message : messages) {
        check(message.role == "system" || message.role == "user" || message.role == "assistant",
              ErrorKind::usage,
              "chat: the role {} is not known; system, user and assistant are, tools are not supported",
              message.role);
    }
    const bool has_system = !messages.empty() && messages[0].role == "system";
    size_t next = 0;
    if (family == Family::llama31) {
        out = bos;
        const std::string_view system =
            has_system ? content_of(messages[0]) : std::string_view(default_system);
        add("system",
            fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n{}", date, system));
        next = has_system;
    } else if (family == Family::llama3 && !messages.empty()) {
        out = bos;
    } else if (!default_system.empty() && !messages.empty() && !has_system) {
        add("system", default_system);
    }
    for (; next < messages.size(); ++next) add(messages[next].role, content_of(messages[next]));
    if (add_generation_prompt || always_asks) header("assistant");
    return out;
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view text) {
    if (text.size() > 100'000 || text.find_first_of("\x01\x02\x03\x04") != text.npos) return std::nullopt;
    std::optional<Items> read = items_of(text);
    if (!read) return std::nullopt;
    const Items items = specialised(std::move(*read));
    constexpr std::string_view filter = " | trim";
    for (const Known& known : known_templates) {
        std::string form(known.text);
        const bool may_trim = form.find(filter) != form.npos;
        for (const bool trims : {true, false}) {
            if (trims && !may_trim) continue;
            for (size_t at; !trims && (at = form.find(filter)) != form.npos;) form.erase(at, filter.size());
            const Items wanted = items_of(form).value();
            ChatTemplate result{
                .end_token = std::string(known.family == Family::chatml ? im_end : end_of_turn),
                .family = known.family,
                .trims = trims,
                .always_asks = known.always_asks};
            bool equal = items.size() == wanted.size();
            for (size_t i = 0; i < items.size() && equal; ++i) equal = matches(items[i], wanted[i], result);
            if (equal) return result;
        }
    }
    return std::nullopt;
}

}  // namespace halfbyte::model
