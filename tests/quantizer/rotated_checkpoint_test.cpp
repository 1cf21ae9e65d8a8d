// A rotated model computes what its source does, before anything is quantised.
#include "quantizer/rotated_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "model/decoder.h"
#include "quantizer/quantize_checkpoint.h"
#include "quantizer/random_model.h"
#include "transform/hadamard.h"

namespace halfbyte::quantizer {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::DenseTensor;
using test::open;
using test::TemporaryFolder;
using test::TinyModel;

// A checkpoint with something changed.
class Changed : public Checkpoint {
  public:
    explicit Changed(const Checkpoint& source) : source_(source) {}
    const fs::path& path() const override { return source_.path(); }
    std::string description() const override { return source_.description(); }
    const checkpoint::ModelConfig& config() const override { return source_.config(); }
    const checkpoint::CompanionFiles& companions() const override { return source_.companions(); }
    std::optional<checkpoint::Scheme> scheme() const override { return source_.scheme(); }
    const std::map<std::string, DenseTensor>& dense() const override { return source_.dense(); }
    const std::map<std::string, checkpoint::NvFp4Linear>& nvfp4() const override { return source_.nvfp4(); }
    const checkpoint::Transforms& transforms() const override { return source_.transforms(); }
    const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                        std::vector<uint8_t>& buffer) const override {
        return source_.read(name, first_row, rows, buffer);
    }
    void release(const std::string& name) const override { source_.release(name); }
    void check_unchanged() const override {}
    std::string stored_format(const std::string& name) const override { return source_.stored_format(name); }
    std::vector<fs::path> weight_files() const override { return source_.weight_files(); }
    uint64_t file_bytes() const override { return source_.file_bytes(); }
    uint64_t weight_bytes() const override { return source_.weight_bytes(); }

  protected:
    const Checkpoint& source_;
};

// Every weight times 1 + e or 1 - e.
class Disturbed final : public Changed {
  public:
    Disturbed(const Checkpoint& source, float e, unsigned seed)
        : Changed(source), e_(e), seed_(seed), dense_(source.dense()) {
        for (auto& [name, tensor] : dense_) tensor.dtype = DType::f32;
    }
    const std::map<std::string, DenseTensor>& dense() const override { return dense_; }
    const uint8_t* read(const std::string& name, int64_t first_row, int64_t rows,
                        std::vector<uint8_t>& buffer) const override {
        const DenseTensor& tensor = source_.dense().at(name);
        std::vector<uint8_t> own;
        const uint8_t* data = source_.read(name, first_row, rows, own);
        const int64_t count = rows * tensor.shape.back();
        buffer.resize(size_t(count) * 4);
        std::mt19937 random(seed_ + unsigned(std::hash<std::string>()(name)));
        for (int64_t i = 0; i < count; i++)
            store_element(buffer.data(), DType::f32, i,
                          load_element(data, tensor.dtype, i) * (1 + (random() % 2 ? e_ : -e_)));
        return buffer.data();
    }

  private:
    float e_;
    unsigned seed_;
    std::map<std::string, DenseTensor> dense_;
};

std::vector<float> logits_of(const Checkpoint& source, int64_t tokens) {
    const Context context(2);
    const auto decoder = model::load_decoder(context, source, model::Arithmetic::kernel);
    auto cache = decoder->make_cache(tokens);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; i++)
        ids.push_back(int32_t((7 * i * i + 5 * i + 3) % source.config().vocab_size));
    std::vector<float> logits(size_t(tokens * source.config().vocab_size));
    decoder->forward(context, cache, ids, tokens, logits.data());
    return logits;
}

float worst(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    float largest = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const float difference = std::fabs(a[i] - b[i]);
        if (!(difference <= largest)) largest = difference;  // a NaN stays
    }
    return largest;
}

