// The map of the packed weight: one place for every bit, and the few operations that turn its words into the
// operands of a matrix unit.
#include "format/gpu_weight.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "core/float16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "support/random.h"

namespace halfbyte {
namespace {

float bf16(uint32_t half) {
    return to_float(BFloat16{uint16_t(half)});
}

TEST(GpuWeight, EveryBitOfAGroupHasAPlaceOfItsOwn) {
    std::set<int> bits;
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < 64; k++)
            for (int bit = 0; bit < 4; bit++) {
                const int at = gpu_word_byte(row, k) * 8 + gpu_code_bit(row, k, bit);
                EXPECT_LT(gpu_code_bit(row, k, bit), 32);
                EXPECT_TRUE(bits.insert(at).second) << row << " " << k << " " << bit;
            }
        for (int block = 0; block < 4; block++)
            for (int bit = 0; bit < 8; bit++)
                EXPECT_TRUE(bits.insert(gpu_scale_byte(row, block) * 8 + bit).second) << row << " " << block;
    }
    EXPECT_EQ(bits.size(), size_t(gpu_group_bytes * 8));
    EXPECT_EQ(*bits.begin(), 0);
    EXPECT_EQ(*bits.rbegin(), gpu_group_bytes * 8 - 1);
}

TEST(GpuWeight, SizesRoundUpToStripsGroupsAnd16Bytes) {
    EXPECT_EQ(gpu_weight_bytes(0, 64), 0);
    EXPECT_EQ(gpu_weight_bytes(1, 1), 576 + 16);
    EXPECT_EQ(gpu_weight_bytes(16, 64), 576 + 16);
    EXPECT_EQ(gpu_weight_bytes(17, 65), 4 * 576 + 16);
    EXPECT_EQ(gpu_weight_bytes(17 * 16, 0), 32);
}

uint32_t rotated_left(uint32_t word, int count) {
    return std::rotl(word, count);
}

// The four registers of A of mma.sync.m16n8k16 for a lane, BF16 values times 2^-126, low half first in k.
struct Operand {
    uint32_t a[4];

    explicit Operand(uint32_t w)
        : a{w & 0x81C081C0, (w << 4) & 0x81C081C0, rotated_left(w, 10) & 0x81C081C0,
            ((w << 6) & 0x80C080C0) | ((w >> 2) & 0x01000100)} {}
};

TEST(GpuWeight, EveryCodeBecomesItsValueWhateverItsNeighboursAre) {
    test::Random random(1);
    for (int lane = 0; lane < 32; lane++)
        for (int block = 0; block < 4; block++)
            for (int i = 0; i < 200; i++) {
                uint8_t codes[16][64];
                for (auto& row : codes)
                    for (uint8_t& code : row) code = uint8_t(random.below(16));
                uint32_t word = 0;
                for (int row = 0; row < 16; row++)
                    for (int k = 0; k < 64; k++)
                        if (gpu_word_byte(row, k) == lane * 16 + block * 4)
                            for (int bit = 0; bit < 4; bit++)
                                word |= uint32_t(codes[row][k] >> bit & 1) << gpu_code_bit(row, k, bit);
                const Operand operand(word);
                const int g = lane / 4, q = lane % 4;
                for (int r = 0; r < 4; r++)
                    for (int h = 0; h < 2; h++) {
                        const uint8_t code = codes[g + r % 2 * 8][block * 16 + q * 2 + r / 2 * 8 + h];
                        const float value = bf16(operand.a[r] >> 16 * h) * 0x1p126f;
                        ASSERT_EQ(value, decode_e2m1(code)) << lane << " " << r << " " << h;
                        ASSERT_EQ(std::signbit(value), code >= 8);
                    }
            }
}

// docs/formats.md: the table of places, and the word of the codes 1 and 2.
TEST(GpuWeight, ThePlacesOfTheDocument) {
    const auto places = [](int row, int k) {
        std::vector<int> bits;
        for (const int bit : {3, 2, 1, 0}) bits.push_back(gpu_code_bit(row, k, bit));
        return bits;
    };
    const std::vector<int> table[4] = {{15, 8, 7, 6}, {11, 4, 3, 2}, {5, 30, 29, 28}, {9, 10, 1, 0}};
    for (int kind = 0; kind < 4; kind++) {
        EXPECT_EQ(places(kind % 2 * 8, kind / 2 * 8), table[kind]) << kind;
        std::vector<int> odd = table[kind];
        for (int& bit : odd) bit = (bit + 16) % 32;
        EXPECT_EQ(places(kind % 2 * 8, kind / 2 * 8 + 1), odd) << kind;
    }
    EXPECT_EQ(1u << gpu_code_bit(0, 0, 0) | 1u << gpu_code_bit(0, 1, 1), 0x00800040u);
    EXPECT_EQ(gpu_word_byte(0, 0), 0);
}

// Both scales of a lane's rows, of the even and the odd block of a word of scales, as BF16 times 2^104; and
// the products with the codes, BF16 as well and exact, times 2^-22.
TEST(GpuWeight, OrdinaryScalesBecomeBf16AndTheirProductsAreExact) {
    for (int byte = 0; byte < 256; byte++) {
        const auto scale = uint8_t(byte);
        EXPECT_EQ(gpu_scale_is_special(scale), !(decode_e4m3(scale) >= 0x1p-6f)) << byte;
        if (gpu_scale_is_special(scale)) continue;
        for (int row = 0; row < 16; row++)
            for (int block = 0; block < 4; block++) {
                const int word_byte = gpu_scale_byte(row, block) % 4;
                for (const uint32_t others : {0u, 0xFFFFFFFFu}) {
                    const uint32_t mask = 0xFFu << 8 * word_byte;
                    const uint32_t t = (others & ~mask) | uint32_t(byte) << 8 * word_byte;
                    const uint32_t both = ((block % 2 == 0 ? t << 4 : t >> 4) & 0x0FF00FF0) | 0x70007000;
                    const float given = bf16(both >> (row < 8 ? 0 : 16));
                    ASSERT_EQ(given, decode_e4m3(scale) * 0x1p104f) << byte << " " << row << " " << block;
                }
            }
        for (int code = 0; code < 16; code++) {
            const float exact = decode_e2m1(uint8_t(code)) * decode_e4m3(scale) * 0x1p-22f;
            EXPECT_EQ(to_float(round_to<BFloat16>(exact)), exact) << byte << " " << code;
        }
    }
}

}  // namespace
}  // namespace halfbyte
