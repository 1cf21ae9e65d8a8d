#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/throws.h"

namespace halfbyte::model {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<int32_t> draws(const SamplerOptions& options, const std::vector<float>& logits, int count) {
    Sampler sampler(options);
    std::vector<int32_t> out;
    for (int i = 0; i < count; ++i) out.push_back(sampler.next(logits));
    return out;
}

// How often each id comes, and the chi-square statistic against the wanted probabilities.
double chi_square(const std::vector<int32_t>& ids, const std::vector<double>& wanted) {
    std::vector<double> count(wanted.size(), 0);
    for (const int32_t id : ids) count[size_t(id)]++;
    double sum = 0;
    for (size_t id = 0; id < wanted.size(); ++id) {
        const double expected = wanted[id] * double(ids.size());
        if (expected == 0 && count[id] > 0) return std::numeric_limits<double>::infinity();
        if (expected > 0) sum += (count[id] - expected) * (count[id] - expected) / expected;
    }
    return sum;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
    EXPECT_EQ(draws({}, {1, 3, -2, 3, 0}, 2), (std::vector<int32_t>{1, 1}));
    EXPECT_EQ(draws({}, {-infinity, -5, -infinity}, 1), (std::vector<int32_t>{1}));
    EXPECT_EQ(draws({}, {0.0f, -0.0f}, 1), (std::vector<int32_t>{0}));
}

TEST(Sampler, TopKOfOneAndTinyTopPAreGreedy) {
    const std::vector<float> logits = {0.1f, 2.0f, 1.9f, 2.0f, -1.0f};
    const std::vector<int32_t> greedy(200, 1);
    EXPECT_EQ(draws({.temperature = 5, .top_k = 1, .seed = 7}, logits, 200), greedy);
    EXPECT_EQ(draws({.temperature = 5, .top_p = 1e-6f, .seed = 7}, logits, 200), greedy);
    EXPECT_EQ(draws({.temperature = 1e-30f, .seed = 7}, {0, 1, 0.999f}, 200), greedy);
}

TEST(Sampler, DrawsFromTheSoftmaxOfTheScaledLogits) {
    const std::vector<float> logits = {0, 1, 2, -infinity, 0.5f, -3};
    const double temperature = 0.7;
    std::vector<double> wanted;
    double total = 0;
    for (const float logit : logits)
        total += wanted.emplace_back(std::exp(double(logit) / double(float(temperature))));
    for (double& p : wanted) p /= total;
    const auto ids = draws({.temperature = float(temperature), .seed = 1}, logits, 100'000);
    EXPECT_LT(chi_square(ids, wanted), 18.47);  // 4 degrees of freedom, p = .001
}

TEST(Sampler, TopKKeepsTheLargestAndOfEqualsTheLowestIds) {
    const auto ids = draws({.temperature = 1, .top_k = 3, .seed = 2}, {0, 1, 0, 0, 1, -1}, 60'000);
    const double e = std::exp(1.0), total = 2 * e + 1;
    EXPECT_LT(chi_square(ids, {1 / total, e / total, 0, 0, e / total, 0}), 13.82);  // 2 degrees, p = .001
}

TEST(Sampler, TopPKeepsTheShortestListThatReachesIt) {
    std::vector<float> logits;  // probabilities .1 .4 .2 .3
    for (const double p : {0.1, 0.4, 0.2, 0.3}) logits.push_back(float(std::log(p)));
    const auto ids_of = [&](float top_p) {
        return draws({.temperature = 1, .top_p = top_p, .seed = 3}, logits, 30'000);
    };
    EXPECT_EQ(chi_square(ids_of(0.39f), {0, 1, 0, 0}), 0);
    EXPECT_LT(chi_square(ids_of(0.41f), {0, 4 / 7.0, 0, 3 / 7.0}), 10.83);        // 1 degree
    EXPECT_LT(chi_square(ids_of(0.71f), {0, 4 / 9.0, 2 / 9.0, 3 / 9.0}), 13.82);  // 2
    EXPECT_LT(chi_square(ids_of(0.95f), {0.1, 0.4, 0.2, 0.3}), 16.27);            // 3
}

TEST(Sampler, TopPCountsWithinTopK) {
    const std::vector<float> logits(10, 1.0f);  // of the 4 kept, each has a quarter
    const auto ids = draws({.temperature = 1, .top_k = 4, .top_p = 0.5f, .seed = 4}, logits, 30'000);
    EXPECT_LT(chi_square(ids, {0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, 0}), 10.83);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
    const std::vector<float> logits = {0, 1, 2, 3, 2, 1};
    const SamplerOptions options = {.temperature = 1.3f, .top_k = 5, .top_p = 0.9f, .seed = 42};
    SamplerOptions other = options;
    other.seed = 43;
    EXPECT_EQ(draws(options, logits, 100), draws(options, logits, 100));
    EXPECT_NE(draws(options, logits, 100), draws(other, logits, 100));
}

// The sequence itself: it may not depend on the standard library or the machine. With equal weights the
// tokens are floor(10 u) of the 64-bit Mersenne twister, whose 10000th output from the default seed the C++
// standard gives.
TEST(Sampler, TheDrawsAreTheUpper53BitsOfTheGenerator) {
    std::mt19937_64 reference(42);
    std::vector<int32_t> wanted;
    for (int i = 0; i < 1000; ++i) wanted.push_back(int32_t(double(reference() >> 11) * 0x1p-53 * 10));
    EXPECT_EQ(draws({.temperature = 1, .seed = 42}, std::vector<float>(10, 0.0f), 1000), wanted);
}

// Sorting all and selecting the k largest are two ways to one order, with equal logits, zeros of both signs
// and a last one that weighs nothing.
TEST(Sampler, OrdersAllAsItOrdersTheLargest) {
    std::vector<float> logits = {0.0f, -0.0f, 0.0f, -1e30f};
    std::mt19937 random(8);
    for (int i = 0; i < 2000; i++) logits.push_back(float(int(random() % 801) - 400) / 97);
    const int others = int(logits.size()) - 1;
    EXPECT_EQ(draws({.temperature = 3, .seed = 9}, logits, 5000),
              draws({.temperature = 3, .top_k = others, .seed = 9}, logits, 5000));
}

TEST(Sampler, NeverChoosesMinusInfinity) {
    const std::vector<float> logits = {-infinity, 0, -infinity, 0, -infinity};
    for (const int32_t id : draws({.temperature = 100, .top_k = 4, .seed = 5}, logits, 1000))
        EXPECT_TRUE(id == 1 || id == 3) << id;
}

TEST(Sampler, FarApartLogitsStillGiveAToken) {
    EXPECT_EQ(draws({.temperature = 0.001f, .seed = 6}, {-3e38f, 3e38f, 0}, 10), std::vector<int32_t>(10, 1));
}

TEST(Sampler, BrokenLogitsAreErrors) {
    for (const float temperature : {0.0f, 1.0f}) {
        const SamplerOptions options = {.temperature = temperature};
        EXPECT_TRUE(test::throws(ErrorKind::failure, "token 1 is nan", [&] { draws(options, {0, NAN}, 1); }));
        EXPECT_TRUE(
            test::throws(ErrorKind::failure, "token 0 is inf", [&] { draws(options, {infinity, 0}, 1); }));
        EXPECT_TRUE(test::throws(ErrorKind::failure, "all 2 logits are -inf",
                                 [&] { draws(options, {-infinity, -infinity}, 1); }));
        EXPECT_TRUE(test::throws(ErrorKind::failure, "all 0 logits", [&] { draws(options, {}, 1); }));
    }
}

TEST(Sampler, RefusesOptionsOutsideTheirRange) {
    EXPECT_TRUE(test::throws(ErrorKind::usage, "temperature", [] { Sampler({.temperature = -1}); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, "temperature", [] { Sampler({.temperature = NAN}); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, "temperature", [] { Sampler({.temperature = infinity}); }));
    EXPECT_TRUE(test::throws(ErrorKind::usage, "top-k", [] { Sampler({.top_k = -1}); }));
    for (const float top_p : {0.0f, -1.0f, 1.5f, NAN})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "top-p", [&] { Sampler({.top_p = top_p}); })) << top_p;
}

}  // namespace
}  // namespace halfbyte::model
