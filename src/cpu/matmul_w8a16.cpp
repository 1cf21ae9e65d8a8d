// d[m,n] = round_T(fl(fl(sum32_k(x[m,k] * e4m3(w[n,k])) * column_decode[n]) + bias[n]))
//   x [M, K], w [N, K] E4M3 -> d [M, N]
// Few rows read the weights where they lie, each once: a byte a weight is what memory has to deliver. For
// more, 16 rows of weights at a time are decoded to FP32, and up to `block_rows` rows of x use them. The
// decoding of vectors takes a NaN byte for 480, so rows that hold one are found and treated by themselves.
#include <limits>
#include <vector>

#include "core/element.h"
#include "cpu/targets.h"
#include "format/e4m3.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_w8a16.cpp"
#include <hwy/foreach_target.h>

#include "cpu/decode-inl.h"
#include "cpu/sum32_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {

// An E4M3 number that is loaded as 2^-120 of itself, which saves the product: x * 2^120 beside it makes the
// same products, exactly.
struct TinyE4M3 {
    uint8_t bits;
};

HWY_INLINE V load(const TinyE4M3* p) {
#if HWY_TARGET == HWY_AVX2
    // A byte in the top of each lane: the broadcast is a load and no more, unlike an extension of bytes.
    constexpr int8_t o = -1;
    alignas(32) static constexpr int8_t top[32] = {o, o, o, 0, o, o, o, 1, o, o, o, 2, o, o, o, 3,
                                                   o, o, o, 4, o, o, o, 5, o, o, o, 6, o, o, o, 7};
    const hn::Repartition<int8_t, F32> d8;
    int64_t bytes;
    std::memcpy(&bytes, p, 8);
    const auto all = hn::BitCast(d8, hn::Set(hn::Repartition<int64_t, F32>(), bytes));
    const auto bits = hn::ShiftRight<4>(hn::BitCast(I32(), hn::TableLookupBytesOr0(all, hn::Load(d8, top))));
#else
    const hn::Rebind<int8_t, F32> d8;
    const auto bits =
        hn::ShiftLeft<20>(hn::PromoteTo(I32(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
#endif
    return hn::BitCast(F32(), hn::And(bits, hn::Set(I32(), int32_t(0x87F00000))));
}
inline void widen(const TinyE4M3* w, int64_t n, float* out, int64_t padded, float fill) {
    for (int64_t i = 0; i < n; i++) out[i] = decode_e4m3(w[i].bits) * 0x1p-120f;
    for (int64_t i = n; i < padded; i++) out[i] = fill;
}

namespace {

// x *= 2^120 and true, if that overflows nowhere.
bool scale_up(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += N)
        if (!hn::AllTrue(F32(), hn::Lt(hn::Abs(load(x + i)), set(256.0f)))) return false;
    for (int64_t i = 0; i < count; i += N) store(hn::Mul(load(x + i), set(0x1p120f)), x + i);
    return true;
}

template <int R = 1>
void multiply_in_place(ThreadPool& pool, const MatmulW8A16Args& args, const E4M3* w,
                       const Epilogue& epilogue) {
    if constexpr (R < few_rows)
        if (args.d.rows > R) return multiply_in_place<R + 1>(pool, args, w, epilogue);
    const int64_t outputs = args.d.cols, K = args.x.cols;
    const auto x = widen_few_rows(args.x);
    const bool scaled = scale_up(x[0].values, R * 32 * steps_of(K));
    const int64_t groups = (outputs + N - 1) / N;
    pool.parallel_for(groups, grain_for(pool, groups, N * K * (R + 1)), [&](int64_t begin, int64_t end) {
        constexpr int64_t together = 4 * N;  // outputs: enough for the places of multiply_few_rows
        for (int64_t n = begin * N; n < std::min(end * N, outputs); n += together) {
            const int64_t group_end = std::min({n + together, end * N, outputs});
            if (scaled)
                multiply_few_rows<R>(x[0].values, reinterpret_cast<const TinyE4M3*>(w), args.w.stride, K, n,
                                     group_end, epilogue);
            else
                multiply_few_rows<R>(x[0].values, w, args.w.stride, K, n, group_end, epilogue);
            for (int64_t column = n; column < group_end; column++) {  // the rows are in L1 or L2 now
                if (!any_nan(&w[column * args.w.stride].bits, K)) continue;
                for (int64_t m = 0; m < R; m++)
                    store_element(args.d.data, args.d.type, m * args.d.stride + column,
                                  std::numeric_limits<float>::quiet_NaN());
            }
        }
    });
}

}  // namespace

void matmul_w8a16(ThreadPool& pool, const MatmulW8A16Args& args) {
    const auto w = static_cast<const E4M3*>(args.w.data);
    const int64_t K = args.x.cols;
    const Epilogue epilogue{args.column_decode, args.bias, args.bias_type, args.d};
    if (args.d.rows == 0) return;
    if (args.d.rows <= few_rows) return multiply_in_place(pool, args, w, epilogue);
    multiply_blocked(pool, args.x, args.d.cols, epilogue,
                     [&](const WeightPanel& panel, int64_t n, int64_t columns) {
                         for (int64_t c = 0; c < round_up(columns, tile_columns); c++) {
                             const E4M3* row = w + (n + std::min(c, columns - 1)) * args.w.stride;
                             const auto pack = [&](const auto* values) {
                                 pack_row(values, K, panel.steps, panel.column(c), panel.pass_stride(),
                                          tile_columns * N, 0.0f);
                             };
                             if (any_nan(&row->bits, K)) {
                                 std::vector<float> decoded(static_cast<size_t>(K));
                                 for (int64_t k = 0; k < K; k++) decoded[size_t(k)] = to_float(row[k]);
                                 pack(decoded.data());
                             } else {
                                 pack(row);
                             }
                         }
                     });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<MatmulW8A16Args>> matmul_w8a16_levels = HALFBYTE_PER_LEVEL(matmul_w8a16);
}  // namespace halfbyte::cpu
#endif
