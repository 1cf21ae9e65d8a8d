// r = x, or r = round_T(fl(x + residual)), written back; i = fl(1 / fl(sqrt(fl(fl(sum32(r*r) / K) + eps))));
// y = round_T(fl(fl(r * i) * w)). One row at a time.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>

#include <cmath>
#include <memory>

#include "cpu/operations.h"
#include "cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace halfbyte::cpu::HWY_NAMESPACE {
namespace {

// residual += x, rounded to T.
template <typename T>
void add_to_residual(const T* x, T* residual, int64_t K) {
    int64_t k = 0;
    for (; k + N <= K; k += N) store(hn::Add(load(x + k), load(residual + k)), residual + k);
    if (k < K)
        store_first(hn::Add(load_first(x + k, K - k), load_first(residual + k, K - k)), residual + k, K - k);
}

template <typename T>
void normalise(const T* r, const float* weight, float epsilon, T* y, int64_t K) {
    const float squares = sum32(K, [&](V sum, int64_t k, int64_t count) HWY_ATTR {
        const V v = count == N ? load(r + k) : load_first(r + k, count);
        return fma(v, v, sum);  // missing elements are 0, and a sum of squares is never -0
    });
    const V inverse = set(1.0f / std::sqrt(squares / float(K) + epsilon));
    int64_t k = 0;
    for (; k + N <= K; k += N) store(hn::Mul(hn::Mul(load(r + k), inverse), load(weight + k)), y + k);
    if (k < K)
        store_first(hn::Mul(hn::Mul(load_first(r + k, K - k), inverse), load_first(weight + k, K - k)), y + k,
                    K - k);
}

}  // namespace

void rms_norm(ThreadPool& pool, const RmsNormArgs& args) {
    const int64_t K = args.x.cols;
    const auto weight = std::make_unique_for_overwrite<float[]>(size_t(K) + 1);
    with_type(args.weight.data, args.weight.type, [&](const auto* w) { widen(w, K, weight.get(), K, 0.0f); });
    pool.parallel_for(args.x.rows, grain_for(pool, args.x.rows, 8 * K), [&](int64_t begin, int64_t end) {
        with_type(args.y.data, args.y.type, [&](auto* y) {
            using T = std::remove_pointer_t<decltype(y)>;
            for (int64_t row = begin; row < end; row++) {
                const T* r = static_cast<const T*>(args.x.data) + row * args.x.stride;
                if (args.residual.data != nullptr) {
                    T* residual = static_cast<T*>(args.residual.data) + row * args.residual.stride;
                    add_to_residual(r, residual, K);
                    r = residual;
                }
                normalise(r, weight.get(), args.epsilon, y + row * args.y.stride, K);
            }
        });
    });
}

}  // namespace halfbyte::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace halfbyte::cpu {
const PerLevel<Kernel<RmsNormArgs>> rms_norm_levels = HALFBYTE_PER_LEVEL(rms_norm);
}  // namespace halfbyte::cpu
#endif
