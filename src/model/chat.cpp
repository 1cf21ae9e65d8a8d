// How a template is recognised: both it and the known ones are read into a list of items, in which equal
// meaning has one spelling, and the lists are compared.
#include "model/chat.h"

#include <cctype>

#include "core/check.h"

namespace halfbyte::model {
namespace {

// Stands for the default system message in the known templates.
constexpr std::string_view any_system = "\x01";
constexpr std::string_view system_start = "<|im_start|>system\n", message_end = "<|im_end|>\n";

constexpr std::string_view known_templates[] = {
    // without a default system message
    R"({% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})",
    // SmolLM2, Qwen2
    R"({% for message in messages %}{% if loop.first and messages[0].role != 'system' %}{{ '<|im_start|>system\n)"
    "\x01"
    R"(<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})",
    // Qwen2.5, after without_tools()
    R"({% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%
    else %}{{ '<|im_start|>system\n)"
    "\x01"
    R"(<|im_end|>\n' }}{% endif %}{% for message in messages %}{%
    if (message.role == 'user') or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and
    not message.tool_calls) %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{%
    endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})",
};

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
        out += token.string ? fmt::format("'{}'", token.text) : token.text;
    }
    return out;
}

void add_literal(Items& items, std::string_view text) {
    if (text.empty()) return;
    if (items.empty() || items.back().kind != Item::literal) items.push_back({Item::literal, ""});
    items.back().text += text;
}

// {{ a + 'b' + c }}: an item for each operand. Anything else than such a sum stays whole and is equal to
// nothing known.
void add_output(Items& items, const std::vector<Token>& tokens) {
    bool sum = true;
    for (const Token& token : tokens) {
        const char c = token.text.empty() ? ' ' : token.text[0];
        sum &= token.string || std::isalnum(uint8_t(c)) ||
               std::string_view("_.[]+").find(c) != std::string_view::npos;
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

// What remains when there are no tools, no tool calls and no tool's messages; and without an optional
// `{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}` at the
// start.
Items without_tools(Items items) {
    const auto erase = [&](size_t begin, size_t end) {
        items.erase(items.begin() + begin, items.begin() + end);
    };
    if (items.size() > 3 && items[0] == Item{Item::statement, "if not add_generation_prompt is defined"} &&
        items[1] == Item{Item::statement, "set add_generation_prompt = false"} &&
        items[2] == Item{Item::statement, "endif"})
        erase(0, 3);
    for (size_t i = 0; i < items.size(); ++i) {
        if (items[i].kind != Item::statement) continue;
        if (items[i].text == "if tools") {
            const size_t otherwise = branch_end(items, i);
            const size_t end = otherwise < items.size() ? branch_end(items, otherwise) : otherwise;
            if (end == items.size() || items[otherwise].text != "else" || items[end].text != "endif")
                continue;
            erase(end, end + 1);
            erase(i, otherwise + 1);
        } else if (items[i].text == "elif message . role == 'assistant'" ||
                   items[i].text == "elif message . role == 'tool'") {
            erase(i, branch_end(items, i));
            --i;
        }
    }
    Items merged;  // the literals that have become neighbours
    for (const Item& item : items) {
        if (item.kind == Item::literal) {
            add_literal(merged, item.text);
        } else {
            merged.push_back(item);
        }
    }
    return merged;
}

}  // namespace

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const {
    std::string out;
    const auto add = [&](std::string_view role, std::string_view content) {
        ((((out += "<|im_start|>") += role) += '\n') += content) += message_end;
    };
    if (!default_system.empty() && !messages.empty() && messages[0].role != "system")
        add("system", default_system);
    for (const ChatMessage& message : messages) {
        check(message.role == "system" || message.role == "user" || message.role == "assistant",
              ErrorKind::usage, "chat: the role {} is not known; needed is system, user or assistant",
              message.role);
        add(message.role, message.content);
    }
    if (add_generation_prompt) out += "<|im_start|>assistant\n";
    return out;
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view text) {
    if (text.size() > 100'000) return std::nullopt;
    std::optional<Items> read = items_of(text);
    if (!read) return std::nullopt;
    const Items items = without_tools(std::move(*read));
    for (const std::string_view known : known_templates) {
        const Items wanted = items_of(known).value();
        if (items.size() != wanted.size()) continue;
        ChatTemplate result{"", "<|im_end|>"};
        bool equal = true;
        for (size_t i = 0; i < items.size(); ++i) {
            if (wanted[i].text.find(any_system) == std::string::npos) {
                equal &= items[i] == wanted[i];
                continue;
            }
            std::string_view system = items[i].text;
            equal &= items[i].kind == Item::literal && system.starts_with(system_start) &&
                     system.ends_with(message_end) &&
                     system.size() > system_start.size() + message_end.size();
            if (!equal) break;
            system.remove_prefix(system_start.size());
            system.remove_suffix(message_end.size());
            equal &= system.find("<|im_") == system.npos;
            result.default_system = system;
        }
        if (equal) return result;
    }
    return std::nullopt;
}

}  // namespace halfbyte::model
