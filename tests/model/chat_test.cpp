#include "model/chat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "checkpoint/files.h"
#include "checkpoint/json.h"
#include "model/tokenizer.h"
#include "support/throws.h"

namespace halfbyte::model {
namespace {

const std::filesystem::path data = HALFBYTE_TEST_DATA;
const std::string smollm = test::read_file(data / "tokenizer/chat_template.jinja");
constexpr const char* smollm_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

const std::string plain =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Llama 3's, and the newer one's structure with short branches for tools.
const std::string llama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 "
    "== 0 "
    "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
const std::string llama3_asks = "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
const std::string llama3_may_ask = "{% if add_generation_prompt %}" + llama3_asks + "{% endif %}";
const std::string llama32 = R"({{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- The system's message #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "with tools\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- builtin_tools | reject('equalto', 'x') | join(", ") }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no message") }}
{%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if builtin_tools is defined and message.tool_calls[0].name in builtin_tools %}
            {{- "call" }}
        {%- else  %}
            {{- "other" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Chat, GoldenRenderingsAndIds) {
    const auto chat = recognise_chat_template(smollm);
    ASSERT_TRUE(chat);
    const auto tokenizer_file = data / "tokenizer/tokenizer.json";
    const Tokenizer tokenizer(test::read_file(tokenizer_file), tokenizer_file);
    const auto golden = checkpoint::read_json(data / "generation_golden.json");
    ASSERT_EQ(golden["chat"].size(), 2u);
    for (const auto& conversation : golden["chat"]) {
        std::vector<ChatMessage> messages;
        for (const auto& message : conversation["messages"])
            messages.push_back({message["role"], message["content"]});
        const std::string text = chat->render(messages, conversation["add_generation_prompt"]);
        EXPECT_EQ(text, conversation["text"].get<std::string>());
        EXPECT_EQ(tokenizer.encode(text, false), conversation["ids"].get<std::vector<int32_t>>());
    }
}

TEST(Chat, ReadsTheDefaultSystemMessageOutOfTheTemplate) {
    EXPECT_EQ(recognise_chat_template(smollm)->default_system, smollm_system);
    EXPECT_EQ(recognise_chat_template(smollm)->end_token, "<|im_end|>");
    EXPECT_EQ(
        recognise_chat_template(replaced(smollm, smollm_system, "Be\\nbrief, it\\'s late."))->default_system,
        "Be\nbrief, it's late.");
    EXPECT_EQ(recognise_chat_template(plain)->default_system, "");
}

TEST(Chat, RendersWithAndWithoutPromptAndSystem) {
    const ChatTemplate none{"", "<|im_end|>"}, some{"S", "<|im_end|>"};
    EXPECT_EQ(none.render({}, false), "");
    EXPECT_EQ(some.render({}, true),
              "<|im_start|>assistant\n");  // as the template: the default goes before a message
    EXPECT_EQ(none.render({{"user", "a\nb"}}, false), "<|im_start|>user\na\nb<|im_end|>\n");
    EXPECT_EQ(some.render({{"user", ""}}, true),
              "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(some.render({{"system", "T"}, {"user", "u"}}, false),
              "<|im_start|>system\nT<|im_end|>\n<|im_start|>user\nu<|im_end|>\n");
}

TEST(Chat, RefusesOtherRoles) {
    for (const char* role : {"tool", "ipython", "", "User"})
        for (const auto family :
             {ChatTemplate::Family::chatml, ChatTemplate::Family::llama3, ChatTemplate::Family::llama31})
            EXPECT_TRUE(test::throws(ErrorKind::usage, {"the role", "tools are not supported"}, [&] {
                ChatTemplate{.family = family}.render({{"user", "u"}, {role, "x"}}, true);
            })) << role;
}

TEST(Chat, WhiteSpaceControlQuotesAndSpellingDoNotMatter) {
    const char* spellings[] = {
        // on several lines: trim_blocks and lstrip_blocks take the line ends and the indents
        "{% for message in messages %}\n"
        "    {% if loop.first and messages[0].role != \"system\" %}\n"
        "        {{- \"<|im_start|>system\\nS<|im_end|>\\n\" -}}\n"
        "    {% endif %}\n"
        "    {#- a comment with %} in it -#}\n"
        "    {{- '<|im_start|>' + message.role }}{{ '\\n' + message[\"content\"] }}<|im_end|>\n"
        "{% endfor %}\n"
        "{%- if add_generation_prompt -%}\n  <|im_start|>assistant{{ '\\n' }}\n{%- endif -%}\n",
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
        "{%for message in messages%}{%if loop.first and messages[0]['role']!='system'%}"
        "{{'<|im_start|>system\nS<|im_end|>\n'}}{%endif%}{{'<|im_start|>'+message['role']+'\n'+message['"
        "content']+"
        "'<|im_end|>'+'\n'}}{%endfor%}{%if add_generation_prompt%}{{'<|im_start|>assistant\n'}}{%endif%}"};
    for (const char* spelling : spellings) {
        const auto chat = recognise_chat_template(spelling);
        ASSERT_TRUE(chat) << spelling;
        EXPECT_EQ(chat->default_system, "S");
    }
}

TEST(Chat, QwensBranchesForToolsAreLeftOut) {
    const std::string qwen = R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helper.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\n{\"name\": <name>}\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";
    const auto chat = recognise_chat_template(qwen);
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->default_system, "You are a helper.");
    EXPECT_FALSE(recognise_chat_template(replaced(qwen, "and not loop.first", "")));
    EXPECT_FALSE(
        recognise_chat_template(replaced(qwen, "elif message.role == \"tool\"", "elif message.role")));
    EXPECT_FALSE(recognise_chat_template(replaced(qwen, "if tools", "if not tools")));
}

TEST(Chat, WhatIsNotExactlyChatMlIsNotRecognised) {
    const std::string others[] = {
        "",
        "{{ bos_token }}" + plain,
        plain + " ",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        replaced(plain, "message['content']", "message['content'] | trim"),
        replaced(plain, "message['content']", "message['content'].strip()"),
        replaced(plain, "message['role']", "'user'"),
        replaced(plain, "'<|im_start|>' +", "'<|im_start|> ' +"),
        replaced(plain, "<|im_end|>", "<|end|>"),
        replaced(plain, "{% endfor %}", "\n\n{% endfor %}"),
        replaced(plain, "for message in messages", "for message in messages[1:]"),
        replaced(plain, "assistant\\n", "assistant\\n<think>\\n"),
        replaced(plain, "assistant\\n", "assistant\\x0a"),
        replaced(plain, "{% if add_generation_prompt %}", "{% if true %}"),
        replaced(plain, "{% endif %}", "{% endif"),
        replaced(plain, "{% endif %}", "{{ 'open }}"),
        replaced(smollm, "!= 'system'", "== 'system'"),
        replaced(smollm, smollm_system, ""),
        replaced(smollm, smollm_system, "a<|im_end|>b"),
        replaced(smollm, "loop.first", "loop.last"),
    };
    ASSERT_TRUE(recognise_chat_template(plain));
    for (const std::string& text : others) EXPECT_FALSE(recognise_chat_template(text)) << text;
}

TEST(Chat, Llama3) {
    const auto chat = recognise_chat_template(llama3 + llama3_may_ask);
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->end_token, "<|eot_id|>");
    EXPECT_EQ(chat->render({{"system", " S\n"}, {"user", "\u3000a b\u00a0\x1c"}, {"assistant", "\u200bc"}},
                           true, "<BOS>"),
              "<BOS><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\na b<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n\u200bc<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n");
    EXPECT_EQ(chat->render({{"user", " \n "}}, false),
              "<|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>");
    EXPECT_EQ(chat->render({}, false, "<BOS>"), "");  // the first message brings it

    const auto first_version = recognise_chat_template(llama3 + llama3_asks);
    ASSERT_TRUE(first_version);
    EXPECT_EQ(first_version->render({{"user", "u"}}, false), chat->render({{"user", "u"}}, true));
    const auto untrimmed = recognise_chat_template(replaced(llama3, " | trim", "") + llama3_may_ask);
    ASSERT_TRUE(untrimmed);
    EXPECT_EQ(untrimmed->render({{"user", " u "}}, false),
              "<|start_header_id|>user<|end_header_id|>\n\n u <|eot_id|>");
    EXPECT_TRUE(
        recognise_chat_template("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = "
                                "false %}{% endif %}" +
                                llama3 + llama3_may_ask));
}

TEST(Chat, Llama31TellsTheDatesInTheSystemsMessage) {
    const auto chat = recognise_chat_template(llama32);
    ASSERT_TRUE(chat);
    EXPECT_EQ(chat->date, "26 Jul 2024");  // not the clock's
    EXPECT_EQ(chat->end_token, "<|eot_id|>");
    const std::string start =
        "<BOS><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday "
        "Date: 26 Jul 2024\n\n";
    EXPECT_EQ(chat->render({{"user", " Hi\n"}}, true, "<BOS>"),
              start +
                  "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
    EXPECT_EQ(chat->render({{"system", "\tBe brief. "}, {"user", "a"}, {"system", "s"}, {"assistant", "b"}},
                           false, "<BOS>"),
              start +
                  "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
                  "<|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>");
    ChatTemplate today = *chat;
    today.date = "01 Jan 2030";
    EXPECT_EQ(today.render({{"user", "a"}}, true),
              replaced(chat->render({{"user", "a"}}, true), "26 Jul 2024", "01 Jan 2030"));

    // Llama 3.1's asks no clock.
    const size_t clock = llama32.find("    {%- if strftime_now"),
                 otherwise = llama32.find("        {%- set date_string = \"26");
    std::string llama31 = llama32.substr(0, clock) + llama32.substr(otherwise);
    llama31 = replaced(llama31, "    {%- endif %}\n{%- endif %}\n{%- if not tools is",
                       "{%- endif %}\n{%- if not tools is");
    ASSERT_TRUE(recognise_chat_template(llama31));
    EXPECT_EQ(recognise_chat_template(llama31)->render({{"user", "a"}}, true),
              chat->render({{"user", "a"}}, true));

    // Derived templates: another date, a system's message of their own, nothing trimmed.
    std::string derived = replaced(replaced(llama31, "26 Jul 2024", "July '24"), "set system_message = \"\"",
                                   "set system_message = \"It\\'s me.\"");
    derived = replaced(replaced(derived, "|trim", ""), " | trim", "");
    const auto other = recognise_chat_template(derived);
    ASSERT_TRUE(other);
    EXPECT_EQ(other->date, "July '24");
    EXPECT_EQ(other->default_system, "It's me.");
    EXPECT_EQ(other->render({{"user", " a "}}, false),
              "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday "
              "Date: July '24\n\nIt's me.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\n a <|eot_id|>");
}

TEST(Chat, WhatIsNotExactlyALlamaTemplateIsNotRecognised) {
    const std::string whole = llama3 + llama3_may_ask;
    const std::string others[] = {
        llama3,
        replaced(whole, "index0 == 0", "index0 == 1"),
        replaced(whole, "bos_token + content", "content + bos_token"),
        replaced(whole, "| trim", "| upper"),
        replaced(whole, "<|eot_id|>", "<|end|>"),
        replaced(whole, "set loop_messages = messages", "set loop_messages = messages[1:]"),
        "{{ bos_token }}" + whole,
        replaced(llama32, "December 2023", "June 2024"),
        replaced(llama32, "set system_message = \"\"", "set system_message = other"),
        replaced(llama32, "set system_message = \"\"", "set system_message = 'a' + 'b'"),
        replaced(llama32, "set system_message = \"\"", "set system_message = '<|eot_id|>'"),
        replaced(llama32, "set date_string = \"26 Jul 2024\"", "set date_string = \"\x04\""),
        replaced(llama32, "set messages = messages[1:]", "set messages = messages"),
        replaced(llama32, "'tool_calls' in message)", "'tool_calls' not in message)"),
        replaced(llama32, "{%- if builtin_tools is defined %}", "{%- if builtin_tools is none %}"),
        replaced(llama32, "{%- if not tools is defined %}",
                 "{%- set tools = [1] %}{%- if not tools is defined %}"),
        replaced(llama32, "set tools_in_user_message = true", "set tools_in_user_message = false"),
        replaced(llama32, "strftime_now is defined", "strftime_now is not defined"),
        replaced(llama32, " | trim +", " +"),  // one of the two trims
        replaced(llama32, "{{- system_message }}", "{{- system_message | upper }}"),
    };
    ASSERT_TRUE(recognise_chat_template(whole));
    ASSERT_TRUE(recognise_chat_template(llama32));
    for (const std::string& text : others) EXPECT_FALSE(recognise_chat_template(text)) << text;
    for (size_t size = 0; size < llama32.find_last_of('}'); ++size)
        EXPECT_FALSE(recognise_chat_template(llama32.substr(0, size))) << size;
}

TEST(Chat, ThousandsOfTagsAreNotRecognised) {
    std::string text;
    while (text.size() < 99'000) text += "{%if tools%}";
    EXPECT_FALSE(recognise_chat_template(text));
}

TEST(Chat, EveryStartOfATemplateIsReadWithoutHarm) {
    for (size_t size = 0; size < smollm.find_last_of('}'); ++size)
        EXPECT_FALSE(recognise_chat_template(smollm.substr(0, size))) << size;
    for (const char* text : {"{",
                             "{{",
                             "{%",
                             "{#",
                             "{{-",
                             "{%-%}",
                             "{%--%}",
                             "{{}}",
                             "{{+}}",
                             "{{'\\",
                             "{% elif x %}",
                             "{% if tools %}",
                             "{% if tools %}{% else %}",
                             "{% if not tools is defined %}{% elif x %}",
                             "{% endif %}",
                             "{% if %}",
                             "{% elif %}",
                             "{% if tools %}{% elif %}{% endif %}",
                             "{{x['']}}",
                             "{{['a']}}",
                             "{{''['a']}}"})
        EXPECT_FALSE(recognise_chat_template(text)) << text;
}

}  // namespace
}  // namespace halfbyte::model
