// The form of E2M1 without comparisons against the definition, over every FP32 magnitude.
#include "format/e2m1_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>
#include <vector>

#include "format/e2m1.h"

namespace halfbyte {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t step = 61;  // a minute otherwise
#else
constexpr uint64_t step = 1;
#endif

TEST(E2m1Rounding, GivesTheCodeOfEveryMagnitude) {
    constexpr uint64_t patterns = uint64_t(1) << 31, part = uint64_t(1) << 22;
    std::atomic<uint64_t> next{0}, wrong{0}, tried{0};
    const auto work = [&] {
        for (uint64_t first; (first = next.fetch_add(part)) < patterns;) {
            uint64_t here = 0, differ = 0;
            for (uint64_t i = (first + step - 1) / step * step; i < first + part; i += step, here++) {
                const float q = std::bit_cast<float>(uint32_t(i));
                const int32_t code = std::min(e2m1_code_from_base(q) - e2m1_rounding_base, 7);
                differ += code != encode_e2m1(q);
            }
            wrong += differ;
            tried += here;
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
        threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(tried, (patterns + step - 1) / step);
}

// Without the minimum with 7: what a block without saturating quotients needs.
TEST(E2m1Rounding, NeedsNoSaturationBelow7) {
    for (float q = 0; q < 7; q += 0x1p-10f)
        EXPECT_EQ(e2m1_code_from_base(q) - e2m1_rounding_base, encode_e2m1(q)) << q;
}

}  // namespace
}  // namespace halfbyte
