#include "cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"

namespace halfbyte::cuda {
namespace {

constexpr const char* library_name = "libcublasLt.so.13";  // of the CUDA that this is built with

// The functions of the library that are used here.
struct Lt {
    decltype(&cublasLtCreate) create = nullptr;
    decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;
    std::string reason;
};

Lt open_library() {
    Lt lt;
    void* const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const said = dlerror();
        lt.reason =
            fmt::format("{} cannot be opened ({}); the CUDA toolkit or the package nvidia-cublas has it",
                        library_name, said == nullptr ? "the loader gives no reason" : said);
        return lt;
    }
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (function == nullptr) lt.reason = fmt::format("{} has no {}", library_name, name);
    };
    find(lt.create, "cublasLtCreate");
    find(lt.desc_create, "cublasLtMatmulDescCreate");
    find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
    find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
    find(lt.layout_create, "cublasLtMatrixLayoutCreate");
    find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
    find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(lt.matmul, "cublasLtMatmul");
    return lt;
}

const Lt& lt() {
    static const Lt opened = open_library();
    return opened;
}

void check_lt(cublasStatus_t status, const char* call) {
    check(status == CUBLAS_STATUS_SUCCESS, ErrorKind::failure, "{}: cuBLAS status {}", call, int(status));
}

// One for each device and all threads; like the library itself they stay to the end of the process.
cublasLtHandle_t handle_of_current_device() {
    static std::mutex mutex;
    static std::vector<cublasLtHandle_t> handles;
    const std::lock_guard lock(mutex);
    int device = 0;
    check(cudaGetDevice(&device) == cudaSuccess, ErrorKind::failure, "cudaGetDevice fails");
    if (size_t(device) >= handles.size()) handles.resize(size_t(device) + 1, nullptr);
    if (handles[size_t(device)] == nullptr) check_lt(lt().create(&handles[size_t(device)]), "cublasLtCreate");
    return handles[size_t(device)];
}

template <typename Handle>
struct Owned {
    Handle handle = nullptr;
    cublasStatus_t (*destroy)(Handle) = nullptr;
    Owned() = default;
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        if (handle != nullptr) destroy(handle);
    }
};

// cuBLASLt's objects for a product.
struct Described {
    Owned<cublasLtMatmulDesc_t> desc;
    Owned<cublasLtMatrixLayout_t> w, x, d;
    Owned<cublasLtMatmulPreference_t> preference;

    explicit Described(const LtProduct& p) {
        desc.destroy = lt().desc_destroy;
        check_lt(lt().desc_create(&desc.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
        set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
        if (p.operand == CUDA_R_4F_E2M1) {
            set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
            set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.w_scales);
            set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales);
        }
        layout(w, p.operand, p.k, p.n, p.w_stride);
        layout(x, p.operand, p.k, p.m, p.x_stride);
        layout(d, p.result, p.n, p.m, p.d_stride);
        preference.destroy = lt().preference_destroy;
        check_lt(lt().preference_create(&preference.handle), "cublasLtMatmulPreferenceCreate");
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(lt_workspace_bytes));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.x_alignment);
    }
    // The heuristic's first algorithm; false if it knows none.
    bool find(cublasLtMatmulHeuristicResult_t& result) const {
        int count = 0;
        const cublasStatus_t status =
            lt().heuristic(handle_of_current_device(), desc.handle, w.handle, x.handle, d.handle, d.handle,
                           preference.handle, 1, &result, &count);
        return status == CUBLAS_STATUS_SUCCESS && count > 0;
    }

  private:
    template <typename Value>
    void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
        check_lt(lt().desc_set(desc.handle, attribute, static_cast<const void*>(&value), sizeof value),
                 "cublasLtMatmulDescSetAttribute");
    }
    template <typename Value>
    void prefer(cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
        check_lt(
            lt().preference_set(preference.handle, attribute, static_cast<const void*>(&value), sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    }
    static void layout(Owned<cublasLtMatrixLayout_t>& owned, cudaDataType_t type, int64_t rows,
                       int64_t columns, int64_t stride) {
        owned.destroy = lt().layout_destroy;
        check_lt(lt().layout_create(&owned.handle, type, uint64_t(rows), uint64_t(columns), stride),
                 "cublasLtMatrixLayoutCreate");
    }
};

struct Known {
    int device;
    LtProduct product;  // without the places of its scales
    std::optional<cublasLtMatmulAlgo_t> algorithm;
};
constexpr size_t most_known = 256;

// What the heuristic says of the product on the current device, asked once.
std::optional<cublasLtMatmulAlgo_t> algorithm_of(const Described& described, LtProduct product) {
    thread_local std::vector<Known> known;
    product.x_scales = product.w_scales = nullptr;
    int device = 0;
    check(cudaGetDevice(&device) == cudaSuccess, ErrorKind::failure, "cudaGetDevice fails");
    const auto found = std::find_if(known.begin(), known.end(), [&](const Known& one) {
        return one.device == device && one.product == product;
    });
    if (found != known.end()) return found->algorithm;
    cublasLtMatmulHeuristicResult_t result = {};
    std::optional<cublasLtMatmulAlgo_t> algorithm;
    if (described.find(result)) algorithm = result.algo;
    if (known.size() == most_known) known.erase(known.begin());
    known.push_back({device, product, algorithm});
    return algorithm;
}

}  // namespace

std::string lt_unavailable_reason() {
    return lt().reason;
}

std::string lt_unsupported_reason(const LtProduct& product) {
    if (!lt().reason.empty()) return lt().reason;
    return algorithm_of(Described(product), product) ? "" : "cuBLASLt's heuristic: not supported";
}

void lt_matmul(const LtProduct& product, const void* x, const void* w, void* d, void* workspace,
               Stream stream) {
    check(lt().reason.empty(), ErrorKind::unsupported, "{}", lt().reason);
    const Described described(product);
    const std::optional<cublasLtMatmulAlgo_t> algorithm = algorithm_of(described, product);
    check(algorithm.has_value(), ErrorKind::unsupported, "cuBLASLt's heuristic: not supported");
    const float one = 1.0f, zero = 0.0f;
    check_lt(lt().matmul(handle_of_current_device(), described.desc.handle, &one, w, described.w.handle, x,
                         described.x.handle, &zero, d, described.d.handle, d, described.d.handle, &*algorithm,
                         workspace, size_t(lt_workspace_bytes), stream),
             "cublasLtMatmul");
}

uint32_t lt_alignment_of(const void* address) {
    const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
    return uint32_t(bits & ~(bits - 1));
}

LtProduct lt_product(const MatmulW4A16Args& args) {
    return {.operand = args.x.type == DType::f16 ? CUDA_R_16F : CUDA_R_16BF,
            .result = CUDA_R_32F,
            .m = args.d.rows,
            .n = args.w.n,
            .k = args.w.k,
            .x_stride = args.x.stride,
            .w_stride = round_up(args.w.k, gpu_group_k),
            .d_stride = args.w.n,
            .x_alignment = lt_alignment_of(args.x.data)};
}

LtProduct lt_product(const MatmulW4A4Args& args, const uint8_t* w_scales) {
    return {.operand = CUDA_R_4F_E2M1,
            .result = CUDA_R_32F,
            .m = args.d.rows,
            .n = args.w.n,
            .k = args.w.k,
            .x_stride = args.a.shape.padded_k,
            .w_stride = args.w.k,
            .d_stride = args.w.n,
            .x_alignment = lt_alignment_of(args.a.codes),
            .x_scales = args.a.block_scales,
            .w_scales = w_scales};
}

}  // namespace halfbyte::cuda
