// quantize(silu_mul(gate, up)).
#include "reference/reference.h"
#include "reference/temporary.h"

namespace halfbyte::reference {

void silu_mul_quantize(const SiluMulQuantizeArgs& args) {
    const Temporary y(args.quantize.x.type, args.gate.rows, args.gate.cols);
    silu_mul({.gate = args.gate, .up = args.up, .y = y.matrix()});
    quantize(y.quantize_args(args.quantize));
}

}  // namespace halfbyte::reference
