#include <gtest/gtest.h>

#include <utility>

#include "reference/reference.h"
#include "support/compare.h"
#include "support/matrix.h"

namespace halfbyte {
namespace {

using test::PoisonedBuffer;
using test::Quantized;

constexpr ScaleLayout layouts[] = {ScaleLayout::linear, ScaleLayout::tiled_128x4, ScaleLayout::tiled_8x4};

NvFp4Shape in(NvFp4Shape shape, ScaleLayout layout) {
    shape.layout = layout;
    return shape;
}

PoisonedBuffer convert(const NvFp4Shape& shape, const uint8_t* source, ScaleLayout layout, uint8_t poison) {
    PoisonedBuffer target(in(shape, layout).scale_bytes(), poison);
    reference::convert_scales({.shape = shape, .source = source, .layout = layout, .target = target.data()});
    EXPECT_TRUE(target.guards_intact());
    return target;
}

// Padding is zero afterwards, whatever the source's held and whatever lay in the target.
TEST(ConvertScales, MovesEachScaleThereAndBack) {
    uint64_t seed = 1;
    for (const auto& [rows, k] : {std::pair<int64_t, int64_t>(0, 16),
                                  {3, 0},
                                  {1, 1},
                                  {15, 15},
                                  {17, 17},
                                  {33, 33},
                                  {128, 64},
                                  {150, 80},
                                  {129, 1000}}) {
        for (const NvFp4Shape& padded :
             {NvFp4Shape::of(rows, k),
              NvFp4Shape{rows, k, rows + 5, round_up(k, 16) + 48, ScaleLayout::linear}}) {
            for (const ScaleLayout from : layouts) {
                const NvFp4Shape shape = in(padded, from);
                const Quantized clean = test::random_quantized(shape, seed++);
                Quantized q(shape, 0x7F);  // its padding holds NaN
                for (int64_t row = 0; row < rows; row++)
                    for (int64_t block = 0; block < shape.blocks(); block++)
                        q.scales[q.scale_place(row, block)] = clean.scale(row, block);
                for (const ScaleLayout to : layouts) {
                    SCOPED_TRACE(testing::Message()
                                 << rows << " x " << k << ", " << int(from) << " to " << int(to));
                    const int64_t columns = std::max<int64_t>(1, shape.padded_blocks());
                    const PoisonedBuffer there = convert(shape, q.scales.data(), to, 0xFF);
                    Quantized expected(in(shape, to), 0);
                    for (int64_t row = 0; row < rows; row++)
                        for (int64_t block = 0; block < shape.blocks(); block++)
                            expected.scales[expected.scale_place(row, block)] = clean.scale(row, block);
                    ASSERT_TRUE(test::same_bytes(there.bytes(), expected.scales.bytes(), columns));
                    const PoisonedBuffer back = convert(in(shape, to), there.data(), from, 0x7F);
                    ASSERT_TRUE(test::same_bytes(back.bytes(), clean.scales.bytes(), columns));
                }
            }
        }
    }
}

}  // namespace
}  // namespace halfbyte
