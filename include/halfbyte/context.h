// Where operations run: threads and an instruction set level. There are no globals.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/operations.h"

namespace halfbyte {

// Every level gives the same bits; avx512 means AVX-512 (F, BW, CD, DQ, VL) with VNNI, neon and neon_dotprod
// AArch64 without and with the dot product instructions.
enum class CpuLevel { scalar, avx2, avx512, neon, neon_dotprod };
std::string_view name_of(CpuLevel level);  // "scalar", "avx2", ...

struct CpuLevelStatus {
    CpuLevel level;
    std::string unsupported_reason;  // empty if this machine runs it
};
std::vector<CpuLevelStatus> cpu_levels();  // lowest first

class Context {
  public:
    // threads = 0: as many as the process may use (its CPU affinity and control group quota). No level: the
    // highest that this machine runs. Errors: unsupported (a level that the machine lacks), usage (a negative
    // number of threads), failure (the system gives no thread). A context serves one calling thread at a
    // time.
    explicit Context(int threads = 0, std::optional<CpuLevel> level = {});
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    int threads() const;
    CpuLevel level() const;

    struct State;
    const State& state() const { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

// The operations. Each checks its arguments once and throws Error (usage) that says what was given and what
// is needed, before it writes anything; then it runs in the context's threads and returns when the result is
// there. Shapes, layouts and formulas stand at the structs (operations.h). Values never throw: what a NaN, an
// infinity or an overflow gives is defined (docs/numbers.md).

// BF16, FP16 or FP32 [rows, k] to codes and block scales in any layout, padding included.
void quantize(const Context& context, const QuantizeArgs& args);
// Codes and block scales to BF16, FP16 or FP32 [rows, k].
void dequantize(const Context& context, const DequantizeArgs& args);
// Block after block of n elements along K of [rows, k], any n that divides K. y may be x's own memory.
void transform(const Context& context, const TransformArgs& args);
// The transform and quantize in one, x' not rounded in between.
void transform_quantize(const Context& context, const TransformQuantizeArgs& args);
// silu_mul and quantize in one, without writing the product.
void silu_mul_quantize(const Context& context, const SiluMulQuantizeArgs& args);
// rms_norm and quantize in one, without writing y; the residual is written back.
void rms_norm_quantize(const Context& context, const RmsNormQuantizeArgs& args);
// The weights [n, k] as the products read them. Needs no padding of w to hold zeros.
// `memory` is where the result lies: it must live longer.
PackedWeight pack_weight(const Context& context, const NvFp4View& w,
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource());
// The same of several weights [n_i, k], one below the other: layers that share an input (q/k/v, gate/up) as
// one.
PackedWeight pack_weight(const Context& context, std::span<const NvFp4View> parts,
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource());
// d[M, N] = a[M, K] w[N, K]^T, both NVFP4.
void matmul_w4a4(const Context& context, const MatmulW4A4Args& args);
// d[M, N] = x[M, K] w[N, K]^T, x BF16, FP16 or FP32, w NVFP4.
void matmul_w4a16(const Context& context, const MatmulW4A16Args& args);
// d[M, N] = x[M, K] w[N, K]^T, x BF16, FP16 or FP32, w E4M3 with a scale for each row.
void matmul_w8a16(const Context& context, const MatmulW8A16Args& args);
// d[M, N] = x[M, K] w[N, K]^T, each BF16, FP16 or FP32.
void matmul_dense(const Context& context, const MatmulDenseArgs& args);
// Each row of [rows, K] by itself, with or without a residual added first.
void rms_norm(const Context& context, const RmsNormArgs& args);
// Element by element, [rows, K].
void silu_mul(const Context& context, const SiluMulArgs& args);
// Each row of [rows, K] by itself.
void softmax(const Context& context, const SoftmaxArgs& args);
// In place, [T, heads * head_dim].
void rope(const Context& context, const RopeArgs& args);
// One sequence; T new positions behind first_position old ones.
void attention(const Context& context, const AttentionArgs& args);

}  // namespace halfbyte
