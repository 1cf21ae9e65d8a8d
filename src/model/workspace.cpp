#include "model/workspace.h"

#include <algorithm>

namespace halfbyte::model {

constexpr size_t alignment = 64, smallest_block = 1 << 20;

void* Workspace::take_bytes(size_t bytes) {
    bytes = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
        block_++;
        used_ = 0;
    }
    if (block_ == blocks_.size()) {
        if (bytes >= 2 * huge_page_bytes) {
            blocks_.push_back({allocate_huge_pages(bytes), bytes});
        } else {
            const size_t size = std::max(bytes, smallest_block);
            blocks_.push_back({allocate_aligned(size, alignment), size});
        }
    }
    void* const taken = blocks_[block_].memory.get() + used_;
    used_ += bytes;
    return taken;
}

}  // namespace halfbyte::model
