// Numbers as they lie in memory: formats of rows, of weights and of the KV cache.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace flowedge {

enum Format : int32_t {
    FLOAT32 = 0,
    BFLOAT16 = 1,
    FLOAT16 = 2,
    INT8 = 3,
    INT4 = 4,
    INT5 = 5,
    INT6 = 6,
    IQ4 = 7,
    MXFP4 = 8,
};

inline int64_t bytes_of(Format format) { return format == FLOAT32 ? 4 : format == INT8 ? 1 : 2; }

// `count` numbers of a float format, from element `start` on, as floats.
inline void read_floats(Format format, const void* from, int64_t start, int64_t count, float* to) {
    if (format == FLOAT32) {
        std::memcpy(to, (const float*)from + start, count * sizeof(float));
        return;
    }
    const uint16_t* bits = (const uint16_t*)from + start;
    auto convert = [&](Halves part) { return format == BFLOAT16 ? from_bfloat16(part) : from_float16(part); };
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, convert(load<Halves>(bits + i)));
    if (i < count) {
        uint16_t rest[W] = {};
        float floats[W];
        std::memcpy(rest, bits + i, (count - i) * 2);
        store(floats, convert(load<Halves>(rest)));
        std::memcpy(to + i, floats, (count - i) * sizeof(float));
    }
}

inline void write_floats(Format format, void* to, int64_t start, int64_t count, const float* from) {
    if (format == FLOAT32) {
        std::memcpy((float*)to + start, from, count * sizeof(float));
        return;
    }
    uint16_t* bits = (uint16_t*)to + start;
    auto convert = [&](Floats part) { return format == BFLOAT16 ? to_bfloat16(part) : to_float16(part); };
    int64_t i = 0;
    for (; i + W <= count; i += W) store(bits + i, convert(load<Floats>(from + i)));
    if (i < count) {
        float rest[W] = {};
        uint16_t halves[W];
        std::memcpy(rest, from + i, (count - i) * sizeof(float));
        store(halves, convert(load<Floats>(rest)));
        std::memcpy(bits + i, halves, (count - i) * 2);
    }
}

// Rounds numbers to a float format, in place.
inline void round_to(Format format, float* values, int64_t count) {
    char bits[64 * sizeof(float)];
    for (int64_t i = 0; i < count; i += 64) {
        const int64_t part = std::min<int64_t>(64, count - i);
        write_floats(format, bits, 0, part, values + i);
        read_floats(format, bits, 0, part, values + i);
    }
}

}  // namespace flowedge
