// The expected words were computed with Python integers from the definition in word_hash.h.
#include "core/word_hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace halfbyte {
namespace {

uint64_t hash(const std::vector<float>& values) {
    WordHash hash;
    hash.add(values);
    return hash.value();
}

TEST(WordHash, HasItsKnownValues) {
    std::vector<float> counting;
    for (int i = 0; i < 1000; i++) counting.push_back(float(i));
    EXPECT_EQ(hash({}), 0xCBF29CE484222325u);
    EXPECT_EQ(hash({0.0f}), 0xAF63BD4C8601B7DFu);
    EXPECT_EQ(hash({1, 2, 3}), 0x1A5CA49711CF2FB7u);
    EXPECT_EQ(hash(counting), 0x711FF1F83B12A745u);
}

TEST(WordHash, SeesTheOrderAndTheSignOfZero) {
    EXPECT_EQ(hash({3, 2, 1}), 0x1A890422E34F2FB7u);
    EXPECT_EQ(hash({-0.0f}), 0xAF63BC730601B7DFu);
}

TEST(WordHash, OfPiecesIsTheHashOfTheWhole) {
    WordHash pieces;
    pieces.add(std::vector<float>{1});
    pieces.add(std::vector<float>{});
    pieces.add(std::vector<float>{2, 3});
    EXPECT_EQ(pieces.value(), hash({1, 2, 3}));
}

}  // namespace
}  // namespace halfbyte
