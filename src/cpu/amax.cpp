// largest[row] = max |x| of a row in the order of the bits without their sign, where infinity follows the
// finite values and the NaNs follow infinity: so it is finite exactly if all of the row is.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/amax.cpp"
#include <hwy/foreach_target.h>

#include "cpu/operations.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// Of n unsigned integers of the type's size.
template <typename Word>
HWY_INLINE Word largest_word(const Word* x, int64_t n) {
    const hn::ScalableTag<Word> d;
    constexpr int64_t lanes = HWY_LANES(Word);
    const auto magnitude_bits = hn::Set(d, Word(Word(~Word(0)) >> 1));
    const auto magnitude = [&](const Word* p) HWY_ATTR { return hn::And(hn::LoadU(d, p), magnitude_bits); };
    auto a = hn::Zero(d), b = a, c = a, e = a;
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        a = hn::Max(a, magnitude(x + i));
        b = hn::Max(b, magnitude(x + i + lanes));
        c = hn::Max(c, magnitude(x + i + 2 * lanes));
        e = hn::Max(e, magnitude(x + i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) a = hn::Max(a, magnitude(x + i));
    Word all[lanes], largest = 0;
    hn::StoreU(hn::Max(hn::Max(a, b), hn::Max(c, e)), d, all);
    for (const Word one : all) largest = one > largest ? one : largest;
    for (; i < n; i++) {
        const Word one = Word(x[i] & (Word(~Word(0)) >> 1));
        largest = one > largest ? one : largest;
    }
    return largest;
}

}  // namespace

void largest_magnitudes(ThreadPool& pool, const ConstMatrix& x, float* largest) {
    pool.parallel_for(x.rows, grain_for(pool, x.rows, x.cols), [&](int64_t begin, int64_t end) {
        with_type(x.data, x.type, [&](const auto* data) {
            using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
            using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
            for (int64_t row = begin; row < end; row++) {
                const Word word = largest_word(reinterpret_cast<const Word*>(data + row * x.stride), x.cols);
                largest[row] = to_float(std::bit_cast<T>(word));
            }
        });
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<void(ThreadPool&, const ConstMatrix&, float*)> largest_magnitudes_levels =
    HALFBYTE_PER_LEVEL(largest_magnitudes);
}  // namespace halfbyte::cpu
#endif
