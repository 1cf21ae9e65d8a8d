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
    for (const char* role : {"tool", "", "User"})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "role", [&] {
            ChatTemplate{}.render({{role, "x"}}, true);
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

TEST(Chat, EveryStartOfATemplateIsReadWithoutHarm) {
    for (size_t size = 0; size < smollm.find_last_of('}'); ++size)
        EXPECT_FALSE(recognise_chat_template(smollm.substr(0, size))) << size;
    for (const char* text :
         {"{", "{{", "{%", "{#", "{{-", "{%-%}", "{%--%}", "{{}}", "{{+}}", "{{'\\", "{% elif x %}",
          "{% if tools %}", "{% if tools %}{% else %}", "{{x['']}}", "{{['a']}}", "{{''['a']}}"})
        EXPECT_FALSE(recognise_chat_template(text)) << text;
}

}  // namespace
}  // namespace halfbyte::model
