#include "checkpoint/nvfp4_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/json.h"
#include "core/check.h"
#include "core/float16.h"

namespace halfbyte::checkpoint {

std::string label(const TensorView& tensor) {
    return fmt::format("{}: tensor {}", tensor.file->path().string(), quote(tensor.name));
}

const TensorView& need(const std::map<std::string, TensorView>& tensors, const TensorView& beside,
                       const std::string& name, const char* cause) {
    const auto found = tensors.find(name);
    check(found != tensors.end(), ErrorKind::malformed, "{}: has no {} beside it; {}", label(beside),
          quote(name), cause);
    return found->second;
}

std::pair<int64_t, int64_t> checked_shape(const TensorView& codes, const TensorView& scales,
                                          DType scale_type) {
    check(codes.dtype == DType::u8 && codes.shape.size() == 2, ErrorKind::malformed,
          "{}: {} {} given; packed codes are U8 [N, K/2]", label(codes), name_of(codes.dtype),
          codes.shape_text());
    check(scales.dtype == scale_type, ErrorKind::malformed, "{}: {} given; block scales are {}{}",
          label(scales), name_of(scales.dtype), name_of(scale_type),
          scales.dtype == DType::u8 ? ". E8M0 scales of MXFP4?" : "");
    const int64_t n = codes.shape[0], half_k = codes.shape[1];
    check(half_k % 8 == 0 && half_k > 0 && n > 0, ErrorKind::malformed,
          "{}: shape {}; N and K must be positive and K a multiple of 16, so K/2 one of 8", label(codes),
          codes.shape_text());
    const std::vector<int64_t> wanted = {n, half_k / 8};
    if (scales.shape != wanted) {
        const auto& given = scales.shape;
        const int64_t given_n = given.empty() ? 0 : given[0], given_blocks = given.size() == 2 ? given[1] : 0;
        const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
        const char* cause = "";
        if (given == std::vector{wanted[1], wanted[0]})
            cause = "; transposed?";
        else if (given_n == n && given_blocks * 2 == wanted[1])
            cause = "; codes stored one to a byte, or blocks of 32 as in MXFP4?";
        else if (given_n == up(n, 128) && given_blocks == up(wanted[1], 4))
            cause = "; tiled for a kernel, not linear?";
        fail(ErrorKind::malformed, "{}: shape {}; beside codes {} it must be [{}, {}]{}", label(scales),
             scales.shape_text(), codes.shape_text(), wanted[0], wanted[1], cause);
    }
    return {n, half_k * 2};
}

EncodeScale checked_global_scale(const TensorView& tensor) {
    const bool one = tensor.shape.empty() || tensor.shape == std::vector<int64_t>{1};
    check(one, ErrorKind::malformed, "{}: shape {}; a global scale is one number, [1] or []", label(tensor),
          tensor.shape_text());
    float word = 0;
    uint16_t half = 0;
    switch (tensor.dtype) {
        case DType::f32:
            std::memcpy(&word, tensor.bytes.data(), sizeof word);
            break;
        case DType::bf16:
        case DType::f16:
            std::memcpy(&half, tensor.bytes.data(), sizeof half);
            word = tensor.dtype == DType::bf16 ? to_float(BFloat16{half}) : to_float(Float16{half});
            break;
        default:
            fail(ErrorKind::malformed, "{}: {} given; a global scale is F32, BF16 or F16", label(tensor),
                 name_of(tensor.dtype));
    }
    const char* cause = nullptr;
    if (std::isnan(word))
        cause = "Was the layer never reached while calibrating?";
    else if (std::isinf(word))
        cause = "An all-zero tensor, written as 2688/0?";
    else if (word == 0)
        cause = "An infinite amax, or a tensor that was never filled?";
    else if (word < 0)
        cause = "Is the file damaged?";
    else if (!std::isfinite(1.0f / word))
        cause = "Its reciprocal overflows; is the file damaged?";
    check(cause == nullptr, ErrorKind::malformed, "{}: global scale {}; it must be finite and positive. {}",
          label(tensor), word, cause == nullptr ? "" : cause);
    return EncodeScale(word);
}

EncodeScale checked_weight_scale(const TensorView& tensor) {
    const EncodeScale scale = checked_global_scale(tensor);
    check(scale.word() >= least_weight_scale, ErrorKind::malformed,
          "{}: {} would mean a largest weight of {}; looks like a ModelOpt decode scale (a multiplier), of "
          "which "
          "the reciprocal is needed",
          label(tensor), scale.word(), 2688 / scale.word());
    return scale;
}

void check_block_scales(const TensorView& scales) {
    // NaN is 0x7F or 0xFF, and a sign is 0x80 or more: all that is wrong lies at 0x7F and above. Eight bytes
    // at a time: 0x7F + 1 has the sign's bit, and only a byte that has it anyway, 0xFF, carries into the
    // next.
    const auto bytes = scales.bytes;
    uint64_t seen = 0;
    for (size_t i = 0; i < bytes.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
        seen |= word | (word + 0x0101010101010101);
    }
    if ((seen & 0x8080808080808080) != 0) {
        const auto at = std::find_if(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte >= 0x7F; }) -
                        bytes.begin();
        const uint8_t byte = bytes[at];
        const auto wrong = std::count_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b >= 0x7F; });
        const bool nan = (byte & 0x7F) == 0x7F;
        fail(ErrorKind::malformed,
             "{}: byte 0x{:02X} at row {}, block {} is {} ({} such of {} bytes); block scales are E4M3 "
             "numbers of 0 to 448. {}",
             label(scales), byte, at / scales.shape[1], at % scales.shape[1], nan ? "NaN" : "negative", wrong,
             bytes.size(),
             nan ? "A block that held NaN or infinity?"
                 : "E8M0 scales of MXFP4, or codes in the place of scales?");
    }
    scales.file->release(bytes);
}

}  // namespace halfbyte::checkpoint
