#include "core/element.h"
#include "reference/exp.h"
#include "reference/reference.h"

namespace halfbyte::reference {

void silu_mul(const SiluMulArgs& args) {
    for (int64_t row = 0; row < args.gate.rows; row++) {
        for (int64_t k = 0; k < args.gate.cols; k++) {
            const float gate = load_element(args.gate.data, args.gate.type, row * args.gate.stride + k);
            const float up = load_element(args.up.data, args.up.type, row * args.up.stride + k);
            store_element(args.y.data, args.y.type, row * args.y.stride + k, gate / (1.0f + exp(-gate)) * up);
        }
    }
}

}  // namespace halfbyte::reference
