#include "halfbyte/dtype.h"

namespace halfbyte {

std::string_view name_of(DType type) {
    switch (type) {
        case DType::f64:
            return "F64";
        case DType::f32:
            return "F32";
        case DType::f16:
            return "F16";
        case DType::bf16:
            return "BF16";
        case DType::i64:
            return "I64";
        case DType::i32:
            return "I32";
        case DType::i16:
            return "I16";
        case DType::i8:
            return "I8";
        case DType::u64:
            return "U64";
        case DType::u32:
            return "U32";
        case DType::u16:
            return "U16";
        case DType::u8:
            return "U8";
        case DType::boolean:
            return "BOOL";
        case DType::f8_e4m3:
            return "F8_E4M3";
        case DType::f8_e5m2:
            return "F8_E5M2";
    }
    return "?";
}

}  // namespace halfbyte
