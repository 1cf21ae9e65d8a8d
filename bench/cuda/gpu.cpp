#include "gpu.h"

#include <algorithm>

namespace halfbyte::bench {

using conformance::check_cuda;

constexpr int replays = 21, warm_ups = 2;
constexpr int64_t rotated_bytes = 1100 << 20, graph_bytes = int64_t(4) << 30, most_launches = 512;
constexpr int64_t other_bytes = int64_t(1) << 30;  // read to clear L2
constexpr int64_t cycles_ahead = 4000;             // a launch, about 2 us: the host is done before

Gpu::Gpu(const cuda::DeviceInfo& info)
    : info_(info), memory_(int64_t(9) << 28), other_(other_bytes), workspace_(4096) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    check_cuda(cudaMemsetAsync(workspace_.data(), 0, size_t(workspace_.bytes()), stream_), "cudaMemsetAsync");
    fill(stream_, other_.data(), Content::normal, DType::bf16, other_.bytes() / 2, 1, 0.0f);
    fill(stream_, memory_.data(), Content::normal, DType::bf16, memory_.bytes() / 2, 2, 0.0f);
    synchronize();
}

Gpu::~Gpu() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
}

void Gpu::fill_set(const Buffers& buffers, uint8_t* set, int64_t number) {
    uint64_t seed = uint64_t(number) * 16 + 3;
    for (const Region& region : buffers.regions())
        fill(stream_, set + region.offset, region.content, region.type,
             region.bytes / int64_t(size_of(region.type)), seed++, region.value);
}

void Gpu::synchronize() {
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

std::vector<uint8_t> Gpu::fetch(const uint8_t* data, int64_t bytes) {
    std::vector<uint8_t> copied(size_t(std::max<int64_t>(bytes, 0)));
    synchronize();
    check_cuda(cudaMemcpy(copied.data(), data, copied.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copied;
}

double Gpu::event_microseconds() {
    float milliseconds = 0;
    synchronize();
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return double(milliseconds) * 1e3;
}

double Gpu::time(int64_t launches, const std::function<void(int64_t)>& enqueue) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
        for (int64_t i = 0; i < launches; i++) enqueue(i);
    } catch (...) {
        cudaStreamEndCapture(stream_, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
    const std::unique_ptr<CUgraphExec_st, cudaError_t (*)(cudaGraphExec_t)> owner(exec, cudaGraphExecDestroy);
    std::vector<double> times;
    for (int i = -warm_ups; i < replays; i++) {
        spin(stream_, launches * cycles_ahead);
        read(stream_, other_.data(), other_.bytes());
        check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
        check_cuda(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
        check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
        const double microseconds = event_microseconds();
        if (i >= 0) times.push_back(microseconds / double(launches));
    }
    std::nth_element(times.begin(), times.begin() + replays / 2, times.end());
    return times[replays / 2];
}

double Gpu::time(const Work& work, int64_t most_sets) {
    const int64_t bytes = work.buffers.bytes();
    const int64_t sets =
        std::clamp<int64_t>(std::min(rotated_bytes / bytes + 1, memory_.bytes() / bytes), 1, most_sets);
    const int64_t launches =
        std::clamp<int64_t>(graph_bytes / bytes, std::max<int64_t>(sets, 10), most_launches);
    for (int64_t i = 0; i < sets; i++) fill_set(work.buffers, memory() + i * bytes, i);
    return time(launches, [&](int64_t i) { work.launch(memory() + i % sets * bytes, launch()); });
}

double Gpu::clock_mhz() {
    constexpr int64_t cycles = 4'000'000;
    for (int i = 0; i < 2; i++) {
        check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
        spin(stream_, cycles);
        check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
        synchronize();
    }
    return double(cycles) / event_microseconds();
}

}  // namespace halfbyte::bench
