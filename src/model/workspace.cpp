#include "model/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace halfbyte::model {

constexpr size_t alignment = 64, smallest_block = 1 << 20;
constexpr size_t huge_page = 2 << 20;  // x86-64's and AArch64's with pages of 4 KiB

void Workspace::Free::operator()(std::byte* memory) const {
    std::free(memory);
}

void* Workspace::take_bytes(size_t bytes) {
    bytes = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
        block_++;
        used_ = 0;
    }
    if (block_ == blocks_.size()) {
        const bool huge = bytes >= 2 * huge_page;
        const size_t size =
            huge ? (bytes + huge_page - 1) / huge_page * huge_page : std::max(bytes, smallest_block);
        auto* const memory = static_cast<std::byte*>(std::aligned_alloc(huge ? huge_page : alignment, size));
        if (memory == nullptr) throw std::bad_alloc();
        if (huge) ::madvise(memory, size, MADV_HUGEPAGE);  // a wish
        blocks_.push_back({std::unique_ptr<std::byte[], Free>(memory), size});
    }
    void* const taken = blocks_[block_].memory.get() + used_;
    used_ += bytes;
    return taken;
}

}  // namespace halfbyte::model
