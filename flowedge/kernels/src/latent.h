// Latent attention: all heads read one key of each row, which is its value too.
#pragma once

#include "products.h"

namespace flowedge {

// What a layer computes around its one key head. A key is a normed latent vector and a part that rotates. A matrix of
// each head multiplies the part of its query that does not rotate; another one, the sum of latent vectors that is attended
// to. Matrices are floats.
struct Latent {
    int64_t heads, rank, rotated;  // rank: numbers of a latent vector
    int64_t plain, value;          // numbers of a head's query that do not rotate, and of its value
    Linear queries;                // from normed vectors to queries of heads; its weight is null where rows are multiplied
    const float *query_norm, *key_norm;  // [queries.in], [rank]
    float epsilon;                 // of these norms
    int32_t paired;                // whether the two numbers that an angle turns lie side by side
    const Linear *keys, *values;   // [heads] each, to `rank` and to `value` numbers

    int64_t query() const { return plain + rotated; }  // numbers of a head's query before the product
    int64_t vector() const { return rank + rotated; }  // numbers of a key, and of a query behind the product

    // Numbers of the operands of all heads' products for some rows: those of a head lie together.
    int64_t operand_floats(int64_t rows) const { return Operand::floats(heads * rows, std::max(plain, rank)); }

    // The part of a head's projection that rotates, with the first numbers of all pairs before the second ones.
    void take_rotated(const float* from, float* to) const {
        const int64_t half = rotated / 2;
        for (int64_t i = 0; i < rotated; i++) to[i] = paired ? from[i < half ? 2 * i : 2 * (i - half) + 1] : from[i];
    }

    // A thread's part of the products of all heads for the rows of their operands; each head's lie `step` numbers apart.
    void multiply(const Linear* linears, const Operand& operand, int64_t rows, float* output, int64_t step, int64_t stride,
                  const Team& team) const {
        const int64_t units = units_of(linears[0]);
        const Range own = team.share(heads * units);
        for (int64_t head = own.start / units; head * units < own.stop; head++) {
            const int64_t before = head * units;
            const Range part{std::max(own.start - before, (int64_t)0), std::min(own.stop - before, units)};
            flowedge::multiply(operand.rows(heads * rows, linears[head]), head * rows, rows, linears[head], part,
                               output + head * step, stride);
        }
    }
};

}  // namespace flowedge
