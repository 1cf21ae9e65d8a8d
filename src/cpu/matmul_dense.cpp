// d[m,n] = round_T(fl(sum32_k(x[m,k] * w[n,k]) + bias[n])), w BF16, FP16 or FP32.
//   x [M, K], w [N, K] -> d [M, N]
// Few rows read the weights where they lie, each once. For more, 16 rows of weights at a time are widened to
// FP32, and up to `block_rows` rows of x use them.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_dense.cpp"
#include <hwy/foreach_target.h>

#include "cpu/sum32_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

template <int R = 1, typename W>
void multiply_in_place(ThreadPool& pool, const MatmulDenseArgs& args, const W* w, const Epilogue& epilogue) {
    if constexpr (R < few_rows)
        if (args.d.rows > R) return multiply_in_place<R + 1>(pool, args, w, epilogue);
    const int64_t outputs = args.d.cols, K = args.x.cols;
    const auto x = widen_few_rows(args.x);
    const int64_t groups = (outputs + N - 1) / N;
    pool.parallel_for(groups, grain_for(pool, groups, N * K * (R + 1)), [&](int64_t begin, int64_t end) {
        multiply_few_rows<R>(x[0].values, w, args.w.stride, K, begin * N, std::min(end * N, outputs),
                             epilogue);
    });
}

template <typename W>
void multiply(ThreadPool& pool, const MatmulDenseArgs& args, const W* w) {
    const Epilogue epilogue{nullptr, args.bias, args.bias_type, args.d};
    if (args.d.rows == 0) return;
    if (args.d.rows <= few_rows) return multiply_in_place(pool, args, w, epilogue);
    multiply_blocked(
        pool, args.x, args.d.cols, epilogue, [&](const WeightPanel& panel, int64_t n, int64_t columns) {
            for (int64_t c = 0; c < round_up(columns, tile_columns); c++)
                pack_row(w + (n + std::min(c, columns - 1)) * args.w.stride, args.x.cols, panel.steps,
                         panel.column(c), panel.pass_stride(), tile_columns * N, 0.0f);
        });
}

}  // namespace

void matmul_dense(ThreadPool& pool, const MatmulDenseArgs& args) {
    with_type(args.w.data, args.w.type, [&](const auto* w) { multiply(pool, args, w); });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<MatmulDenseArgs>> matmul_dense_levels = HALFBYTE_PER_LEVEL(matmul_dense);
}  // namespace halfbyte::cpu
#endif
