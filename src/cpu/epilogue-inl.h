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

template <typename T>
void write_row(const float* values, T* d, int64_t count) {
    int64_t i = 0;
    for (; i + N <= count; i += N) store(load(values + i), d + i);
    if (i < count) store_first(load_first(values + i, count - i), d + i, count - i);
}

// sums [count] are overwritten. alpha = fl(row_decode * column_decode[n]).
inline void finish_row(const Epilogue& e, float row_decode, int64_t m, int64_t n, int64_t count,
                       float* sums) {
    if (e.column_decode != nullptr)
        for (int64_t j = 0; j < count; j++) sums[j] *= row_decode * e.column_decode[n + j];
    if (e.bias != nullptr) {
        float bias[epilogue_columns];
        with_type(e.bias, e.bias_type, [&](const auto* p) { widen(p + n, count, bias, count, 0.0f); });
        for (int64_t j = 0; j < count; j++) sums[j] += bias[j];
    }
    with_type(e.d.data, e.d.type, [&](auto* d) { write_row(sums, d + m * e.d.stride + n, count); });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
