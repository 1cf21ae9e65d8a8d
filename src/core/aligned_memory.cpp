#include "core/aligned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace halfbyte {

static size_t rounded_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

Memory allocate_aligned(size_t bytes, size_t alignment) {
    const size_t size = rounded_up(std::max<size_t>(bytes, 1), alignment);
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

Memory allocate_huge_pages(size_t bytes) {
    Memory memory = allocate_aligned(bytes, huge_page_bytes);
    ::madvise(memory.get(), rounded_up(bytes, huge_page_bytes), MADV_HUGEPAGE);
    return memory;
}

void* HugePages::do_allocate(size_t bytes, size_t alignment) {
    constexpr size_t line = 64, chunk = 64 << 20;  // pages that are not touched take no memory
    used_ = rounded_up(used_, std::max(alignment, line));
    if (chunks_.empty() || bytes > size_ - std::min(used_, size_)) {
        size_ = std::max(rounded_up(bytes, huge_page_bytes), chunk);
        chunks_.push_back(allocate_huge_pages(size_));
        used_ = 0;
    }
    std::byte* const piece = chunks_.back().get() + used_;
    used_ += bytes;
    return piece;
}

}  // namespace halfbyte