// How far the logits of two right FP32 runs may lie apart. A folded weight is rounded once, a product of K
// terms, at most 64 here and 1536 in the demo model, in K/32 + 5 additions, a transform in n <= 64 or
// log2(n): each by 2^-24 of the terms' magnitudes, of either sign and mostly far less. What errors of 2^-19
// of every weight, which is 32 times one rounding, make of the logits is found by the source itself.
float tolerance(const Checkpoint& source, const std::vector<float>& logits, int64_t tokens,
                unsigned runs = 3) {
    float largest = 0;
    for (unsigned seed = 0; seed < runs; seed++)
        largest = std::max(largest, worst(logits, logits_of(Disturbed(source, 0x1p-19f, seed), tokens)));
    return largest;
}

struct Form {
    bool tied = true, bias = false;
    int64_t head_dim = 8, hidden = 32, wide = 48, layers = 2;
    DType type = DType::bf16;
};

TinyModel random_llama(const Form& form, unsigned seed) {
    const int64_t heads = TinyModel::heads, kv = TinyModel::kv_heads, hidden = form.hidden;
    TinyModel model;
    model.config["hidden_size"] = hidden;
    model.config["intermediate_size"] = form.wide;
    model.config["head_dim"] = form.head_dim;
    model.config["num_hidden_layers"] = form.layers;
    model.config["tie_word_embeddings"] = form.tied;
    model.config["attention_bias"] = model.config["mlp_bias"] = form.bias;
    std::mt19937 random(seed);
    const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
        int64_t count = 1;
        for (const int64_t size : shape) count *= size;
        TinyModel::Tensor& tensor = model.tensors[name];
        tensor = {form.type, std::move(shape), std::string(size_t(count) * size_of(form.type), '\0')};
        std::normal_distribution<float> values(mean, deviation);
        for (int64_t i = 0; i < count; i++) store_element(tensor.bytes.data(), form.type, i, values(random));
    };
    const auto linear = [&](const std::string& name, int64_t n, int64_t k) {
        add(name + ".weight", {n, k}, 0, 1 / std::sqrt(float(k)));
        if (form.bias && name != "lm_head") add(name + ".bias", {n}, 0, 0.5f);
    };
    add("model.embed_tokens.weight", {TinyModel::vocab, hidden}, 0.2f, 1);
    add("model.norm.weight", {hidden}, 1, 0.4f);
    if (!form.tied) linear("lm_head", TinyModel::vocab, hidden);
    for (int64_t i = 0; i < form.layers; i++) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        add(layer + "input_layernorm.weight", {hidden}, 1, 0.4f);
        add(layer + "post_attention_layernorm.weight", {hidden}, 1, 0.4f);
        linear(layer + "self_attn.q_proj", heads * form.head_dim, hidden);
        linear(layer + "self_attn.k_proj", kv * form.head_dim, hidden);
        linear(layer + "self_attn.v_proj", kv * form.head_dim, hidden);
        linear(layer + "self_attn.o_proj", hidden, heads * form.head_dim);
        linear(layer + "mlp.gate_proj", form.wide, hidden);
        linear(layer + "mlp.up_proj", form.wide, hidden);
        linear(layer + "mlp.down_proj", hidden, form.wide);
    }
    return model;
}

// Random numbers plus a multiple of 1: well conditioned, neither symmetric nor orthogonal.
fs::path write_matrix(const fs::path& file, int64_t n, unsigned seed, double diagonal = 2) {
    std::mt19937 random(seed);
    std::normal_distribution<double> values(0, 1 / std::sqrt(double(n)));
    std::vector<double> M(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n * n; i++) M[size_t(i)] = values(random) + (i % (n + 1) == 0 ? diagonal : 0);
    checkpoint::SafetensorsWriter writer(file, {{"T", DType::f64, {n, n}}}, {});
    writer.write("T", {reinterpret_cast<const uint8_t*>(M.data()), M.size() * 8});
    writer.finish();
    return file;
}

