// The chat templates that are built in. A template is recognised from its text, never executed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte::model {

struct ChatMessage {
    std::string role, content;  // role: "system", "user" or "assistant"
};

// ChatML: "<|im_start|>ROLE\nCONTENT<|im_end|>\n" for each message.
struct ChatTemplate {
    std::string default_system;  // put first when the first message is not the system's; may be empty: none
    std::string end_token;       // "<|im_end|>"

    // Error (usage) for another role.
    std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt) const;
};

// Nothing if the text is not a template of a built-in family: the known templates differ from it in more than
// white space that does not matter, quotes, x['y'] against x.y, where strings are cut, and the default system
// message.
std::optional<ChatTemplate> recognise_chat_template(std::string_view text);

}  // namespace halfbyte::model
