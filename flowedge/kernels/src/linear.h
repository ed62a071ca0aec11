// A linear layer's weights, and the rows that are multiplied with them.
#pragma once

#include <algorithm>

#include "numbers.h"

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
#if defined(__AMX_INT8__)
constexpr int64_t ROW_BLOCK = 128;    // rows that a second-level cache holds
#else
constexpr int64_t ROW_BLOCK = 96;
#endif
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

}  // namespace flowedge