std::vector<TransformOptions> kinds(const fs::path& folder, uint64_t seed) {
    using enum TransformKind;
    std::vector<TransformOptions> all = {
        {.kind = quip, .block = 16, .seed = seed},
        {.kind = quip, .block = 0, .seed = seed},
        {.kind = hadamard, .block = 16, .seed = 0},
        {.kind = hadamard, .block = 0, .seed = 0},
        {.kind = file,
         .file = write_matrix(folder / ("T" + std::to_string(seed) + ".safetensors"), 16, unsigned(seed))},
    };
    for (const std::set<std::string>& rotations : std::vector<std::set<std::string>>{
             {"R1"}, {"R2"}, {"R3"}, {"R4"}, {"R1", "R2"}, {"R1", "R2", "R3", "R4"}})
        for (const int64_t block : {0, 16})
            all.push_back({.kind = spinquant, .block = block, .seed = seed, .rotations = rotations});
    for (TransformOptions& options : all) options.ignore = {"lm_head"};
    return all;
}

std::string name_of(const TransformOptions& options) {
    std::string name = std::to_string(int(options.kind)) + ", block " + std::to_string(options.block);
    for (const std::string& rotation : options.rotations) name += " " + rotation;
    return name;
}

const std::vector<Form> forms = {
    {},
    {.tied = false, .bias = true, .type = DType::f32},
    {.head_dim = 16, .type = DType::f16},  // 4 heads of 16 in a hidden size of 32
    {.tied = false, .bias = true, .head_dim = 4, .hidden = 48, .wide = 64},
};

TEST(RotatedCheckpoint, HasTheLogitsOfTheSource) {
    constexpr int64_t tokens = 12;
    const TemporaryFolder folder;
    float closest = INFINITY;
    for (size_t form = 0; form < forms.size(); form++) {
        for (uint64_t seed = 0; seed < 2; seed++) {
            const auto source = open(random_llama(forms[form], unsigned(10 * form + seed)),
                                     folder / (std::to_string(form) + "-" + std::to_string(seed)));
            const std::vector<float> expected = logits_of(*source, tokens);
            const float allowed = tolerance(*source, expected, tokens);
            for (TransformOptions options : kinds(folder.path(), seed)) {
                SCOPED_TRACE(testing::Message() << "form " << form << ", " << name_of(options));
                const Context context(2);
                const RotatedCheckpoint rotated(context, *source, options);
                const float difference = worst(expected, logits_of(rotated, tokens));
                EXPECT_LT(difference, allowed);
                if (difference > 0) closest = std::min(closest, allowed / difference);
            }
        }
    }
    RecordProperty("least_margin", std::to_string(closest));
}

TEST(RotatedCheckpoint, HasTheLogitsOfTheDemoModel) {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "takes minutes under sanitizers; small models run";
#endif
    const fs::path gguf = fs::path(HALFBYTE_BUILD_DIR) / ".." / "model" / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!fs::exists(gguf)) GTEST_SKIP() << gguf << " is not there";
    constexpr int64_t tokens = 16;
    const auto source = checkpoint::open_checkpoint(gguf);
    const std::vector<float> expected = logits_of(*source, tokens);
    const float allowed =
        tolerance(*source, expected, tokens, 1);  // the largest of 800,000 logits: one is enough
    for (const TransformOptions& options : std::vector<TransformOptions>{
             {.kind = TransformKind::quip, .block = 64, .seed = 1, .ignore = {"lm_head"}},
             {.kind = TransformKind::spinquant,
              .block = 64,
              .rotations = {"R1", "R2", "R3", "R4"},
              .ignore = {"lm_head"}}}) {
        const Context context;
        const RotatedCheckpoint rotated(context, *source, options);
        const float difference = worst(expected, logits_of(rotated, tokens));
        EXPECT_LT(difference, allowed) << name_of(options);
        RecordProperty("margin " + name_of(options), std::to_string(allowed / difference));
    }
}

