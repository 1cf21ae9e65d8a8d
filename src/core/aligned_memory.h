// Memory aligned as vectors, cache lines or huge pages want it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <vector>

namespace halfbyte {

inline constexpr size_t huge_page_bytes = 2 << 20;  // of x86-64, and of AArch64 with pages of 4 KiB

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

// Not initialised; `bytes` are rounded up to a multiple of the alignment, a power of two. Throws
// std::bad_alloc.
Memory allocate_aligned(size_t bytes, size_t alignment);

// The same aligned to huge pages, which the system is asked for. Weights are read whole for each token: with
// pages of 4 KiB the walks through the page tables took a tenth to a fifth of that time on a virtual machine
// with AVX2 (SmolLM2-135M, W4A4).
Memory allocate_huge_pages(size_t bytes);

// For many pieces that live as long as it does, 64-byte aligned, one behind the other in chunks; giving back
// a piece does nothing. Serves one thread at a time.
class HugePages : public std::pmr::memory_resource {
  private:
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void*, size_t, size_t) override {}
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        return this == &other;
    }

    std::vector<Memory> chunks_;
    size_t used_ = 0, size_ = 0;  // of the last chunk
};

}  // namespace halfbyte
