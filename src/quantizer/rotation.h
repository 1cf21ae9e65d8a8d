// Which transforms a checkpoint gets, and what each does to the tensors. Row convention: y = x W^T, T [n, n],
// block-diagonal; for a Hadamard T is the matrix of +-1 and c = 1/sqrt(n).
//   quip, hadamard, FILE   "v": every quantised layer gets x' = c x T online and W' = c^-1 W T^-T, so x' W'^T
//   = x W^T.
//                          quip: diag(random signs) times a Hadamard matrix; hadamard: without signs; FILE:
//                          any T
//   spinquant  R1  the residual stream r' = c r T: embedding, o_proj and down_proj write it (output side), q,
//   k, v,
//                  gate, up and lm_head read it. RMSNorm commutes with an orthogonal T but for its weight,
//                  which is folded into the layers behind it first. Nothing is left to run time.
//              R2  the values of each head: v_proj writes them, o_proj reads them. Nothing is left to run
//              time. R3  q and k of each head behind RoPE: q T (k T)^T = n q k^T. Online. R4  like v, for
//              down_proj alone.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quantizer/fold.h"

namespace halfbyte::quantizer {

enum class TransformKind { quip, hadamard, spinquant, file };

struct TransformOptions {
    TransformKind kind = TransformKind::quip;
    std::filesystem::path file;            // of kind `file`: a .safetensors with one [n, n] matrix
    int64_t block = 16;                    // n of v, R1 and R4; 0: the whole width
    bool block_given = false;              // for `file`, which has its own: whether it must be `block`
    uint64_t seed = 0;                     // of the signs of quip and spinquant
    std::set<std::string> rotations = {};  // of spinquant, "R1" to "R4"
    std::vector<std::string> ignore = {};  // as in QuantizeOptions
};

// What becomes of one tensor: read, columns times a norm's weight, folded on either side, rounded to FP32.
struct TensorFold {
    std::string source;                         // the tensor to read
    std::string norm;                           // columns times this RMSNorm weight first; empty: no
    std::shared_ptr<const Fold> input, output;  // a vector (bias) is one row: input
    bool ones = false;                          // an RMSNorm weight that was folded away
};

struct MatrixTensor {
    std::string name;
    std::shared_ptr<const SquareMatrix> matrix;
};

struct RotationPlan {
    std::map<std::string, TensorFold> folds;  // by tensor
    bool unties = false;                      // lm_head gets weights of its own
    checkpoint::Transforms online;
    checkpoint::Json transform_config;
    std::vector<MatrixTensor> tensors;  // the online matrices, to be stored in FP64
    std::vector<std::string> lines;     // what was done, for people
    // Of kind `file`, for messages, with |T| / sqrt(n): 1 for an orthogonal T.
    std::filesystem::path file;
    double file_magnitude = 1;
};

// Error (usage): a block that does not divide a layer, an order without a Hadamard matrix, a rotation that is
// not known; (unsupported, malformed, failure): FILE holds no invertible square matrix.
RotationPlan plan_rotation(const checkpoint::Checkpoint& source, const TransformOptions& options);

}  // namespace halfbyte::quantizer