// The same with every online matrix transposed, and with every folded weight of the source's: were either of
// them as good, the test above would show nothing.
class Transposed final : public Changed {
  public:
    explicit Transposed(const RotatedCheckpoint& source) : Changed(source), transforms_(source.transforms()) {
        const auto turn = [](auto& list) {
            for (auto& named : list) {
                checkpoint::NamedTransform other = *named;
                const Transform& T = named->transform;
                std::vector<double> values(size_t(T.n * T.n));
                for (int64_t i = 0; i < T.n; i++)
                    for (int64_t j = 0; j < T.n; j++)
                        values[size_t(j * T.n + i)] =
                            T.matrix.empty() ? entry(T, i, j) : T.matrix[size_t(i * T.n + j)];
                other.transform = make_transform(values, T.n, T.scale);
                named = std::make_shared<const checkpoint::NamedTransform>(other);
            }
        };
        for (auto& [module, linear] : transforms_.linear) turn(linear.input);
        for (auto& [module, attention] : transforms_.attention) turn(attention.q);  // k as it is
    }
    const checkpoint::Transforms& transforms() const override { return transforms_; }

  private:
    static double entry(const Transform& T, int64_t i, int64_t j) {
        return (T.signs.empty() ? 1.0f : T.signs[size_t(i)]) * sylvester(int(i), int(j));
    }
    checkpoint::Transforms transforms_;
};

TEST(RotatedCheckpoint, WouldShowATransposedMatrix) {
    constexpr int64_t tokens = 12;
    const TemporaryFolder folder;
    const auto source = open(random_llama({.head_dim = 16}, 5), folder / "model");
    const std::vector<float> expected = logits_of(*source, tokens);
    const float allowed = tolerance(*source, expected, tokens);
    int turned = 0;
    for (const TransformOptions& options : kinds(folder.path(), 3)) {
        const Context context(1);
        const RotatedCheckpoint rotated(context, *source, options);
        if (rotated.plan().tensors.empty() || options.kind == TransformKind::hadamard)
            continue;  // symmetric or folded
        turned++;
        EXPECT_GT(worst(expected, logits_of(Transposed(rotated), tokens)), 1000 * allowed)
            << name_of(options);
    }
    EXPECT_GE(turned, 6);
}

