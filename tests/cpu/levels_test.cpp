#include <cstdio>

#include "cpu/every_level.h"
#include "support/throws.h"

namespace halfbyte::test {

TEST(Levels, ScalarAlwaysRuns) {
    EXPECT_EQ(cpu::levels()[0], cpu::Level::scalar);
    EXPECT_EQ(cpu::unsupported_reason(cpu::Level::scalar), "");
}

TEST(Levels, BestLevelIsTheHighestSupported) {
    for (const cpu::Level level : cpu::levels()) {
        const std::string reason = cpu::unsupported_reason(level);
        if (reason.empty()) {
            EXPECT_GE(cpu::best_level(), level);
            EXPECT_EQ(cpu::kernels(level).level, level);
        } else {
            std::printf("level %s is not tested here: %s\n", std::string(cpu::name_of(level)).c_str(),
                        reason.c_str());
            EXPECT_LT(cpu::best_level(), level);
            EXPECT_TRUE(throws(ErrorKind::unsupported, reason, [&] { cpu::kernels(level); }));
        }
    }
}

TEST(Levels, NamesAreThoseOfTheCommandLine) {
    EXPECT_EQ(cpu::name_of(cpu::Level::scalar), "scalar");
    EXPECT_EQ(cpu::name_of(cpu::Level::avx2), "avx2");
    EXPECT_EQ(cpu::name_of(cpu::Level::avx512), "avx512");
}

}  // namespace halfbyte::test
