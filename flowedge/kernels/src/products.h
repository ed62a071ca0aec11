// Products of rows with the weights of a linear layer.
//
// Each element of a product is added up in an order that depends on the length of the rows alone: not on the
// number of rows, not on the element's place, not on the number of threads.
#pragma once

#include "float_tiles.h"
#include "integer_tiles.h"
#include "threads.h"

namespace flowedge {

// Floats ----------------------------------------------------------------------------------------------------

template <Format F>
struct FloatKernel {
    using T = std::conditional_t<F == FLOAT32, float, uint16_t>;
    static constexpr int OUTPUTS = 4;
    static constexpr int STEP = F == FLOAT32 ? W : 2 * W;  // inputs of a vector

    static Floats multiply(Floats sum, const T* a, Floats b) {
        if constexpr (F == FLOAT32)
            return fused(load<Floats>(a), b, sum);
        else
            return dot_bfloat16(sum, load<Words>(a), (Words)b);
    }

    // The last `count` numbers of a row of weights, and zeros. Rows that are multiplied end with zeros as well.
    static Floats rest(const T* from, int64_t count) {
        T padded[STEP] = {};
        std::memcpy(padded, from, count * sizeof(T));
        return load<Floats>(padded);
    }

    // Adds the products of M rows with N outputs over `depth` inputs to `output`, or stores them.
    template <int M, int N, bool AHEAD>
    static void tile(const T* rows, int64_t row_stride, const T* weight, int64_t in, int64_t depth, bool first,
                     float* output, int64_t output_stride) {
        const int64_t whole = depth / STEP * STEP;
        Floats acc[M][N], own[N];
        auto read = [&](int64_t k) {
            for (int n = 0; n < N; n++) {
                own[n] = k < whole ? load<Floats>(weight + n * in + k) : rest(weight + n * in + k, depth - k);
                // The outputs that come next: hardware does not look beyond the page that a row of weights fills.
                if constexpr (AHEAD) __builtin_prefetch(weight + (n + N) * in + k, 0, 2);
            }
        };
        // The first products are not added to zeros: those would be written to memory.
        auto add = [&]<bool FIRST>(int64_t k) {
            for (int m = 0; m < M; m++)
                for (int n = 0; n < N; n++)
                    acc[m][n] = multiply(FIRST ? Floats{} : acc[m][n], rows + m * row_stride + k, own[n]);
        };
        read(0);
        add.template operator()<true>(0);
        for (int64_t k = STEP; k < depth; k += STEP) {
            read(k);
            add.template operator()<false>(k);
        }
        Floats parts[M * N];  // so that no pointer keeps `acc` out of registers
        for (int i = 0; i < M * N; i++) parts[i] = acc[i / N][i % N];
        float added[M * N + LANES];
        write_sums<M * N>(parts, added);
        if (first) {
            for (int m = 0; m < M; m++) std::memcpy(output + m * output_stride, added + m * N, N * sizeof(float));
        } else {
            for (int m = 0; m < M; m++)
                for (int n = 0; n < N; n++) output[m * output_stride + n] += added[m * N + n];
        }
    }

    // One row has too few sums for the latency of additions in blocks of OUTPUTS.
    static void single(const T* row, const T* weight, int64_t in, int64_t depth, bool first, float* output,
                       int64_t count) {
        int64_t n = 0;
        for (; n + 8 <= count; n += 8) tile<1, 8, true>(row, 0, weight + n * in, in, depth, first, output + n, 0);
        for (; n < count; n++) tile<1, 1, false>(row, 0, weight + n * in, in, depth, first, output + n, 0);
    }