// Folds of every kind against products written out here.
TEST(RotatedCheckpoint, FoldsWhatTheFormulasSay) {
    const TemporaryFolder folder;
    const auto source = open(
        random_llama({.tied = true, .bias = true, .head_dim = 16, .type = DType::f32}, 8), folder / "model");
    const Context context(3);
    const RotatedCheckpoint rotated(
        context, *source,
        {.kind = TransformKind::spinquant, .block = 0, .seed = 9, .rotations = {"R1", "R2"}});
    EXPECT_FALSE(rotated.config().tie_word_embeddings);
    EXPECT_TRUE(rotated.transforms().linear.empty());
    EXPECT_TRUE(rotated.plan().tensors.empty());
    const auto read = [](const Checkpoint& from, const std::string& name) {
        std::vector<uint8_t> buffer;
        const DenseTensor& tensor = from.dense().at(name);
        const uint8_t* data = from.read(name, 0, tensor.shape.size() == 2 ? tensor.shape[0] : 1, buffer);
        std::vector<double> values;
        for (int64_t i = 0; i < tensor.elements(); i++) values.push_back(load_element(data, tensor.dtype, i));
        return values;
    };
    // The matrices, found from two tensors: E' = c E R1, and the bias of v, b' = c b R2 for each head.
    const int64_t hidden = 32, d = 16, heads = 4;
    const auto matrix = [](uint64_t seed, int64_t n) {
        SquareMatrix M = *hadamard_matrix(n);
        const auto signs = random_signs(n, seed);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                M.values[size_t(i * n + j)] *= signs[size_t(i)] / std::sqrt(double(n));
        return M;
    };
    const SquareMatrix R1 = matrix(9 * 5 + 1, hidden), R2 = matrix(9 * 5 + 2, d);
    const auto o = read(*source, "model.layers.1.self_attn.o_proj.weight");
    const auto o_folded = read(rotated, "model.layers.1.self_attn.o_proj.weight");
    for (int64_t row = 0; row < hidden; row++)  // R1^T W R2
        for (int64_t head = 0; head < heads; head++)
            for (int64_t c = 0; c < d; c++) {
                double sum = 0;
                for (int64_t i = 0; i < hidden; i++)
                    for (int64_t j = 0; j < d; j++)
                        sum += R1.at(i, row) * o[size_t(i * heads * d + head * d + j)] * R2.at(j, c);
                ASSERT_NEAR(o_folded[size_t(row * heads * d + head * d + c)], sum,
                            std::fabs(sum) * 0x1p-24 + 1e-15);
            }
    const auto head = read(*source, "model.embed_tokens.weight"), norm = read(*source, "model.norm.weight");
    const auto head_folded = read(rotated, "lm_head.weight"),
               embedding = read(rotated, "model.embed_tokens.weight");
    for (int64_t row = 0; row < TinyModel::vocab; row++)
        for (int64_t c = 0; c < hidden; c++) {
            double sum = 0, plain = 0;
            for (int64_t k = 0; k < hidden; k++) {
                sum += head[size_t(row * hidden + k)] * norm[size_t(k)] * R1.at(k, c);
                plain += head[size_t(row * hidden + k)] * R1.at(k, c);
            }
            ASSERT_NEAR(head_folded[size_t(row * hidden + c)], sum, std::fabs(sum) * 0x1p-24 + 1e-15);
            ASSERT_NEAR(embedding[size_t(row * hidden + c)], plain, std::fabs(plain) * 0x1p-24 + 1e-15);
        }
    for (const double one : read(rotated, "model.layers.0.input_layernorm.weight")) EXPECT_EQ(one, 1);
    const auto bias = read(*source, "model.layers.0.self_attn.v_proj.bias");
    const auto bias_folded = read(rotated, "model.layers.0.self_attn.v_proj.bias");
    for (int64_t c = 0; c < d; c++) {
        double sum = 0;
        for (int64_t k = 0; k < d; k++) sum += bias[size_t(d + k)] * R2.at(k, c);  // the second head
        EXPECT_NEAR(bias_folded[size_t(d + c)], sum, std::fabs(sum) * 0x1p-24 + 1e-15);
    }
}

// Any pieces, any number of threads: the same bytes.
TEST(RotatedCheckpoint, PiecesAndThreadsChangeNoByte) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({.bias = true, .hidden = 48, .wide = 96}, 12), folder / "model");
    for (const TransformOptions& options : kinds(folder.path(), 4)) {
        SCOPED_TRACE(name_of(options));
        const Context one(1), four(4);
        const RotatedCheckpoint a(one, *source, options), b(four, *source, options);
        for (const auto& [name, tensor] : a.dense()) {
            const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
            std::vector<uint8_t> whole, piece;
            const uint8_t* all = a.read(name, 0, rows, whole);
            const size_t row_bytes = size_t(tensor.elements() / rows) * size_of(tensor.dtype);
            for (int64_t first = 0; first < rows; first += 5) {
                const int64_t count = std::min<int64_t>(5, rows - first);
                const uint8_t* part = b.read(name, first, count, piece);
                ASSERT_EQ(std::memcmp(all + size_t(first) * row_bytes, part, size_t(count) * row_bytes), 0)
                    << name << " at row " << first;
            }
        }
    }
}

