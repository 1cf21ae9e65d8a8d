#include "quantizer/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "quantizer/random_model.h"

namespace halfbyte::quantizer {
namespace {

using test::open;
using test::random_model;
using test::TemporaryFolder;

struct Model {
    TemporaryFolder folder;
    Context context{1};
    std::unique_ptr<checkpoint::Checkpoint> source;
    std::unique_ptr<model::Decoder> decoder;

    explicit Model(const test::TinyModel& tiny) : source(open(tiny, folder / "model")) {
        decoder = model::load_decoder(context, *source, model::Arithmetic::kernel);
    }
};

std::vector<int32_t> some_ids(size_t count) {
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; i++) ids[i] = int32_t(i * 5 % 24);
    return ids;
}

TEST(Calibrate, KeepsTheLargestInputOfEachLayerOverWindows) {
    const Model model(random_model(DType::bf16));
    const auto ids = some_ids(50);
    std::map<std::string, float> expected;
    for (size_t begin = 0; begin < ids.size(); begin += 20) {  // 20, 20 and 10
        const auto window = std::span(ids).subspan(begin, std::min<size_t>(20, ids.size() - begin));
        model::KvCache cache = model.decoder->make_cache(int64_t(window.size()));
        model.decoder->forward(model.context, cache, window, 0, nullptr,
                               [&](const std::string& module, const float* x, int64_t rows, int64_t k) {
                                   for (int64_t i = 0; i < rows * k; i++)
                                       expected[module] = std::max(expected[module], std::fabs(x[i]));
                               });
    }
    const Calibration calibration = calibrate(model.context, *model.decoder, ids, 20, {});
    EXPECT_EQ(calibration.tokens, 50);
    EXPECT_EQ(calibration.input_amax, expected);
    EXPECT_EQ(expected.size(), test::TinyModel::linears().size() + 1);  // lm_head too
}

TEST(Calibrate, AWindowLongerThanTheContextOrTheTextIsCut) {
    const Model model(random_model(DType::bf16));  // a context of 64
    const auto ids = some_ids(100);
    EXPECT_EQ(calibrate(model.context, *model.decoder, ids, 512, {}).input_amax,
              calibrate(model.context, *model.decoder, ids, 64, {}).input_amax);
    EXPECT_EQ(calibrate(model.context, *model.decoder, std::span(ids).first(3), 512, {}).tokens, 3);
}

TEST(Calibrate, NamesTheLayerWhoseInputIsNotFinite) {
    test::TinyModel tiny = random_model(DType::f32);
    auto& norm = tiny.tensors.at("model.layers.0.post_attention_layernorm.weight");
    store_element(norm.bytes.data(), norm.dtype, 3, std::numeric_limits<float>::quiet_NaN());
    const Model model(tiny);
    test::expect_error(ErrorKind::failure,
                       "the input of model.layers.0.mlp.gate_proj is not finite at token 0",
                       [&] { calibrate(model.context, *model.decoder, some_ids(10), 8, {}); });
}

TEST(Calibrate, ReportsEachWindowAndStopsWhenTheReceiverThrows) {
    const Model model(random_model(DType::bf16));
    std::vector<int64_t> seen;
    const auto ids = some_ids(50);
    calibrate(model.context, *model.decoder, ids, 20,
              [&](std::string_view what, int64_t done, int64_t total) {
                  EXPECT_EQ(what, "calibrate");
                  EXPECT_EQ(total, 50);
                  seen.push_back(done);
              });
    EXPECT_EQ(seen, (std::vector<int64_t>{0, 20, 40, 50}));
    test::expect_error(ErrorKind::interrupted, "stop", [&] {
        calibrate(model.context, *model.decoder, ids, 20,
                  [](std::string_view, int64_t, int64_t) { throw Error(ErrorKind::interrupted, "stop"); });
    });
}

}  // namespace
}  // namespace halfbyte::quantizer
