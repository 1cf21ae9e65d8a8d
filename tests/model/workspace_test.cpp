#include "model/workspace.h"

#include <gtest/gtest.h>

#include <cstring>

namespace halfbyte::model {

TEST(Workspace, GivesMemoryApartAndTheSameAgain) {
    Workspace workspace;
    auto* const kept = workspace.take<float>(3);
    std::vector<uint8_t*> seen;
    for (int pass = 0; pass < 3; pass++) {
        const Workspace::Scope scope(workspace);
        std::vector<std::pair<uint8_t*, int64_t>> taken = {{reinterpret_cast<uint8_t*>(kept), 12}};
        for (const int64_t bytes :
             {int64_t(1), int64_t(100), int64_t(5) << 20, int64_t(0), int64_t(700'000), int64_t(700'000)}) {
            auto* const memory = workspace.take<uint8_t>(bytes);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
            std::memset(memory, pass, size_t(bytes));
            for (const auto& [other, size] : taken)
                EXPECT_TRUE(memory + bytes <= other || other + size <= memory);
            taken.push_back({memory, bytes});
        }
        std::vector<uint8_t*> places;
        for (const auto& [memory, size] : taken) places.push_back(memory);
        if (pass == 0) seen = places;
        EXPECT_EQ(places, seen);
    }
}

}  // namespace halfbyte::model