// Full width orders of every form: butterflies alone, a core alone, both.
TEST(Fold, IsTheMatrixProduct) {
    std::mt19937 random(1);
    std::normal_distribution<double> values;
    std::vector<SquareMatrix> matrices;
    for (const int64_t n : {1, 2, 8, 12, 16, 20, 24, 28, 64, 96, 144})
        for (const bool signs : {false, true}) {
            SquareMatrix M = *hadamard_matrix(n);
            const auto r = random_signs(n, 17);
            if (signs)
                for (int64_t i = 0; i < n * n; i++) M.values[size_t(i)] *= r[size_t(i / n)];
            matrices.push_back(M);
        }
    for (const int64_t n : {2, 5, 16}) {
        SquareMatrix M{n, std::vector<double>(size_t(n * n))};
        for (double& value : M.values) value = values(random);
        matrices.push_back(M);
    }
    for (const SquareMatrix& M : matrices) {
        const int64_t n = M.n, count = 3;
        const Fold fold(M, 0.5);
        std::vector<double> x(size_t(n * count)), scratch;
        for (double& value : x) value = values(random);
        std::vector<double> y = x;
        fold.apply(y.data(), count, scratch);
        for (int64_t c = 0; c < count; c++) {
            std::vector<double> column(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; i++) column[size_t(i)] = x[size_t(i * count + c)];
            fold.apply(column.data(), 1, scratch);
            for (int64_t j = 0; j < n; j++) {
                double sum = 0, magnitude = 0;
                for (int64_t i = 0; i < n; i++) {
                    sum += x[size_t(i * count + c)] * M.at(i, j);
                    magnitude += std::fabs(x[size_t(i * count + c)] * M.at(i, j));
                }
                EXPECT_NEAR(y[size_t(j * count + c)], 0.5 * sum, double(n) * 0x1p-52 * magnitude) << n;
                EXPECT_EQ(y[size_t(j * count + c)], column[size_t(j)]);
            }
        }
    }
}

TEST(PlanRotation, RefusesWhatDoesNotFitAndSaysWhatDoes) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({.wide = 80, .layers = 1}, 1), folder / "model");
    const auto refuse = [&](TransformOptions options, const char* text) {
        options.ignore = {"lm_head"};
        test::expect_error(ErrorKind::usage, text, [&] { plan_rotation(*source, options); });
    };
    using enum TransformKind;
    refuse({.kind = quip, .block = 32},
           "--transform-block 32: model.layers.0.mlp.down_proj has inputs 80 wide, which blocks of 32 do not "
           "divide; what "
           "fits here: 16, full");
    refuse({.kind = spinquant, .block = 64, .rotations = {"R1"}},
           "is 32 wide, which blocks of 64 do not divide; what fits here: 16, 32, full");
    refuse({.kind = spinquant, .rotations = {"R5"}}, "R1, R2, R3 and R4 are");
    refuse({.kind = spinquant, .rotations = {}}, "one of R1, R2, R3 and R4");
    refuse({.kind = file, .file = write_matrix(folder / "32.safetensors", 32, 1)},
           "the matrix is [32, 32], and model.layers.0.mlp.down_proj has inputs 80 wide, which blocks of 32 "
           "do not divide; "
           "sizes that do, for all layers: 2, 4, 8, 16");
    refuse({.kind = file, .file = folder / "32.safetensors", .block = 16, .block_given = true},
           "--transform-block 16");
    const auto odd = open(random_llama({.wide = 92, .layers = 1}, 1), folder / "odd");
    test::expect_error(ErrorKind::usage, "inputs 92 wide, and no Hadamard matrix of that order",
                       [&] { plan_rotation(*odd, {.kind = hadamard, .block = 0, .ignore = {"lm_head"}}); });
}

