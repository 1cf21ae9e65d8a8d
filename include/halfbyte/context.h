// Where operations run: threads and an instruction set level. There are no globals.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halfbyte/operations.h"

namespace halfbyte {

// Every level gives the same bits; avx512 means AVX-512 (F, BW, CD, DQ, VL) with VNNI.
enum class CpuLevel { scalar, avx2, avx512 };
std::string_view name_of(CpuLevel level);

struct CpuLevelStatus {
    CpuLevel level;
    std::string unsupported_reason;  // empty if this machine runs it
};
std::vector<CpuLevelStatus> cpu_levels();  // lowest first

class Context {
  public:
    // threads = 0: as many as the process may use. No level: the best one. A level that the machine lacks is
    // an Error (unsupported). A context serves one calling thread at a time.
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

// Each checks its arguments once (Error of kind usage: what was given, what is needed) and then runs.
void quantize(const Context& context, const QuantizeArgs& args);
void dequantize(const Context& context, const DequantizeArgs& args);
PackedWeight pack_weight(const Context& context, const NvFp4View& w);
void matmul_w4a4(const Context& context, const MatmulW4A4Args& args);
void matmul_w4a16(const Context& context, const MatmulW4A16Args& args);
void matmul_dense(const Context& context, const MatmulDenseArgs& args);
void rms_norm(const Context& context, const RmsNormArgs& args);
void silu_mul(const Context& context, const SiluMulArgs& args);
void softmax(const Context& context, const SoftmaxArgs& args);
void rope(const Context& context, const RopeArgs& args);
void attention(const Context& context, const AttentionArgs& args);

}  // namespace halfbyte
