#include "checkpoint/module_pattern.h"

#include "checkpoint/files.h"

namespace halfbyte::checkpoint {
using Match = ModulePattern::Match;
using test::expect_error;

static Match match(const std::string& pattern, std::string_view module) {
    return ModulePattern(pattern, "config.json").match(module, class_of_module(module));
}

TEST(ModulePattern, MatchesAsPythonsReMatchDoes) {
    const std::string q = "model.layers.10.self_attn.q_proj";
    EXPECT_EQ(match(q, q), Match::name);
    EXPECT_EQ(match("model.layers.10", q), Match::none);
    EXPECT_EQ(match("model.layers.10.self_attn.q_projx", q), Match::none);
    EXPECT_EQ(match("Linear", q), Match::class_name);
    EXPECT_EQ(match("Linear", "model.embed_tokens"), Match::none);
    EXPECT_EQ(match("Embedding", "model.embed_tokens"), Match::class_name);
    EXPECT_EQ(match("re:.*self_attn\\.(q|k|v|o)_proj$", q), Match::expression);
    EXPECT_EQ(match("re:model\\.layers\\.1", q), Match::expression);  // the start is enough
    EXPECT_EQ(match("re:self_attn", q), Match::none);                 // but it must be the start
    EXPECT_EQ(match("re:layers|model", q), Match::expression);
    EXPECT_EQ(match("re:model\\.layers\\.1\\.", q), Match::none);
    EXPECT_EQ(match("re:", q), Match::expression);
    EXPECT_EQ(match("re:Linear", q), Match::none);
    EXPECT_EQ(match("re:(?i)MODEL", q), Match::expression);
}

TEST(ModulePattern, RefusesWhatCannotBeMatched) {
    expect_error(ErrorKind::malformed,
                 "config.json: the pattern \"re:(\" is no regular expression: missing closing parenthesis",
                 [] { ModulePattern("re:(", "config.json"); });
    expect_error(ErrorKind::usage, "--ignore", [] { ModulePattern("re:[", "--ignore", ErrorKind::usage); });
    expect_error(ErrorKind::malformed, "10001 bytes",
                 [] { ModulePattern("re:" + std::string(10001, 'a'), "config.json"); });
    expect_error(ErrorKind::malformed, "no regular expression",
                 [] { ModulePattern("re:" + std::string(5000, '('), "c"); });
    const ModulePattern slow("re:(a+)+$", "config.json");
    expect_error(ErrorKind::malformed, "cannot be matched with",
                 [&] { slow.match(std::string(60, 'a') + "b", "Linear"); });
}

}  // namespace halfbyte::checkpoint