TEST(PlanRotation, RefusesAMatrixWithoutAUsableInverse) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({}, 1), folder / "model");
    const auto write = [&](std::vector<double> M, std::vector<int64_t> shape) {
        checkpoint::SafetensorsWriter writer(folder / "M.safetensors", {{"T", DType::f64, std::move(shape)}},
                                             {});
        writer.write("T", {reinterpret_cast<const uint8_t*>(M.data()), M.size() * 8});
        writer.finish();
    };
    const TransformOptions options = {.kind = TransformKind::file, .file = folder / "M.safetensors"};
    const auto refuse = [&](ErrorKind kind, const char* text) {
        test::expect_error(kind, text, [&] { plan_rotation(*source, options); });
        fs::remove(folder / "M.safetensors");
    };
    write({1, 2, 2, 4}, {2, 2});
    refuse(ErrorKind::usage, "is singular");
    write({1, 0, 0, 1e-5}, {2, 2});
    refuse(ErrorKind::usage, "has the condition 5e+04");
    write({1, 2}, {1, 2});
    refuse(ErrorKind::malformed, "[n, n]");
    write({1, 0, 0, 1e300}, {2, 2});
    refuse(ErrorKind::malformed, "holds 1e+300 at [1, 1]");
    write({1e-44, 0, 0, 1e-44}, {2, 2});
    refuse(ErrorKind::usage,
           "the matrix has the magnitude |T| / sqrt(n) = 9.809e-45; 2^-32 to 2^32 is needed");
    write({1e12, 0, 0, 1e12}, {2, 2});
    refuse(ErrorKind::usage, "multiply the matrix by 1e-12");
    write({1, 0, 0, 2}, {2, 2});
    EXPECT_EQ(plan_rotation(*source, options).tensors.size(), 1u);
}

// A singular matrix of a size that fits no layer: it is the size that is named, so nothing was inverted yet.
TEST(PlanRotation, ChecksTheSizeOfAMatrixBeforeItIsInverted) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({}, 1), folder / "model");
    const fs::path file = folder / "M.safetensors";
    checkpoint::SafetensorsWriter writer(file, {{"T", DType::f64, {7, 7}}}, {});
    const std::vector<double> zeros(49);
    writer.write("T", {reinterpret_cast<const uint8_t*>(zeros.data()), zeros.size() * 8});
    writer.finish();
    test::expect_error(ErrorKind::usage, "which blocks of 7 do not divide",
                       [&] { plan_rotation(*source, {.kind = TransformKind::file, .file = file}); });
}

TEST(PlanRotation, ReadsAMatrixOfEveryFloatType) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({}, 1), folder / "model");
    const std::vector<float> values = {1, 2, -0.5f, 4};
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        const fs::path file = folder / "M.safetensors";
        std::vector<uint8_t> bytes(4 * size_of(type));
        for (int64_t i = 0; i < 4; i++) store_element(bytes.data(), type, i, values[size_t(i)]);
        checkpoint::SafetensorsWriter writer(file, {{"T", type, {2, 2}}}, {});
        writer.write("T", bytes);
        writer.finish();
        const RotationPlan plan = plan_rotation(*source, {.kind = TransformKind::file, .file = file});
        EXPECT_EQ(plan.tensors.at(0).matrix->values, (std::vector<double>{1, 2, -0.5, 4}));
    }
}

// Weights beyond 172,032 have a global scale that the reader takes for a decode scale: none is written.
TEST(QuantizeCheckpoint, RefusesWeightsThatCouldNotBeRead) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({}, 1), folder / "model");
    const Context context(2);
    const fs::path file = folder / "M.safetensors", out = folder / "out";
    const auto quantize_with = [&](float diagonal) {
        std::vector<float> M(256);
        for (size_t i = 0; i < 16; i++) M[17 * i] = diagonal;
        checkpoint::SafetensorsWriter writer(file, {{"T", DType::f32, {16, 16}}}, {});
        writer.write("T", {reinterpret_cast<const uint8_t*>(M.data()), M.size() * 4});
        writer.finish();
        const RotatedCheckpoint rotated(context, *source,
                                        {.kind = TransformKind::file, .file = file, .ignore = {"lm_head"}});
        quantize_checkpoint(context, *source, {}, out,
                            {.scheme = checkpoint::Scheme::nvfp4a16, .rotated = &rotated});
    };
    test::expect_error(ErrorKind::usage, "M.safetensors: the inverse of the matrix takes model.layers.0.",
                       [&] { quantize_with(1e-6f); });
    test::expect_error(ErrorKind::usage, "multiply the matrix by 1e+06 or more",
                       [&] { quantize_with(1e-6f); });
    EXPECT_FALSE(fs::exists(out));
    quantize_with(1);
    checkpoint::open_checkpoint(out);

    TinyModel model = random_llama({.type = DType::f32}, 1);
    store_element(model.tensors.at("model.layers.1.mlp.up_proj.weight").bytes.data(), DType::f32, 0, 2e5f);
    const auto large = open(model, folder / "large");
    test::expect_error(ErrorKind::failure, "mlp.up_proj is 200000; at most 172032 can be written", [&] {
        quantize_checkpoint(context, *large, {}, folder / "never", {.scheme = checkpoint::Scheme::nvfp4a16});
    });
    EXPECT_FALSE(fs::exists(folder / "never"));
}

