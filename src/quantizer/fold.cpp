#include "quantizer/fold.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace halfbyte::quantizer {
namespace {

// U = diag(1, s) [[V, V], [V, -V]] with signs s [n/2]: s, if that is so.
std::optional<std::vector<double>> halve(const SquareMatrix& U) {
    if (U.n % 2 != 0) return {};
    const int64_t h = U.n / 2;
    std::vector<double> signs(static_cast<size_t>(h));
    for (int64_t i = 0; i < h; i++) {
        const double s = U.at(i + h, 0) == U.at(i, 0) ? 1 : -1;
        for (int64_t j = 0; j < h; j++) {
            const double v = U.at(i, j);
            if (U.at(i, j + h) != v || U.at(i + h, j) != s * v || U.at(i + h, j + h) != -s * v) return {};
        }
        signs[size_t(i)] = s;
    }
    return signs;
}

SquareMatrix top_left(const SquareMatrix& U, int64_t n) {
    SquareMatrix V{n, std::vector<double>(size_t(n * n))};
    for (int64_t i = 0; i < n; i++) std::copy_n(U.values.data() + i * U.n, n, V.values.data() + i * n);
    return V;
}

}  // namespace

Fold::Fold(SquareMatrix U, double scale) : n_(U.n), scale_(scale), core_(std::move(U)) {
    std::vector<std::vector<double>> halves;
    while (auto signs = halve(core_)) {
        halves.push_back(std::move(*signs));
        core_ = top_left(core_, core_.n / 2);
    }
    // The signs of each level act on both halves of the level above, so they can all be applied first.
    signs_.assign(size_t(core_.n), 1.0);
    for (auto level = halves.rbegin(); level != halves.rend(); ++level) {
        const size_t h = signs_.size();
        signs_.resize(2 * h);
        for (size_t i = 0; i < h; i++) signs_[h + i] = (*level)[i] * signs_[i];
    }
}

void Fold::apply(double* x, int64_t count, std::vector<double>& scratch) const {
    for (int64_t i = 0; i < n_; i++)
        for (int64_t c = 0; c < count; c++) x[i * count + c] *= signs_[size_t(i)];
    for (int64_t h = n_ / 2; h >= core_.n; h /= 2)
        for (int64_t first = 0; first < n_; first += 2 * h) {
            double *a = x + first * count, *b = a + h * count;
            for (int64_t i = 0; i < h * count; i++) {
                const double sum = a[i] + b[i], difference = a[i] - b[i];
                a[i] = sum;
                b[i] = difference;
            }
        }
    const int64_t k = core_.n;
    scratch.resize(size_t(k * count));
    for (int64_t first = 0; first < n_; first += k) {  // y_j = sum over i of x_i V_ij, i in order
        double* block = x + first * count;
        std::fill(scratch.begin(), scratch.end(), 0.0);
        for (int64_t i = 0; i < k; i++) {
            const double* row = core_.values.data() + i * k;
            if (count == 1) {
                for (int64_t j = 0; j < k; j++) scratch[size_t(j)] += block[i] * row[j];
                continue;
            }
            for (int64_t j = 0; j < k; j++)
                for (int64_t c = 0; c < count; c++)
                    scratch[size_t(j * count + c)] += block[i * count + c] * row[j];
        }
        for (int64_t i = 0; i < k * count; i++) block[i] = scratch[size_t(i)] * scale_;
    }
}

}  // namespace halfbyte::quantizer
