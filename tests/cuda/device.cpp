#include "cuda/device.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace halfbyte::conformance {

void check_cuda(cudaError_t error, const char* call) {
    check(error == cudaSuccess, ErrorKind::failure, "{}: {} ({})", call, cudaGetErrorString(error),
          cudaGetErrorName(error));
}

DeviceMemory::DeviceMemory(int64_t bytes) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, size_t(std::max<int64_t>(bytes, 1))), "cudaMalloc");
}

DeviceMemory::~DeviceMemory() {
    cudaFree(data_);
}

namespace {

class Gpu : public Device {
  public:
    explicit Gpu(const cuda::DeviceInfo& info) : info_(info) {
        check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    ~Gpu() override { cudaStreamDestroy(stream_); }

    cuda::DeviceInfo info() const override { return info_; }

    uint8_t* load(const std::vector<uint8_t>& image) override {
        if (image_ == nullptr || image_->bytes() < int64_t(image.size()))
            image_ = std::make_unique<DeviceMemory>(int64_t(image.size()));
        size_ = image.size();
        check_cuda(cudaMemcpyAsync(image_->data(), image.data(), size_, cudaMemcpyHostToDevice, stream_),
                   "cudaMemcpyAsync to the device");
        return image_->data();
    }

    void launch(int64_t workspace_bytes, const LaunchFunction& kernel, int64_t scratch_bytes) override {
        if (workspace_ == nullptr || workspace_->bytes() < workspace_bytes) {
            workspace_ = std::make_unique<DeviceMemory>(workspace_bytes + 4096);
            check_cuda(cudaMemsetAsync(workspace_->data(), 0, size_t(workspace_->bytes()), stream_),
                       "cudaMemsetAsync");
        }
        if (scratch_bytes > 0 && (scratch_ == nullptr || scratch_->bytes() < scratch_bytes + 16))
            scratch_ = std::make_unique<DeviceMemory>(scratch_bytes + 16);
        // The last that is aligned to 16 alone, so that compute-sanitizer sees what is written behind it.
        uint8_t* scratch = nullptr;
        if (scratch_bytes > 0) {
            scratch = scratch_->data() + (scratch_->bytes() - scratch_bytes) / 16 * 16;
            check_cuda(cudaMemsetAsync(scratch, 0xFF, size_t(scratch_bytes), stream_),
                       "cudaMemsetAsync of the scratch");
        }
        settled_ = !settled_;  // what is ahead of a launch is a copy, so both are true
        kernel({.stream = stream_,
                .workspace = workspace_bytes > 0 ? workspace_->data() : nullptr,
                .workspace_bytes = workspace_bytes,
                .scratch = scratch,
                .scratch_bytes = scratch_bytes,
                .weight_is_settled = settled_});
    }

    std::function<void()> capture(int64_t workspace_bytes, const LaunchFunction& kernel,
                                  int64_t scratch_bytes) override {
        // The workspace and the scratch are made outside of the capture.
        launch(workspace_bytes, [](const cuda::Launch&) {}, scratch_bytes);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t made = nullptr;
        check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
        try {
            launch(workspace_bytes, kernel, scratch_bytes);
        } catch (...) {
            cudaStreamEndCapture(stream_, &graph);
            throw;
        }
        check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
        check_cuda(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
        cudaGraphDestroy(graph);
        const std::shared_ptr<CUgraphExec_st> exec(made,
                                                   [](cudaGraphExec_t old) { cudaGraphExecDestroy(old); });
        return [this, exec] { check_cuda(cudaGraphLaunch(exec.get(), stream_), "cudaGraphLaunch"); };
    }

    std::vector<uint8_t> fetch() override {
        std::vector<uint8_t> image(size_);
        check_cuda(cudaMemcpyAsync(image.data(), image_->data(), size_, cudaMemcpyDeviceToHost, stream_),
                   "cudaMemcpyAsync to the host");
        check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
        return image;
    }

    bool workspace_is_zero(int64_t bytes) override {
        std::vector<uint8_t> found(size_t(std::min(bytes + 4096, workspace_->bytes())));
        check_cuda(cudaMemcpy(found.data(), workspace_->data(), found.size(), cudaMemcpyDeviceToHost),
                   "cudaMemcpy of the workspace");
        if (std::all_of(found.begin(), found.end(), [](uint8_t byte) { return byte == 0; })) return true;
        workspace_.reset();  // so that the next problem has a right one
        return false;
    }

  private:
    cuda::DeviceInfo info_;
    cudaStream_t stream_ = nullptr;
    std::unique_ptr<DeviceMemory> image_, workspace_, scratch_;
    size_t size_ = 0;
    bool settled_ = false;
};

class Host : public Device {
  public:
    explicit Host(bool spoil) : spoil_(spoil) {}
    cuda::DeviceInfo info() const override { return {.name = "host"}; }
    uint8_t* load(const std::vector<uint8_t>& image) override {
        image_ = image;
        return image_.data();
    }
    void launch(int64_t, const LaunchFunction& kernel, int64_t) override { kernel({}); }
    std::function<void()> capture(int64_t, const LaunchFunction& kernel, int64_t) override {
        return [kernel] { kernel({}); };
    }
    std::vector<uint8_t> fetch() override {
        std::vector<uint8_t> image = image_;
        if (spoil_) {
            const size_t word = size_t(random_.below(int64_t(image.size() / 4))) * 4;
            for (size_t i = word; i < word + 4; i++) image[i] ^= 0x40;
        }
        return image;
    }
    bool workspace_is_zero(int64_t) override { return true; }

  private:
    bool spoil_;
    test::Random random_{1};
    std::vector<uint8_t> image_;
};

}  // namespace

std::unique_ptr<Device> make_gpu(const cuda::DeviceInfo& info) {
    check_cuda(cudaSetDevice(info.ordinal), "cudaSetDevice");
    return std::make_unique<Gpu>(info);
}

std::unique_ptr<Device> make_host(bool spoil) {
    return std::make_unique<Host>(spoil);
}

}  // namespace halfbyte::conformance