TEST(QuantizeCheckpoint, WritesARotatedModel) {
    const TemporaryFolder folder;
    const auto source = open(random_llama({.head_dim = 16, .wide = 64}, 21), folder / "model");
    int number = 0;
    for (const TransformOptions& options : kinds(folder.path(), 7)) {
        SCOPED_TRACE(name_of(options));
        const Context context(2);
        const RotatedCheckpoint rotated(context, *source, options);
        const fs::path out = folder / ("out" + std::to_string(number++));
        const QuantizeReport report = quantize_checkpoint(
            context, *source, {}, out, {.scheme = checkpoint::Scheme::nvfp4a16, .rotated = &rotated});
        const auto made = checkpoint::open_checkpoint(out);
        EXPECT_EQ(report.output_bytes, made->weight_bytes());
        EXPECT_EQ(report.source_bytes, source->weight_bytes());
        EXPECT_EQ(made->config().tie_word_embeddings, rotated.config().tie_word_embeddings);
        // The transforms that are read are those that were made, matrix for matrix.
        const checkpoint::Transforms &wanted = rotated.transforms(), &read = made->transforms();
        ASSERT_EQ(wanted.linear.size(), read.linear.size());
        for (const auto& [module, linear] : wanted.linear) {
            const auto& input = read.linear.at(module).input;
            ASSERT_EQ(input.size(), 1u);
            EXPECT_EQ(input[0]->scheme, linear.input[0]->scheme);
            EXPECT_EQ(input[0]->type, linear.input[0]->type);
            EXPECT_EQ(input[0]->transform.n, linear.input[0]->transform.n);
            EXPECT_EQ(input[0]->transform.matrix, linear.input[0]->transform.matrix);
            EXPECT_EQ(input[0]->transform.signs, linear.input[0]->transform.signs);
            EXPECT_EQ(input[0]->transform.scale, linear.input[0]->transform.scale);
        }
        ASSERT_EQ(wanted.attention.size(), read.attention.size());
        for (const auto& [module, attention] : wanted.attention) {
            EXPECT_EQ(read.attention.at(module).q.at(0)->transform.signs, attention.q[0]->transform.signs);
            EXPECT_EQ(read.attention.at(module).k.at(0)->transform.signs, attention.k[0]->transform.signs);
        }
        // Dense tensors: the FP32 values rounded once to the source's BF16.
        for (const auto& [name, tensor] : made->dense()) {
            EXPECT_EQ(tensor.dtype, DType::bf16) << name;
            std::vector<uint8_t> a, b;
            const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
            const uint8_t *stored = made->read(name, 0, rows, a), *folded = rotated.read(name, 0, rows, b);
            for (int64_t i = 0; i < tensor.elements(); i++)
                ASSERT_EQ(
                    load_element(stored, DType::bf16, i),
                    round_to_type(load_element(folded, rotated.dense().at(name).dtype, i), DType::bf16));
        }
        test::expect_error(ErrorKind::usage, "is quantised already",
                           [&] { RotatedCheckpoint(context, *made, options); });
    }
}

}  // namespace
}  // namespace halfbyte::quantizer
