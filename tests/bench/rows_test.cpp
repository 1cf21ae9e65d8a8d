// Every row is right on this machine, and would be seen to be wrong if it were.
#include "bench/rows.h"

#include <gtest/gtest.h>

#include <set>

#include "round_limits.h"

namespace halfbyte::bench {
namespace {

TEST(Rows, NamesAreUnique) {
    std::set<std::string> names;
    for (const Row& row : all_rows()) {
        EXPECT_TRUE(names.insert(row.name()).second) << row.name();
        EXPECT_GT(row.items, 0);
        EXPECT_GT(row.work.bytes_read, 0);
        EXPECT_EQ(row.unit, row.shape.find('=') == std::string::npos ? "Gvalue/s" : "GMAC/s") << row.name();
    }
    EXPECT_GT(names.size(), 50u);
}

// One set of operands of each, also of those whose rows are timed from memory; large products would take
// long.
TEST(Rows, EveryRowIsComparedWithTheReference) {
    const Context context(2);
    for (const Row& row : all_rows()) {
        if (row.work.int8 + row.work.fp32 > 2e8) continue;
        SCOPED_TRACE(row.name());
        const auto operation = row.make(context, 1);
        operation->prepare();
        operation->run(context, 0);
        EXPECT_EQ(operation->difference(context), "");
        operation->output()[0] ^= 1;
        EXPECT_NE(operation->difference(context), "");
    }
}

TEST(Rows, TheLastOutputIsComparedToo) {
    const Context context(1);
    for (const Row& row : all_rows()) {
        if (row.work.int8 + row.work.fp32 > 2e7 || !row.work.in_l2) continue;
        SCOPED_TRACE(row.name());
        const auto operation = row.make(context, 1);
        operation->prepare();
        operation->run(context, 0);
        const auto output = operation->output();
        output[output.size() - 1] ^= 1;
        EXPECT_NE(operation->difference(context), "");
    }
}

// Counts its calls, and is wrong if it is told to be.
struct Counted : Operation {
    int64_t* calls;
    std::set<int64_t>* sets;
    const bool* wrong;
    uint8_t byte = 0;
    Counted(int64_t* c, std::set<int64_t>* s, const bool* w) : calls(c), sets(s), wrong(w) {}
    void run(const Context&, int64_t set) override {
        (*calls)++;
        sets->insert(set);
    }
    std::span<uint8_t> output() override { return {&byte, 1}; }
    std::string difference(const Context&) override { return *wrong ? "row 3 is wrong" : ""; }
};

TEST(Rows, AWrongKernelIsNotTimed) {
    const Context context(1);
    int64_t calls = 0;
    std::set<int64_t> sets;
    bool wrong = true;
    Row row{.kernel = "counted",
            .shape = "1x1",
            .items = 1e6,
            .unit = "Gvalue/s",
            .work = {.bytes_read = 1e6, .in_l2 = true},
            .set_bytes = 1e6,
            .make = [&](const Context&, int64_t) { return std::make_unique<Counted>(&calls, &sets, &wrong); },
            .note = {}};
    const auto operation = row.make(context, 1);
    const auto measured = [&] { return measure(row, *operation, context, round_limits, {}, 0, [] {}); };
    Measurement found = measured();
    EXPECT_EQ(found.difference, "row 3 is wrong");
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(found.value, 0);

    wrong = false;
    found = measured();
    EXPECT_EQ(found.difference, "");
    EXPECT_EQ(calls, 1 + 5);
    EXPECT_EQ(found.timing.calls, 5);
    EXPECT_EQ(sets, std::set<int64_t>{0});
    EXPECT_EQ(found.bound, "L2 read");
    EXPECT_DOUBLE_EQ(found.limit, 100);  // a value a byte
    EXPECT_DOUBLE_EQ(found.value, 1e-3 / found.timing.median);
    EXPECT_DOUBLE_EQ(found.share, found.value / 100);

    // A limit that is measured beside the samples: here half of what it was.
    int64_t asked = 0;
    found = measure(
        row, *operation, context, round_limits,
        [&](LimitKind kind, double) {
            asked++;
            return round_limits.of(kind) / 2;
        },
        0, [] {});
    EXPECT_EQ(asked, 5);  // before the call to warm up and each sample, and behind the last
    EXPECT_EQ(found.bound, "L2 read");
    EXPECT_NEAR(found.share, found.value / 50, found.timing.spread * found.share + 1e-9);
    EXPECT_DOUBLE_EQ(found.limit, found.value / found.share);

    row.work.in_l2 = false;  // from memory: as many sets as get past the caches
    row.set_bytes = double(memory_bytes()) / 2.5;
    found = measured();
    EXPECT_EQ(sets, (std::set<int64_t>{0, 1, 2}));
    EXPECT_EQ(found.bound, "memory read");
}

TEST(Rows, ALevelWithoutVectorsHasNoComputeLimit) {
    const Context context(1);
    Limits scalar = round_limits;
    scalar.int8 = scalar.fp32 = std::nullopt;
    for (const Row& row : all_rows()) {
        if (row.name() != "matmul_w4a4 M=1 N=256 K=2048 L2" && row.name() != "quantize_bf16 16x4096 L2")
            continue;
        const Measurement found = measure(row, *row.make(context, 1), context, scalar, {}, 0, [] {});
        EXPECT_EQ(found.difference, "");
        EXPECT_GT(found.value, 0);
        EXPECT_EQ(found.limit > 0, row.kernel == "quantize_bf16") << row.name();
    }
}

}  // namespace
}  // namespace halfbyte::bench
