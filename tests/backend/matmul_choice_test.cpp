#include "cuda/matmul_choice.h"

#include <gtest/gtest.h>

namespace halfbyte::cuda {
namespace {

constexpr MatmulTuning table[] = {{8, 1000, {"b", "a"}},
                                  {8, INT64_MAX, {"c"}},
                                  {64, INT64_MAX, {"gone", "c", "b"}},
                                  {INT64_MAX, 1000, {"d"}}};
constexpr Kernel<MatmulW4A16Args> kernels[] = {
    {"a", nullptr, nullptr}, {"b", nullptr, nullptr}, {"c", nullptr, nullptr}, {"d", nullptr, nullptr}};

std::string order_for(const MatmulSize& size) {
    std::string names;
    for (const Kernel<MatmulW4A16Args>* kernel :
         in_order(KernelList<MatmulW4A16Args>(kernels), preferred(table, size)))
        names += kernel->name;
    return names;
}

TEST(MatmulChoice, TheFirstLineThatASizeDoesNotExceedComesFirst) {
    EXPECT_EQ(order_for({1, 10, 100}), "bacd");
    EXPECT_EQ(order_for({8, 10, 100}), "bacd");
    EXPECT_EQ(order_for({8, 10, 101}), "cabd");
    EXPECT_EQ(order_for({9, 10, 10}), "cbad");  // a kernel of the table that this build has not is left out
    EXPECT_EQ(order_for({65, 10, 10}), "dabc");
    EXPECT_EQ(order_for({65, 1000, 10}), "abcd");  // no line: the order of the list
}

TEST(MatmulChoice, OnlyTheMeasuredDeviceHasATable) {
    EXPECT_TRUE(tuning_of<MatmulW4A4Args>({.major = 8}).empty());
    EXPECT_TRUE(tuning_of<MatmulW4A16Args>({.major = 10}).empty());
    EXPECT_TRUE(tuning_of<AmaxArgs>({.major = 9}).empty());
}

// A line behind one that covers it would never be read.
TEST(MatmulChoice, EveryLineOfTheTablesIsReached) {
    for (const auto tuned :
         {std::span<const MatmulTuning>(tuned_w4a4), std::span<const MatmulTuning>(tuned_w4a16)})
        for (size_t i = 0; i < tuned.size(); i++)
            for (size_t j = 0; j < i; j++)
                EXPECT_FALSE(tuned[i].most_rows <= tuned[j].most_rows &&
                             tuned[i].most_weights <= tuned[j].most_weights)
                    << "line " << i << " behind line " << j;
}

}  // namespace
}  // namespace halfbyte::cuda
