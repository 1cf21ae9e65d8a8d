// The end of every product: d[m, n..n+count) = round_T(fl(fl(sum * alpha) + bias)).
#if defined(HALFBYTE_CPU_EPILOGUE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HALFBYTE_CPU_EPILOGUE_INL_H
#undef HALFBYTE_CPU_EPILOGUE_INL_H
#else
#define HALFBYTE_CPU_EPILOGUE_INL_H
#endif

#include "cpu/operations.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

inline constexpr int64_t epilogue_columns = 48;  // at most, in one call

struct Epilogue {
    const float* column_decode;  // [N], or null: no alpha
    const void* bias;            // [N] of bias_type, or null
    DType bias_type;
    Matrix d;
};

// d[0..count) = round_T(fl(fl(sums * alpha) + bias)); without column_decode there is no alpha, without bias
// none.
template <typename T>
HWY_INLINE void finish_values(const float* sums, float row_decode, const float* column_decode,
                              const float* bias, T* d, int64_t count) {
    const auto finish = [&](V v, V columns, V added) HWY_ATTR {
        if (column_decode != nullptr) v = hn::Mul(v, hn::Mul(set(row_decode), columns));
        return bias != nullptr ? hn::Add(v, added) : v;
    };
    const V none = hn::Zero(F32());
    int64_t i = 0;
    for (; i + N <= count; i += N)
        store(finish(load(sums + i), column_decode != nullptr ? load(column_decode + i) : none,
                     bias != nullptr ? load(bias + i) : none),
              d + i);
    if (const int64_t rest = count - i; rest > 0)
        store_first(finish(load_first(sums + i, rest),
                           column_decode != nullptr ? load_first(column_decode + i, rest) : none,
                           bias != nullptr ? load_first(bias + i, rest) : none),
                    d + i, rest);
}

// d[m..m+rows, n..n+count) of sums, `stride` apart; alpha = fl(row_decode[r * row_step] * column_decode[n]).
inline void finish_rows(const Epilogue& e, const float* row_decode, int64_t row_step, int64_t m, int64_t rows,
                        int64_t n, int64_t count, const float* sums, int64_t stride) {
    const float* column_decode = e.column_decode == nullptr ? nullptr : e.column_decode + n;
    float wide[epilogue_columns];
    const float* bias = nullptr;
    if (e.bias != nullptr) {
        with_type(e.bias, e.bias_type, [&](const auto* p) { widen(p + n, count, wide, count, 0.0f); });
        bias = wide;
    }
    with_type(e.d.data, e.d.type, [&](auto* d) {
        for (int64_t r = 0; r < rows; r++)
            finish_values(sums + r * stride, row_decode[r * row_step], column_decode, bias,
                          d + (m + r) * e.d.stride + n, count);
    });
}

inline void finish_row(const Epilogue& e, int64_t m, int64_t n, int64_t count, const float* sums) {
    const float one = 1.0f;
    finish_rows(e, &one, 0, m, 1, n, count, sums, 0);
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