    // Outputs [start, stop) of a few rows.
    static void block(const Rows& rows, int64_t row, int64_t count, const Linear& linear, int64_t start,
                      int64_t stop, float* output, int64_t output_stride) {
        const int64_t in = linear.in;
        for (int64_t k = 0; k < in; k += DEPTH_BLOCK) {
            const int64_t depth = std::min(DEPTH_BLOCK, in - k);
            const T* values = (const T*)rows.values + row * rows.stride + k;
            const T* weight = (const T*)linear.weight + k;
            if (count == 1) {
                single(values, weight + start * in, in, depth, k == 0, output + start, stop - start);
                continue;
            }
            auto outputs = [&]<int N>(int64_t n) {
                in_rows<ROWS>(count, [&]<int M>(int64_t m) {
                    auto compute = m == 0 ? tile<M, N, true> : tile<M, N, false>;
                    compute(values + m * rows.stride, rows.stride, weight + n * in, in, depth, k == 0,
                            output + m * output_stride + n, output_stride);
                });
            };
            int64_t n = start;
            for (; n + OUTPUTS <= stop; n += OUTPUTS) outputs.template operator()<OUTPUTS>(n);
            for (; n < stop; n++) outputs.template operator()<1>(n);
        }
    }
};

// The outputs that are a unit of work of a linear layer: a block of integers, or a few outputs of floats.
inline int64_t unit_outputs(const Linear& linear) {
#if defined(__AMX_INT8__)
    if (linear.format == BFLOAT16) return TILED_OUTPUTS;
#endif
    return linear.format > FLOAT16 ? LANES : 8;
}

inline int64_t units_of(const Linear& linear) {
    const int64_t width = unit_outputs(linear);
    return (linear.out + width - 1) / width;
}

// The products of rows [first, first + rows) of an operand with some units of a linear layer's outputs; `output` is that
// of the first of these rows.
inline void multiply(const Rows& operand, int64_t first, int64_t rows, const Linear& linear, Range units, float* output,
                     int64_t output_stride) {
    const bool packed = linear.format > FLOAT16;
    const int64_t unit = packed ? 1 : unit_outputs(linear), width = packed ? LANES : 1;
    const int64_t all = (linear.out + width - 1) / width;
    const int64_t start = units.start * unit, stop = std::min(all, units.stop * unit);
    for (int64_t done = 0; done < rows; done += ROW_BLOCK) {
        const int64_t row = first + done, count = std::min(ROW_BLOCK, rows - done);
        float* to = output + done * output_stride;
        auto compute = [&](auto block) { block(operand, row, count, linear, start, stop, to, output_stride); };
        auto compute_integers = [&]<Format F>() {
#if defined(__AMX_INT8__)
            const int64_t tiled = tiled_rows(count);
            if (tiled) IntegerTiles<F>::block(operand, row, tiled, linear, start, stop, to, output_stride);
            if (tiled == count) return;
            IntegerKernel<F>::block(operand, row + tiled, count - tiled, linear, start, stop,
                                    to + tiled * output_stride, output_stride);
#else
            compute(IntegerKernel<F>::block);
#endif
        };
        switch (linear.format) {
            case FLOAT32: compute(FloatKernel<FLOAT32>::block); break;
#if defined(__AMX_INT8__)
            case BFLOAT16: compute(FloatTiles::block); break;
#else
            case BFLOAT16: compute(FloatKernel<BFLOAT16>::block); break;
#endif
            case INT8: compute_integers.template operator()<INT8>(); break;
            case INT4: compute_integers.template operator()<INT4>(); break;
            case INT5: compute_integers.template operator()<INT5>(); break;
            case INT6: compute_integers.template operator()<INT6>(); break;
            case IQ4: compute_integers.template operator()<IQ4>(); break;
            default: compute_integers.template operator()<MXFP4>(); break;
        }
    }
    if (!linear.bias) return;
    const int64_t from = start * width, to = std::min(linear.out, stop * width);
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = from; n < to; n++) output[m * output_stride + n] += linear.bias[n];
}

// The products of all rows with the share of a linear layer's outputs that a thread computes.
inline void multiply(const Rows& rows, const Linear& linear, float* output, int64_t output_stride, const Team& team) {
    multiply(rows, 0, rows.count, linear, team.share(units_of(linear)), output, output_stride);
}

// Whether rows are rounded alike for two linear layers of the same width.
inline bool rounds_alike(const Linear& a, const Linear& b) {
    if (a.format <= FLOAT16 || b.format <= FLOAT16) return a.format == b.format;
    return a.group == b.group;
}

// Rows for a format of weights --------------------------------------------------------------------------------

// Memory for the operands of a product.
struct Operand {
    int8_t* values;
    float* scales;
    int32_t* sums;

    // Rows of floats begin apart by no power of two, so that they do not compete for the same places of a cache.
    static int64_t stride(const Linear& linear) { return linear.in + (linear.format <= FLOAT16 ? PADDING : 0); }

    static int64_t floats(int64_t rows, int64_t width) { return rows * (width + PADDING); }

    Rows rows(int64_t count, const Linear& linear) const {
        return Rows{count, linear.in, stride(linear), values, scales, sums};
    }
};

// Copies row `from` of an operand to row `to`.
inline void copy_operand(const Linear& linear, int64_t from, int64_t to, const Operand& operand) {
    const bool packed = linear.format > FLOAT16;
    const int64_t bytes = Operand::stride(linear) * (packed ? 1 : bytes_of((Format)linear.format));
    std::memcpy(operand.values + to * bytes, operand.values + from * bytes, bytes);
    if (!packed) return;
    const int64_t groups = linear.in / linear.group;
    std::copy_n(operand.scales + from * groups, groups, operand.scales + to * groups);
    std::copy_n(operand.sums + from * groups, groups, operand.sums + to * groups);
}

// Writes a row of floats as operand number `row`, rounded as products with `linear` take it.
inline void write_operand(const Linear& linear, const float* from, int64_t row, const Operand& to) {
    const int64_t in = linear.in;
    if (linear.format == FLOAT32 || linear.format == BFLOAT16) {
        const int64_t start = row * Operand::stride(linear), bytes = bytes_of((Format)linear.format);
        write_floats((Format)linear.format, to.values, start, in, from);
        std::memset(to.values + (start + in) * bytes, 0, PADDING * bytes);
        return;
    }
    const int64_t group = linear.group, groups = in / group;
    for (int64_t g = 0; g < groups; g++) {
        const float* own = from + g * group;
        Floats most{}, unknown{};
        for (int64_t k = 0; k < group; k += W) {
            const Floats value = load<Floats>(own + k);
            most = larger(absolute(value), most);
            unknown += value * 0.0f;  // NaN where a value is NaN or infinite
        }
        const float top = largest(most), scale = top / 127.0f;
        const float factor = top > 0 ? 127.0f / top : 0.0f;
        Ints sum{};
        int8_t* values = to.values + row * in + g * group;
        for (int64_t k = 0; k < group; k += W) {
            const Ints whole = rounded(load<Floats>(own + k) * factor);
            sum += whole;
            store(values + k, __builtin_convertvector(whole, Bytes));
        }
        int32_t total = 0;
        for (int i = 0; i < W; i++) total += sum[i];
        to.sums[row * groups + g] = total;
        // A row that is not finite has scales of NaN, so that its products are no numbers either.
        to.scales[row * groups + g] = scale + flowedge::sum(unknown);
    }
}

}  // namespace flowedge
