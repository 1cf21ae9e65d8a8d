#include <halfbyte/context.h>

#include <cstdio>

int main() {
    float x[16];
    for (int j = 0; j < 16; j++) x[j] = float(j) / 4 - 2;
    const float G = halfbyte::EncodeScale::from_amax(2).encode();
    uint8_t codes[8], scale[1];
    const halfbyte::Context context;
    halfbyte::quantize(context, {.x = {x, halfbyte::DType::f32, 1, 16, 16},
                                 .encode_scale = &G,
                                 .shape = halfbyte::NvFp4Shape::of(1, 16),
                                 .codes = codes,
                                 .block_scales = scale});
    for (const uint8_t byte : codes) std::printf("%02x ", byte);
    std::printf("scale %02x\n", scale[0]);
}
