#include "format/fp8_channel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.h"

namespace halfbyte {

// |v| <= amax: BF16 moves s by at most 2^-8 of it, so v / s stays below 448 + 2 and saturates without a loss
// beyond half a step (16); else half a step of 2^-3 relative, or half a subnormal step.
TEST(Fp8Channel, KeepsEveryValueOfARowWithinHalfAStep) {
    test::Random random(1);
    for (const float magnitude : {1.0f, 3e-30f, 0x1p-116f, 1e-3f, 300.0f, 3e38f}) {
        std::vector<float> row(200);
        float amax = 0;
        for (float& value : row) {
            value = magnitude * random.uniform(-1, 1);
            amax = std::max(amax, std::fabs(value));
        }
        const float scale = fp8_channel_scale(amax);
        EXPECT_EQ(scale, to_float(round_to<BFloat16>(scale)));
        EXPECT_NEAR(amax / scale, 448, 448 * 0x1p-8);
        for (const float value : row) {
            const double decoded = double(decode_e4m3(encode_fp8(value, scale))) * double(scale);
            const double step = std::max(std::fabs(double(value)) * 0x1p-4, double(scale) * 0x1p-10);
            EXPECT_LE(std::fabs(decoded - double(value)), step * (1 + 0x1p-20)) << value << " by " << scale;
        }
    }
}

TEST(Fp8Channel, HasAScaleForEveryAmax) {
    EXPECT_EQ(fp8_channel_scale(0), 1.0f);
    EXPECT_EQ(fp8_channel_scale(448), 1.0f);
    EXPECT_EQ(fp8_channel_scale(449), 1.0f);  // 449/448 is nearer to 1 than to the next BF16
    EXPECT_EQ(fp8_channel_scale(896 + 7), 2 + 0x1p-6f);
    EXPECT_EQ(fp8_channel_scale(std::numeric_limits<float>::denorm_min()), 0x1p-126f);
    EXPECT_EQ(fp8_channel_scale(0x1p-118f), 0x1p-126f);
    EXPECT_GT(fp8_channel_scale(0x1p-116f), 0x1p-126f);
    EXPECT_TRUE(std::isfinite(fp8_channel_scale(std::numeric_limits<float>::max())));
    EXPECT_EQ(encode_fp8(449, 1.0f), e4m3_max);
    EXPECT_EQ(encode_fp8(-0.0f, 1.0f), 0x80);
}

}  // namespace halfbyte
