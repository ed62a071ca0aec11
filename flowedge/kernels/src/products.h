// Products of rows with the weights of a linear layer.
//
// Each element of a product is added up in an order that depends on the length of the rows alone: not on the
// number of rows, not on the element's place, not on the number of threads.
#pragma once

#include <algorithm>

#include "numbers.h"
#include "threads.h"

namespace flowedge {

// A linear layer. Weights of floats lie row by row [out, in]. Integers are packed in blocks of LANES outputs, as words
// of four bytes for each output:
//   INT8: levels [blocks, in / 4, LANES, 4];
//   INT4: nibbles [blocks, in / 8, LANES, 4], the low half of a byte for one step of 4 inputs and the high half for
//         the next;
//   INT5, INT6: [blocks, in / 32, 5 or 6, LANES, 4]: four words of nibbles as those of INT4, then the fifth and the
//         sixth bits of the 32 inputs. Bit k (pair of bits k) of a byte of these belongs to step k of 4 inputs; the
//         pairs of steps 4 to 7 are in the second word;
//   IQ4, MXFP4: as INT4; a nibble is a place in a table of levels of 8 bits.
// A weight is (level - the middle of its levels) * scale, and `zeros` says whether a zero is added.
//   scales: bfloat16, or float16 where `halves`: [blocks, in / group, LANES], followed in each group by the zeros
//           [LANES].
// `in` is a multiple of `group`, which is a multiple of 32, or 16 where `in` is a multiple of 32.
struct Linear {
    int32_t format;
    int32_t group;
    int32_t halves, zeros;
    int64_t out, in;
    const void* weight;
    const uint16_t* scales;
    const float* bias;  // [out] or null
};

// Rows that are multiplied: floats in the format of the weights, or integers with a scale for each group.
struct Rows {
    int64_t count, width;
    int64_t stride;       // values from one row to the next
    const void* values;   // [count, width]: float, bfloat16 bits or int8
    const float* scales;  // [count, width / group]
    const int32_t* sums;  // [count, width / group], of the integers of each group
};

// Sums that fit a target's registers: rows that are computed at once, and blocks of packed integers.
#if defined(__AVX512F__)
constexpr int ROWS = 6, BLOCKS = 2;
#elif defined(__AVX2__)
constexpr int ROWS = 2, BLOCKS = 1;
#else
constexpr int ROWS = 3, BLOCKS = 1;
#endif
constexpr int64_t ROW_BLOCK = 96;     // rows that a second-level cache holds
constexpr int64_t DEPTH_BLOCK = 2048; // inputs of floats that are added up before their sum is stored
constexpr int64_t PADDING = 64;       // numbers after each row of floats that is multiplied

// Calls tile.operator()<M>(m) for rows [m, m + M), with M as large as possible up to MOST, until all rows are computed.
template <int MOST, class Tile>
inline void in_rows(int64_t count, const Tile& tile, int64_t m = 0) {
    for (; m + MOST <= count; m += MOST) tile.template operator()<MOST>(m);
    if constexpr (MOST > 1) {
        if (m < count) in_rows<MOST - 1>(count, tile, m);
    }
}

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

// Packed integers ---------------------------------------------------------------------------------------------

// The levels of IQ4_NL and IQ4_XS, and twice the values of MXFP4, each with 128 added.
constexpr uint8_t IQ4_LEVELS[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t MXFP4_LEVELS[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

template <Format F>
struct IntegerKernel {
    static constexpr bool TABLE = F == IQ4 || F == MXFP4, WIDE = F == INT8 || TABLE;  // levels of 8 bits
    // Of the levels as they are multiplied.
    static constexpr int MIDDLE = WIDE ? (SIGNED_LEVELS ? 0 : 128) : F == INT4 ? 8 : F == INT5 ? 16 : 32;
    static constexpr int WORDS = F == INT8 ? 8 : F == INT5 ? 5 : F == INT6 ? 6 : 4;  // of a lane's 32 inputs

    // The levels of steps `s` and `s + 1` of 4 inputs, where `s` is even, of the 32 inputs whose words begin at `from`.
    static void levels(const int32_t* from, int s, Ints& first, Ints& second) {
        if constexpr (F == INT8) {
            first = load<Ints>(from + s * LANES), second = load<Ints>(from + (s + 1) * LANES);
        } else {
            const Words word = (Words)load<Ints>(from + s / 2 * LANES);
            Words low = word & 0x0f0f0f0f, high = (word >> 4) & 0x0f0f0f0f;
            if constexpr (F == INT5) {
                const Words bits = (Words)load<Ints>(from + 4 * LANES) >> s;
                low |= (bits & 0x01010101) << 4, high |= (bits << 3) & 0x10101010;
            }
            if constexpr (F == INT6) {
                const Words bits = (Words)load<Ints>(from + (4 + s / 4) * LANES) >> (s % 4 * 2);
                low |= (bits << 4) & 0x30303030, high |= (bits << 2) & 0x30303030;
            }
            if constexpr (TABLE) {
                const uint8_t* table = F == IQ4 ? IQ4_LEVELS : MXFP4_LEVELS;
                low = looked_up(table, low), high = looked_up(table, high);
            }
            first = (Ints)low, second = (Ints)high;
        }
    }

    // M rows times N blocks of LANES outputs.
    template <int M, int N>
    static void tile(const int8_t* rows, const float* row_scales, const int32_t* row_sums, const Linear& linear,
                     int64_t block, float* output, int64_t output_stride) {
        const int64_t in = linear.in, group = linear.group, groups = in / group;
        const int64_t words = in / 32 * WORDS * LANES;  // of a block
        const int32_t* weight = (const int32_t*)linear.weight + block * words;
        const bool halves = linear.halves, zeros = linear.zeros;
        const int64_t own_scales = (zeros ? 2 : 1) * LANES;  // of a group
        auto scale_at = [&](const uint16_t* from) {
            return halves ? from_float16(load<Halves>(from)) : from_bfloat16(load<Halves>(from));
        };
        const uint16_t* scales = linear.scales + block * groups * own_scales;
        constexpr int V = N * PARTS;
        Floats acc[M][V] = {};
        for (int64_t g = 0; g < groups; g++) {
            Ints sum[M][V] = {};
            // Steps [FROM, TO) of 4 of the 32 inputs that begin at `k`.
            auto add = [&]<int FROM, int TO>(int64_t k) {
                const int32_t* from = weight + k / 32 * WORDS * LANES;
                for (int s = FROM; s < TO; s += 2) {
                    for (int v = 0; v < V; v++) {
                        Ints first, second;
                        levels(from + v / PARTS * words + v % PARTS * W, s, first, second);
                        for (int m = 0; m < M; m++) {
                            const int8_t* row = rows + m * in + k + 4 * s;
                            if constexpr (WIDE) {
                                sum[m][v] = dot_wide(dot_wide(sum[m][v], first, step(row)), second, step(row + 4));
                            } else {
                                sum[m][v] = dot(dot(sum[m][v], first, step(row)), second, step(row + 4));
                            }
                        }
                    }
                }
            };
            if (group >= 32) {
                for (int64_t k = g * group; k < (g + 1) * group; k += 32) add.template operator()<0, 8>(k);
            } else if (g % 2 == 0) {
                add.template operator()<0, 4>(g / 2 * 32);
            } else {
                add.template operator()<4, 8>(g / 2 * 32);
            }
            for (int v = 0; v < V; v++) {
                const uint16_t* own = scales + (v / PARTS * groups + g) * own_scales + v % PARTS * W;
                const Floats scale = scale_at(own);
                for (int m = 0; m < M; m++) {
                    const float row_scale = row_scales[m * groups + g];
                    const int32_t row_sum = row_sums[m * groups + g];
                    const Floats exact = __builtin_convertvector(sum[m][v] - MIDDLE * row_sum, Floats);
                    acc[m][v] = fused(exact, scale * row_scale, acc[m][v]);
                }
                if (!zeros) continue;
                const Floats zero = scale_at(own + LANES);
                for (int m = 0; m < M; m++) {
                    const float sum_of_row = (float)row_sums[m * groups + g] * row_scales[m * groups + g];
                    acc[m][v] = fused(all(sum_of_row), zero, acc[m][v]);
                }
            }
        }
        for (int m = 0; m < M; m++) {
            for (int n = 0; n < N; n++) {
                const int64_t left = linear.out - (block + n) * LANES;
                float* to = output + m * output_stride + (block + n) * LANES;
                float lanes[LANES];
                for (int p = 0; p < PARTS; p++) store(lanes + p * W, acc[m][n * PARTS + p]);
                std::memcpy(to, lanes, std::min<int64_t>(left, LANES) * sizeof(float));
            }
        }
    }

    static Ints step(const int8_t* values) {
        int32_t word;
        std::memcpy(&word, values, 4);
        return Ints{} + word;
    }

    template <int N, int MOST>
    static void rows_of(const Rows& rows, int64_t row, int64_t count, const Linear& linear, int64_t block,
                        float* output, int64_t output_stride) {
        const int64_t in = linear.in, groups = in / linear.group;
        in_rows<MOST>(count, [&]<int M>(int64_t m) {
            tile<M, N>((const int8_t*)rows.values + (row + m) * in, rows.scales + (row + m) * groups,
                       rows.sums + (row + m) * groups, linear, block, output + m * output_stride, output_stride);
        });
    }

    static void block(const Rows& rows, int64_t row, int64_t count, const Linear& linear, int64_t start,
                      int64_t stop, float* output, int64_t output_stride) {
        int64_t b = start;
        // One row has too few sums for the latency of a dot product in BLOCKS blocks.
        constexpr int SINGLE = 2 * BLOCKS;
        for (; count == 1 && b + SINGLE <= stop; b += SINGLE)
            rows_of<SINGLE, 1>(rows, row, count, linear, b, output, output_stride);
        for (; b + BLOCKS <= stop; b += BLOCKS)
            rows_of<BLOCKS, ROWS>(rows, row, count, linear, b, output, output_stride);
        for (; b < stop; b++) rows_of<1, ROWS>(rows, row, count, linear, b, output, output_stride);
    }
};

// How many units the outputs of a linear layer are computed in: blocks of integers, or eight outputs of floats.
inline int64_t units_of(const Linear& linear) {
    const int64_t width = linear.format > FLOAT16 ? LANES : 8;
    return (linear.out + width - 1) / width;
}

// The products of rows [first, first + rows) of an operand with some units of a linear layer's outputs; `output` is that
// of the first of these rows.
inline void multiply(const Rows& operand, int64_t first, int64_t rows, const Linear& linear, Range units, float* output,
                     int64_t output_stride) {
    const bool packed = linear.format > FLOAT16;
    const int64_t unit = packed ? 1 : 8, width = packed ? LANES : 1;
    const int64_t all = (linear.out + width - 1) / width;
    const int64_t start = units.start * unit, stop = std::min(all, units.stop * unit);
    for (int64_t done = 0; done < rows; done += ROW_BLOCK) {
        const int64_t row = first + done, count = std::min(ROW_BLOCK, rows - done);
        float* to = output + done * output_stride;
        auto compute = [&](auto block) { block(operand, row, count, linear, start, stop, to, output_stride); };
        switch (linear.format) {
            case FLOAT32: compute(FloatKernel<FLOAT32>::block); break;
            case BFLOAT16: compute(FloatKernel<BFLOAT16>::block); break;
            case INT8: compute(IntegerKernel<INT8>::block); break;
            case INT4: compute(IntegerKernel<INT4>::block); break;
            case INT5: compute(IntegerKernel<INT5>::block); break;
            case INT6: compute(IntegerKernel<INT6>::block); break;
            case IQ4: compute(IntegerKernel<IQ4>::block); break;
            default: compute(IntegerKernel<MXFP4>::block); break;
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
