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

struct ChatTemplate {
    enum class Family {
        chatml,  // "<|im_start|>ROLE\nCONTENT<|im_end|>\n" for each message
        llama3,  // BOS, then "<|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>" for each message
        llama31,  // the same with a system message always: the dates of the model's knowledge and of today go
                  // before it
    };
    std::string default_system;  // put first when the first message is not the system's; may be empty: none
    std::string end_token;       // "<|im_end|>"
    Family family = Family::chatml;
    bool trims = false;        // white space around the messages is dropped
    bool always_asks = false;  // every text ends where the assistant's answer begins
    // llama31: the day that the model is told. A template that asks the clock (Llama 3.2's) names another for
    // where there is none, which is taken, so that a conversation is the same text on every day.
    std::string date;

    // bos: the BOS token as text, which the template of the Llama families begins with. Error (usage) for
    // another role.
    std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                       std::string_view bos = {}) const;
};

// Nothing if the text is not a template of a built-in family: the known templates differ from it in more than
// white space that does not matter, quotes, x['y'] against x.y, where strings are cut, branches for tools,
// the default system message and the date.
std::optional<ChatTemplate> recognise_chat_template(std::string_view text);

}  // namespace halfbyte::model
