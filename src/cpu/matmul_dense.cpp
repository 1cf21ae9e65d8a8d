// d[m,n] = round_T(fl(sum32_k(x[m,k] * w[n,k]) + bias[n])), w BF16, FP16 or FP32.
//   x [M, K], w [N, K] -> d [M, N]
// Few rows read the weights where they lie, each once. For more, 48 rows of weights at a time are widened to
// FP32 in a scratch buffer that all rows of x then use.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul_dense.cpp"
#include <hwy/foreach_target.h>

#include "cpu/sum32_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

template <typename W>
void multiply(ThreadPool& pool, const MatmulDenseArgs& args, const W* w) {
    const int64_t rows = args.d.rows, outputs = args.d.cols, K = args.x.cols;
    const WideRows x = widen_rows(pool, args.x);
    const Epilogue epilogue{nullptr, args.bias, args.bias_type, args.d};
    const bool in_place = K % 32 == 0 && (rows <= tile_rows || std::is_same_v<W, float>);

    const int64_t panels = (outputs + panel_columns - 1) / panel_columns;
    pool.parallel_for(
        panels, grain_for(pool, panels, panel_columns * K * (rows + 4)), [&](int64_t begin, int64_t end) {
            std::unique_ptr<float[]> scratch;
            if (!in_place)
                scratch = std::make_unique_for_overwrite<float[]>(size_t(panel_columns * x.stride + 1));
            for (int64_t panel = begin; panel < end; panel++) {
                const int64_t n = panel * panel_columns, columns = std::min(panel_columns, outputs - n);
                const W* first = w + n * args.w.stride;
                if (in_place) {
                    multiply_panel(x, 0, rows, first, args.w.stride, n, columns, epilogue);
                    continue;
                }
                for (int64_t c = 0; c < columns; c++)
                    widen(first + c * args.w.stride, K, scratch.get() + c * x.stride, x.stride, 0.0f);
                multiply_panel(x, 0, rows, static_cast<const float*>(scratch.get()), x.stride, n, columns,
                               epilogue);
            }
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
