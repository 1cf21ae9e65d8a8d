// Memory that a forward pass works in: taken piece by piece, given back by leaving a Scope, and kept for the
// next layer and the next pass. A pass of 512 positions takes megabytes for each layer; from the system anew
// they would cost a page fault for every 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/aligned_memory.h"

namespace halfbyte::model {

class Workspace {
  public:
    // Not initialised, 64-byte aligned, good until the innermost Scope ends.
    template <typename T>
    T* take(int64_t count) {
        static_assert(std::is_trivially_destructible_v<T>);
        return static_cast<T*>(take_bytes(size_t(count) * sizeof(T)));
    }

    // A distance of rows, in floats, for a matrix that is written a few columns at a time: rows a multiple of
    // 2 KiB apart would share a few sets of a cache and push each other out.
    static constexpr int64_t row_stride(int64_t floats) {
        constexpr int64_t line = 64 / sizeof(float);
        const int64_t lines = (floats + line - 1) / line;
        return (lines % 32 == 0 ? lines + 1 : lines) * line;
    }

    // Gives back what has been taken since it began.
    class Scope {
      public:
        explicit Scope(Workspace& workspace)
            : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
        ~Scope() {
            workspace_.block_ = block_;
            workspace_.used_ = used_;
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        Workspace& workspace_;
        size_t block_, used_;
    };

  private:
    void* take_bytes(size_t bytes);

    struct Block {
        Memory memory;
        size_t size;
    };
    std::vector<Block> blocks_;
    size_t block_ = 0, used_ = 0;  // the block in use, and the bytes of it that are taken
};

}  // namespace halfbyte::model
