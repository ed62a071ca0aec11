// Products of packed integers, a few rows and blocks of outputs at a time.
#pragma once

#include "linear.h"

namespace flowedge {

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

}  // namespace flowedge
