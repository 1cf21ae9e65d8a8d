// A block transform x' = fl(c x T) that owns what halfbyte/operations.h' BlockTransform points to. Made once
// from the matrix as a file or a caller gives it, never changed afterwards, and shared by every layer that
// uses it: the normalisation is the number c beside T and is applied with x', whoever loads what in which
// order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "halfbyte/operations.h"

namespace halfbyte {

struct Transform {
    int64_t n = 0;
    std::vector<float> matrix;  // T [n, n], T_kj at k * n + j; empty: Hadamard
    std::vector<float> signs;   // [n] of +-1, Hadamard only; empty: all +1
    float scale = 1.0f;         // c

    BlockTransform view() const;  // valid while this object lives where it is
};

// T [n, n], each entry rounded once to FP32; c = fl(scale). A T that is diag(+-1) times Sylvester's matrix
// becomes the butterfly, any other stays a matrix, whatever its file calls it. Entries that are not finite in
// FP32 stay so; who reads a file refuses them.
Transform make_transform(std::span<const double> T, int64_t n, double scale);

}  // namespace halfbyte
